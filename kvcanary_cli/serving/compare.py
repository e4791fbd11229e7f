"""``--against``: what two sources resolve to, and what each difference does to the capacities."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kvcanary_cli.serving.check_result import Difference
from kvcanary_cli.serving.narrow import narrowed
from kvcanary_cli.serving.values import CAPACITY_INPUTS, RESULTS

if TYPE_CHECKING:
    from kvcanary_cli.serving.values import CapacityPart, Resolution

_CAPACITY_NAMES = {
    "per_forward_verify_capacity": "verify capacity",
    "per_forward_write_req_capacity": "request capacity",
    "per_forward_write_entry_capacity": "entry capacity",
}
_CODES = {
    "per_forward_verify_capacity": "KVC-B08",
    "per_forward_write_req_capacity": "KVC-B03",
    "per_forward_write_entry_capacity": "KVC-B04",
}
_EFFECTS = {
    "buffer_groups": "doubles or halves the buffers",
    "forward_managers": "more or fewer workspaces",
    "kv_canary": "the canary's mode",
    "kv_canary_real_data": "whether KV bytes are fingerprinted",
    "kv_canary_sweep_interval": "how often cached prefixes are swept",
    "mem_fraction_static": "the size of the KV pool, and with it the verify capacity",
    "cell_bytes": "the size of the KV pool, and with it the verify capacity",
    "enable_dynamic_chunking": "the largest chunk",
    "disable_radix_cache": "whether prefixes are shared, and whether sweeps can run",
    "context_length": "the longest prompt",
    "max_running_requests": "the largest batch",
    "pool_class": "whether the canary can be attached",
}
_UNKNOWN = "unknown"


def compare(here: Resolution, there: Resolution) -> tuple[Difference, ...]:
    """Every value that differs; inputs of the capacities first, then the capacities.

    Args:
        here: Resolution of the sources.
        there: Resolution of the source of ``--against``.
    """
    names = [*CAPACITY_INPUTS, *(name for name in RESULTS if name not in CAPACITY_INPUTS)]
    out = []
    parts = _parts(here)
    others = _parts(there)
    for name in names:
        mine, theirs = here.value(name), there.value(name)
        if mine == theirs or (name not in here.values and name not in there.values):
            continue
        out.append(
            Difference(
                name=name,
                here=mine if name in here.values else _UNKNOWN,
                here_source=here.source(name),
                there=theirs if name in there.values else _UNKNOWN,
                there_source=there.source(name),
                effect=_effect(
                    name, parts, _exchanged(here, there, name), _feeds(name, here, there)
                ),
            )
        )
    for name, part in parts.items():
        other = others[name]
        if part.value != other.value:
            out.append(_capacity_difference(part, other))
    return tuple(out)


def _parts(resolution: Resolution) -> dict[str, CapacityPart]:
    return {part.name: part for part in narrowed(resolution, resolution.capacity_parts())}


def _exchanged(here: Resolution, there: Resolution, name: str) -> dict[str, CapacityPart]:
    """The capacities of ``here`` with the one value ``name`` as it is in ``there``."""
    values, unknown = dict(here.values), dict(here.unknown)
    values.pop(name, None)
    unknown.pop(name, None)
    if name in there.values:
        values[name] = there.values[name]
    elif name in there.unknown:
        unknown[name] = there.unknown[name]
    return _parts(replace(here, values=values, unknown=unknown))


def _feeds(name: str, here: Resolution, there: Resolution) -> list[str]:
    """Inputs of the capacities that differ and were computed from ``name``."""
    return [
        each
        for each in CAPACITY_INPUTS
        if here.value(each) != there.value(each)
        and any(each in one.values and name in one.values[each].inputs for one in (here, there))
    ]


def _effect(
    name: str,
    here: dict[str, CapacityPart],
    there: dict[str, CapacityPart],
    feeds: list[str],
) -> str:
    """What the exchange of one value does: ``there`` differs from ``here`` in that alone."""
    touched = [part.name for part in here.values() if name in part.inputs]
    if not touched and feeds:
        return f"reaches the capacities through {', '.join(feeds)}"
    if not touched:
        return _EFFECTS.get(name, "does not reach the capacities")
    moved = [
        f"{_CAPACITY_NAMES[key]} {_shown(here[key].value)} -> {_shown(there[key].value)}"
        for key in touched
        if here[key].value != there[key].value
    ]
    if moved:
        return "; ".join(moved)
    return ", ".join(f"{_CAPACITY_NAMES[key]} unchanged by this alone" for key in touched)


def _capacity_difference(part: CapacityPart, other: CapacityPart) -> Difference:
    effect = "cannot be compared"
    if part.value is not None and other.value is not None:
        code = _CODES[part.name]
        smaller, larger = sorted((part.value, other.value))
        effect = (
            f"buffers of {smaller} meet {code} under a load of {smaller + 1} to {larger}"
            if smaller < larger
            else "no effect"
        )
    return Difference(
        name=part.name,
        here=_shown(part.value),
        here_source=part.source,
        there=_shown(other.value),
        there_source=other.source,
        effect=effect,
    )


def _shown(value: Any) -> Any:
    return _UNKNOWN if value is None else value
