"""The same launch with another value for one option: what a suggestion is checked on."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from kvcanary_cli.serving.values import Given

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_CANARY = ("canary_verify_capacity", "canary_write_req_capacity", "canary_write_entry_capacity")

# What a log or server-info states and what would be another after the option is changed.
_FOLLOWS: Mapping[str, tuple[str, ...]] = {
    "cuda_graph_max_bs_decode": ("cuda_graph_bs_decode", "capture_bs"),
    "cuda_graph_bs_decode": ("cuda_graph_max_bs_decode", "capture_bs"),
    "cuda_graph_config": ("cuda_graph_max_bs_decode", "cuda_graph_bs_decode", "capture_bs"),
    "max_running_requests": (
        "effective_max_running_requests",
        "req_to_token_pool_size",
        "capture_bs",
    ),
    "context_length": ("context_len", "max_req_input_len", "max_seq_len_per_req"),
    "max_total_tokens": ("pool_slot_count", "kv_tokens", "swa_kv_tokens"),
    "mem_fraction_static": ("pool_slot_count", "kv_tokens", "swa_kv_tokens"),
    "chunked_prefill_size": ("capture_num_tokens",),
    "kv_canary_sweep_interval": (),
}


def follows(name: str) -> tuple[str, ...]:
    """What a log or server-info states that option ``name`` decides."""
    return _FOLLOWS.get(name, ())


def with_change(given: Sequence[Given], name: str, value: Any, source: str) -> list[Given]:
    """Statements of the same launch with option ``name`` set to ``value``.

    Statements that the change would make untrue are dropped: the old value of the option, and what
    a log says that follows from it. What follows only through memory (T from C and G) is kept,
    because a log's value is nearer than a rule's. Other options of the launch stay, also those that
    beat the changed one: whoever sets the flag finds them there as well.

    Args:
        given: Statements of the launch.
        name: Canonical name of the option.
        value: New value; None removes the option.
        source: What the change is called in sources.
    """
    untrue = set() if _is_capped(given, name, value) else set(follows(name))
    dropped = {name, *_CANARY}
    kept = [
        _without_graph_size(item, name)
        for item in given
        if item.name not in dropped and not (item.name in untrue and _was_seen(item))
    ]
    if value is not None:
        kept.append(Given(name, value, source))
    return kept


def _was_seen(item: Given) -> bool:
    """A running server states it; nobody passed it."""
    return item.kind in ("fact", "resolved")


def _is_capped(given: Sequence[Given], name: str, value: Any) -> bool:
    """The server cut a larger request already, so asking for more changes nothing."""
    if name != "max_running_requests" or not isinstance(value, int):
        return False
    stated = {item.name: item.value for item in given if item.value is not None}
    workers = stated.get("attn_dp_size")
    if workers is None and stated.get("enable_dp_attention"):
        workers = stated.get("dp_size")
    asked, seen = stated.get(name), stated.get("effective_max_running_requests")
    if not isinstance(asked, int) or not isinstance(seen, int):
        return False
    share = workers if isinstance(workers, int) and workers > 0 else 1
    return asked // share > seen and value // share > seen


def _without_graph_size(item: Given, name: str) -> Given:
    """A server's resolved settings hold the size that the option would change."""
    if item.name != "cuda_graph_config" or not isinstance(item.value, dict) or not _was_seen(item):
        return item
    phase = {"cuda_graph_max_bs_decode": "decode", "cuda_graph_bs_decode": "decode"}.get(name)
    part = item.value.get(phase) if phase is not None else None
    if phase is None or not isinstance(part, dict):
        return item
    rest = {key: each for key, each in part.items() if key not in ("max_bs", "bs")}
    return dataclasses.replace(item, value={**item.value, phase: rest})
