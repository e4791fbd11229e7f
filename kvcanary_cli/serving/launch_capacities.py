"""From a resolution to the canary's launch capacities (SPEC_SERVING_ARGS 0)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcanary_cli.capacities.launch import CanaryLaunchCapacities
from kvcanary_cli.serving.values import CapacityPart, Unknown

if TYPE_CHECKING:
    from kvcanary_cli.serving.values import Resolution

_VERIFY = "per_forward_verify_capacity"
_WRITE_REQ = "per_forward_write_req_capacity"
_WRITE_ENTRY = "per_forward_write_entry_capacity"

_INPUTS = {
    _VERIFY: ("pool_slot_count",),
    _WRITE_REQ: ("cuda_graph_max_bs", "req_to_token_pool_size"),
    _WRITE_ENTRY: (
        "cuda_graph_max_bs",
        "req_to_token_pool_size",
        "speculative_num_draft_tokens",
        "max_prefill_tokens",
        "chunked_prefill_size",
    ),
}

_FORMULAS = {
    _VERIFY: "3 * pool_slot_count",
    _WRITE_REQ: "max(cuda_graph_max_bs, req_to_token_pool_size)",
    _WRITE_ENTRY: "max(max(cuda_graph_max_bs, req_to_token_pool_size) * "
    "max(1, speculative_num_draft_tokens), min(max_prefill_tokens, chunked_prefill_size))",
}

_UNCHUNKED_ENTRY_FORMULA = (
    "max(max(cuda_graph_max_bs, req_to_token_pool_size) * max(1, speculative_num_draft_tokens), "
    "max_prefill_tokens)"
)

_STATED = {
    _VERIFY: "canary_verify_capacity",
    _WRITE_REQ: "canary_write_req_capacity",
    _WRITE_ENTRY: "canary_write_entry_capacity",
}

STATED_CAPACITIES = tuple(_STATED.values())
"""Facts that state a capacity itself."""

_REQUIRED = (
    "req_to_token_pool_size",
    "pool_slot_count",
    "cuda_graph_max_bs",
    "speculative_num_draft_tokens",
    "max_prefill_tokens",
    "chunked_prefill_size",
)
"""Inputs without which there are no capacities. ``max_seq_len_per_req`` is only checked for being
positive, so an unknown one stops nothing."""

# What a part does not read must still pass the canary's check when it is unknown.
_NEUTRAL = 1


def _from_args(resolution: Resolution, names: tuple[str, ...]) -> CanaryLaunchCapacities:
    """Capacities from the inputs ``names``; the others neutral.

    Raises:
        ValueError: KVC-B01 or KVC-B02 for an input that is out of range.
    """

    def number(name: str) -> int | None:
        value = resolution.value(name) if name in names else None
        return None if value is None else int(value)

    def positive(name: str) -> int:
        value = number(name)
        return _NEUTRAL if value is None else value

    return CanaryLaunchCapacities.from_args(
        req_to_token_pool_size=positive("req_to_token_pool_size"),
        max_seq_len_per_req=positive("max_seq_len_per_req"),
        pool_slot_count=positive("pool_slot_count"),
        cuda_graph_max_bs=number("cuda_graph_max_bs"),
        speculative_num_draft_tokens=number("speculative_num_draft_tokens"),
        max_prefill_tokens=positive("max_prefill_tokens"),
        chunked_prefill_size=number("chunked_prefill_size"),
    )


def _missing(resolution: Resolution, names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in names if name not in resolution.values)


def parts_of(resolution: Resolution) -> tuple[CapacityPart, ...]:
    """Each capacity by itself; what an install line states beats the formula."""
    return tuple(_part(resolution, name) for name in (_VERIFY, _WRITE_REQ, _WRITE_ENTRY))


def _part(resolution: Resolution, name: str) -> CapacityPart:
    inputs = _INPUTS[name]
    formula = _FORMULAS[name]
    chunk = resolution.value("chunked_prefill_size")
    if name == _WRITE_ENTRY and chunk is not None and chunk < 0:
        formula = _UNCHUNKED_ENTRY_FORMULA
    stated = resolution.given.get(_STATED[name])
    missing = _missing(resolution, inputs)
    value: int | None = None
    source = "formula"
    if stated is not None and stated.value is not None:
        value, source, missing = int(stated.value), stated.source, ()
    elif not missing:
        try:
            value = int(getattr(_from_args(resolution, inputs), name))
        except ValueError:
            # The refusal KVC-B02 says which input it is.
            value = None
    return CapacityPart(
        name=name, value=value, formula=formula, inputs=inputs, source=source, unknown=missing
    )


def refused_input(resolution: Resolution) -> str | None:
    """The server's text for an input that is out of range (KVC-B01, KVC-B02), or None."""
    known = tuple(name for name in (*_REQUIRED, "max_seq_len_per_req") if name in resolution.values)
    try:
        _from_args(resolution, known)
    except ValueError as error:
        return str(error)
    return None


def capacities_of(resolution: Resolution) -> CanaryLaunchCapacities | tuple[Unknown, ...]:
    """All three capacities, or what is missing for them."""
    parts = parts_of(resolution)
    values = {part.name: part.value for part in parts}
    missing = [name for part in parts for name in part.unknown]
    if missing:
        return tuple(
            resolution.unknown.get(name, Unknown(name, "nothing states it", f"--set {name}=N"))
            for name in dict.fromkeys(missing)
        )
    refused = refused_input(resolution)
    verify, write_req, write_entry = (values[name] for name in (_VERIFY, _WRITE_REQ, _WRITE_ENTRY))
    if refused is None and None not in (verify, write_req, write_entry):
        try:
            return CanaryLaunchCapacities(
                per_forward_verify_capacity=verify or 0,
                per_forward_write_req_capacity=write_req or 0,
                per_forward_write_entry_capacity=write_entry or 0,
            )
        except ValueError as error:
            refused = str(error)
    name = (refused or "").removeprefix("kv-canary: ").split(" ")[0]
    return (Unknown(name, f"the server refuses it: {refused}", f"another value for {name}"),)
