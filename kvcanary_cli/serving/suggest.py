"""The smallest sets of changed flags that make every check pass, verified by checking again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any, TypeVar

from kvcanary_cli.serving.check_report import build_report
from kvcanary_cli.serving.check_result import Change, Fix, Status, Suggestion
from kvcanary_cli.serving.options import spelling_of
from kvcanary_cli.serving.suggest_changes import alternatives
from kvcanary_cli.serving.values import Given

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcanary_cli.serving.check_result import Check, CheckReport
    from kvcanary_cli.serving.demand import Demand
    from kvcanary_cli.serving.read_sources import Reading
    from kvcanary_cli.serving.suggest_changes import Alternative
    from kvcanary_cli.serving.values import Resolution

#: A change may bring a new failing check; after so many rounds there is no way.
_MAX_ROUNDS = 4
_MAX_TRIALS = 200
_T = TypeVar("_T")
_RESTART = (
    "these arguments give large enough capacities, but the running canary was built from other "
    "ones: start the server with these arguments, or compare them with check-capacities --against"
)
_NAMES_IN_EFFECTS = (
    ("cuda_graph_max_bs", "cuda_graph_max_bs"),
    ("req_to_token_pool_size", "request pool"),
    ("chunked_prefill_size", "chunk per worker"),
    ("mem_fraction_static", "mem_fraction_static"),
    ("pool_slot_count", "KV slots"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What ``suggest-flags`` found.

    Attributes:
        before: The checks without a change.
        suggestions: Verified sets of changes, smallest first; empty if none is needed or possible.
        rejected: Sets that pass the checks and exceed the budget, cheapest first.
        unfixable: Failing checks that no flag can make pass.
        advice: What helps besides flags, one sentence each.
    """

    before: CheckReport
    suggestions: tuple[Suggestion, ...]
    rejected: tuple[Suggestion, ...]
    unfixable: tuple[Check, ...]
    advice: tuple[str, ...] = ()

    @property
    def passes_already(self) -> bool:
        """No check fails, and no start is refused in a case that cannot be ruled out."""
        return not self.before.failing and not self.suggestions and not self.rejected


def with_headroom(demands: Sequence[Demand], percent: float) -> list[Demand]:
    """Observed demands raised by a share; worst cases are exact and stay."""
    return [
        replace(
            demand,
            value=-(-int(demand.value * (100 + percent)) // 100),
            source=f"{demand.source} + {percent:g}% headroom",
        )
        if demand.observed and percent and demand.quantity != "verify_entries"
        else demand
        for demand in demands
    ]


def suggest(
    reading: Reading, demands: Sequence[Demand], *, budget_bytes: int | None = None
) -> Outcome:
    """Find the changes.

    Args:
        reading: The merged sources; its logs' peaks must be among ``demands`` already if they are
            to have headroom.
        demands: Observed demands.
        budget_bytes: Most that a change may cost per rank, or None.
    """
    before = build_report(reading, demands)
    launch = build_report(reading.without_installed(), demands)
    known = _known(launch) | _keys(before.failing)
    if before.failing and not _left_open(known, launch) and not launch.failing:
        return Outcome(
            before=before,
            suggestions=(),
            rejected=(),
            unfixable=before.failing,
            advice=(_RESTART,),
        )
    found: dict[tuple[tuple[str, Any], ...], Suggestion] = {}
    unfixable: list[Check] = []
    pending: list[tuple[Alternative, ...]] = [()]
    trials = 0
    for _ in range(_MAX_ROUNDS):
        following: list[tuple[Alternative, ...]] = []
        for chosen in pending:
            if trials >= _MAX_TRIALS:
                break
            trials += 1
            given = _statements(chosen)
            report = build_report(reading, demands, given) if given else before
            to_fix = _to_fix(report)
            if not to_fix:
                if chosen and not _left_open(known, report):
                    key = tuple(sorted((one.name, str(one.value)) for one in given))
                    found.setdefault(key, _suggestion(chosen, given, before, report))
                continue
            options = [alternatives(report, check) for check in to_fix]
            if not chosen:
                unfixable = [check for check, ways in zip(to_fix, options, strict=True) if not ways]
            if any(not ways for ways in options):
                continue
            following += [_merged(chosen, combination) for combination in product(*options)]
        pending = _distinct(following)
    # Fewest flags first; among as many, the order of preference in which they were tried.
    ranked = sorted(found.values(), key=lambda one: len(one.fix.changes))
    if budget_bytes is not None:
        ranked = [replace(one, within_budget=_fits(one, budget_bytes)) for one in ranked]
    return Outcome(
        before=before,
        suggestions=tuple(one for one in _smallest(ranked) if one.within_budget),
        rejected=tuple(one for one in ranked if not one.within_budget),
        unfixable=tuple(unfixable),
        advice=advice(before),
    )


def _fits(suggestion: Suggestion, budget_bytes: int) -> bool:
    """An unknown cost fits no budget."""
    cost = suggestion.fix.cost_bytes
    return cost is not None and cost <= budget_bytes


def with_fixes(report: CheckReport, reading: Reading, demands: Sequence[Demand]) -> CheckReport:
    """The report with, beside each failing check, the changes that make it pass."""
    checks = []
    launch = build_report(reading.without_installed(), demands)
    known = _known(launch) | _keys(report.failing)
    if report.failing and not _left_open(known, launch) and not launch.failing:
        return replace(report, advice=(_RESTART,))
    for check in report.checks:
        fixes: list[Fix] = []
        if check.status is Status.FAILS:
            for way in alternatives(report, check):
                given = _statements((way,))
                after = build_report(reading, demands, given)
                if _is_better(report, after, check, known):
                    fixes.append(_fix((way,), report, after))
        checks.append(replace(check, fixes=tuple(fixes)))
    return replace(report, checks=tuple(checks), advice=advice(report))


def _to_fix(report: CheckReport) -> tuple[Check, ...]:
    """Failing checks, and starts that may be refused if a flag rules that out."""
    doubtful = tuple(
        check
        for check in report.checks
        if check.name == "refused"
        and check.status is Status.UNKNOWN
        and alternatives(report, check)
    )
    return (*report.failing, *doubtful)


def _keys(checks: Sequence[Check]) -> set[tuple[str, str]]:
    return {(check.code, check.name) for check in checks}


def _known(report: CheckReport) -> set[tuple[str, str]]:
    return _keys([check for check in report.checks if check.status is not Status.UNKNOWN])


def _left_open(known: set[tuple[str, str]], after: CheckReport) -> bool:
    """A check whose outcome should be known has none."""
    return bool(known & (_keys(after.checks) - _known(after)))


def _is_better(
    before: CheckReport, after: CheckReport, check: Check, known: set[tuple[str, str]]
) -> bool:
    """The check passes, and no other one fails for it."""
    failed, failing = _keys(before.failing), _keys(after.failing)
    return (
        failing < failed
        and (check.code, check.name) not in failing
        and not _left_open(known, after)
    )


def _merged(
    chosen: tuple[Alternative, ...], combination: Sequence[Alternative]
) -> tuple[Alternative, ...]:
    """Later alternatives for the same flags take the place of earlier ones."""
    names = {change for way in combination for change in way.names}
    kept = [way for way in chosen if not names & set(way.names)]
    return tuple(_distinct([*kept, *combination]))


def _distinct(items: Sequence[_T]) -> list[_T]:
    """Each once, in order; values of options may be lists, which have no hash."""
    return list({repr(item): item for item in items}.values())


def _statements(ways: Sequence[Alternative]) -> list[Given]:
    given: dict[str, Given] = {}
    for way in ways:
        for name, value in way.values:
            given[name] = Given(name, value, "suggestion", None, "argument")
    return list(given.values())


def _suggestion(
    ways: tuple[Alternative, ...], given: list[Given], before: CheckReport, after: CheckReport
) -> Suggestion:
    return Suggestion(
        fix=_fix(ways, before, after), given=tuple(given), report=after, within_budget=True
    )


def _fix(ways: Sequence[Alternative], before: CheckReport, after: CheckReport) -> Fix:
    changes = {}
    for way in ways:
        for name, value in way.values:
            changes[name] = Change(
                name=name,
                flag=flag_of(name, before.resolution.version),
                before=_given_value(before.resolution, name),
                after=value,
            )
    return Fix(
        changes=tuple(changes.values()),
        why="; ".join(dict.fromkeys(way.why for way in ways)),
        cost_bytes=_cost(before, after),
        effects=_effects(before, after),
    )


def flag_of(name: str, version: str) -> str:
    """Spelling of an option in a version; variables keep their name."""
    if name.startswith("SGLANG_"):
        return name
    return spelling_of(name, version) or f"--{name.replace('_', '-')}"


def _given_value(resolution: Resolution, name: str) -> Any:
    given = resolution.given.get(name)
    if given is not None:
        return given.value
    return resolution.value(_RESULT_OF.get(name, name))


_RESULT_OF = {"cuda_graph_max_bs_decode": "cuda_graph_max_bs"}


def _cost(before: CheckReport, after: CheckReport) -> int | None:
    """Memory per rank that the change takes from elsewhere: canary memory and lost KV cache."""
    if before.memory.total is None or after.memory.total is None:
        return None
    canary = after.memory.total - before.memory.total
    slots = before.resolution.value("pool_slot_count")
    left = after.resolution.value("pool_slot_count")
    cell = before.resolution.value("cell_bytes")
    if slots is None or left is None or slots == left:
        return canary
    if cell is None:
        return None
    return canary + int((slots - left) * cell)


def _effects(before: CheckReport, after: CheckReport) -> tuple[str, ...]:
    """What else moves."""
    out = []
    for name, shown in _NAMES_IN_EFFECTS:
        old, new = before.resolution.value(name), after.resolution.value(name)
        if old != new:
            out.append(f"{shown} {_number(old)} -> {_number(new)}")
    sizes = [len(r.resolution.value("captured_bs") or ()) for r in (before, after)]
    if sizes[0] != sizes[1] and all(sizes):
        out.append(f"captured decode sizes {sizes[0]} -> {sizes[1]}")
    for old_part, new_part in zip(before.parts, after.parts, strict=True):
        if old_part.value != new_part.value:
            short = old_part.name.removeprefix("per_forward_").replace("_", " ")
            out.append(f"{short} {_number(old_part.value)} -> {_number(new_part.value)}")
    return tuple(out)


def _number(value: Any) -> str:
    if value is None:
        return "unknown"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _smallest(ranked: list[Suggestion]) -> list[Suggestion]:
    """Sets of which no part alone is enough."""
    kept: list[Suggestion] = []
    for one in ranked:
        changes = {(change.name, str(change.after)) for change in one.fix.changes}
        if not any({(c.name, str(c.after)) for c in other.fix.changes} < changes for other in kept):
            kept.append(one)
    return kept


def advice(report: CheckReport) -> tuple[str, ...]:
    """What helps besides flags."""
    batch = next((c for c in report.failing if c.code in ("KVC-B03", "KVC-B05")), None)
    if batch is None or batch.limit is None:
        return ()
    resolution = report.resolution
    flag = flag_of("max_running_requests", resolution.version)
    out = [
        f"or cap the live server: {flag} {batch.limit * int(resolution.value('attn_dp_size', 1))}"
    ]
    pool = resolution.value("req_to_token_pool_size")
    if pool is not None and batch.demand is not None and batch.demand > pool:
        out.append(
            f"a server with these arguments runs at most {pool} requests: the load of "
            f"{batch.demand} was met by one with other arguments; "
            "check-capacities --against SOURCE lists the differences"
        )
    return tuple(out)
