"""From a reading to a report: resolve, take the capacities, run the checks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcanary_cli.serving.check_memory import memory_use
from kvcanary_cli.serving.check_result import CheckReport
from kvcanary_cli.serving.checks import run_checks
from kvcanary_cli.serving.demand import all_demands, observed_demands
from kvcanary_cli.serving.narrow import narrowed
from kvcanary_cli.serving.values import Given, Unknown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcanary_cli.serving.check_result import Check
    from kvcanary_cli.serving.demand import Demand
    from kvcanary_cli.serving.read_sources import Reading
    from kvcanary_cli.serving.values import CapacityPart, Resolution


def build_report(
    reading: Reading, demands: Sequence[Demand] = (), changes: Sequence[Given] = ()
) -> CheckReport:
    """Run all checks on what the sources state.

    Args:
        reading: The merged sources.
        demands: Demands from elsewhere (trace, options of the command).
        changes: Statements in place of those of the sources (a suggestion under test).
    """
    resolution = _as_if_on(reading, reading.resolve(changes), changes)
    draft = int(resolution.value("speculative_num_draft_tokens", 0) or 0)
    seen = [
        demand for name, log in reading.observed for demand in observed_demands(name, log, draft)
    ]
    found = all_demands(resolution, [*demands, *seen])
    parts = narrowed(resolution, resolution.capacity_parts())
    memory = memory_use(resolution)
    logged = {name: log.violations for name, log in reading.observed if log.violations}
    checks = run_checks(resolution, parts, found, memory, sum(logged.values()))
    return CheckReport(
        sources=reading.sources,
        resolution=resolution,
        parts=parts,
        memory=memory,
        demands=found.items,
        checks=checks,
        unknown=_unknown(resolution, parts, checks, found.unknown),
        notices=tuple(str(notice) for notice in reading.notices),
        violations_logged=logged,
    )


def _as_if_on(reading: Reading, found: Resolution, changes: Sequence[Given]) -> Resolution:
    """The refusals of a start with the canary on, if these arguments leave it off.

    Whoever asks whether the buffers hold wants to turn it on.
    """
    if found.value("kv_canary") != "none":
        return found
    on = reading.resolve([*changes, Given("kv_canary", "log", "the canary turned on")])
    known = {(refusal.code, refusal.message) for refusal in found.refusals}
    new = tuple(
        replace(refusal, source=f"{refusal.source}, once the canary is on")
        for refusal in on.refusals
        if (refusal.code, refusal.message) not in known
    )
    return replace(found, refusals=(*found.refusals, *new))


def _unknown(
    resolution: Resolution,
    parts: tuple[CapacityPart, ...],
    checks: tuple[Check, ...],
    demand_inputs: dict[str, str],
) -> tuple[Unknown, ...]:
    """What is missing for a capacity, a demand or the memory check, each once."""
    names = [name for part in parts for name in part.unknown]
    names += demand_inputs.values()
    memory = next(check for check in checks if check.name == "memory")
    if memory.demand is None:
        names += ["pool_slot_count", "buffer_groups"]
    if memory.limit is None:
        names += ["gpu_memory_mib", "mem_fraction_static"]
    out = []
    for name in dict.fromkeys(names):
        if name in resolution.values:
            continue
        missing = resolution.unknown.get(name)
        out.append(missing or Unknown(name, "nothing states it", f"--set {name}=N"))
    return tuple(out)
