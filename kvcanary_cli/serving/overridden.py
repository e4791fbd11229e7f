"""What our own options make untrue of a log: ``--set`` beats everything, whatever it is called.

A log states many values under the name of the value in effect (``kv_tokens``), while the user sets
the option behind it (``max_total_tokens``). An override of the one drops the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcanary_cli.serving.read_raw import Notice

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvcanary_cli.serving.values import Given

_ROWS = ("canary_write_req_capacity", "canary_write_entry_capacity")
_ENTRIES = ("canary_write_entry_capacity",)
_SLOTS = ("canary_verify_capacity",)
_RUNNING = ("effective_max_running_requests", "req_to_token_pool_size", "capture_bs")
_TOKENS = ("kv_tokens", "swa_kv_tokens")

_OUTDATED: Mapping[str, tuple[str, ...]] = {
    "max_running_requests": (*_RUNNING, *_ROWS),
    "effective_max_running_requests": ("req_to_token_pool_size", "capture_bs", *_ROWS),
    "req_to_token_pool_size": ("capture_bs", *_ROWS),
    "cuda_graph_max_bs_decode": ("cuda_graph_bs_decode", "capture_bs", *_ROWS),
    "cuda_graph_bs_decode": ("cuda_graph_max_bs_decode", "capture_bs", *_ROWS),
    "cuda_graph_config": (
        "cuda_graph_max_bs_decode",
        "cuda_graph_bs_decode",
        "capture_bs",
        "capture_num_tokens",
        *_ROWS,
    ),
    "cuda_graph_max_bs": ("capture_bs", *_ROWS),
    "speculative_algorithm": _ENTRIES,
    "speculative_num_draft_tokens": _ENTRIES,
    "max_prefill_tokens": _ENTRIES,
    "chunked_prefill_size": ("capture_num_tokens", *_ENTRIES),
    "context_length": ("context_len", "max_req_input_len", "max_seq_len_per_req"),
    "context_len": ("max_req_input_len", "max_seq_len_per_req"),
    "max_total_tokens": (*_TOKENS, "pool_slot_count", "max_req_input_len", *_SLOTS),
    "kv_tokens": ("swa_kv_tokens", "max_req_input_len", *_SLOTS),
    "pool_slot_count": (*_TOKENS, "max_req_input_len", *_SLOTS),
    "mem_fraction_static": (*_TOKENS, *_SLOTS),
}
"""Option or value that is set, and statements of a log that then no longer hold."""

_IN_EFFECT: Mapping[str, str] = {
    "max_running_requests": "effective_max_running_requests",
    "context_length": "context_len",
    "max_total_tokens": "kv_tokens",
}
"""Options whose value in effect a log states under another name."""


def without_outdated(given: Sequence[Given], overrides: Sequence[Given]) -> list[Given]:
    """``given`` without what the overrides make untrue.

    Args:
        given: Statements of the sources.
        overrides: Statements of our own options.
    """
    set_by_us = {one.name for one in overrides}
    dropped = {name for one in overrides for name in _OUTDATED.get(one.name, ())} - set_by_us
    return [one for one in given if one.name not in dropped]


def note_values_in_effect(
    arguments: Mapping[str, Given], stated: Sequence[Given], notices: list[Notice]
) -> None:
    """Say where a log has another value in effect than an argument of another source asks for.

    Args:
        arguments: Last argument of each name, of the sources up to here.
        stated: What this source states outright.
        notices: Where to add.
    """
    dump = {one.name: one for one in stated if one.kind == "resolved"}
    facts = {one.name: one for one in stated if one.kind == "fact"}
    workers = _workers(arguments, dump)
    for name in ("max_running_requests", "context_length", "max_total_tokens"):
        asked, found = arguments.get(name), facts.get(_IN_EFFECT[name])
        shown = dump.get(name)
        if asked is None or (shown is not None and shown.value == asked.value):
            # What the server made of the same argument is no contradiction.
            continue
        found = found or shown
        if found is None or found.value is None or found.value in _shares(asked.value, workers):
            continue
        if name == "max_total_tokens" and shown is None and _is_at_most(found, asked):
            continue
        notices.append(_counts(asked, found))
    chunk, resolved = arguments.get("chunked_prefill_size"), dump.get("chunked_prefill_size")
    if chunk is not None and resolved is not None:
        value = -1 if resolved.value is None else resolved.value
        if value not in _shares(chunk.value, workers):
            notices.append(_counts(chunk, resolved))


def _workers(arguments: Mapping[str, Given], dump: Mapping[str, Given]) -> set[int]:
    names = ("dp_size", "attn_dp_size")
    found = [source[name].value for source in (arguments, dump) for name in names if name in source]
    return {1, *(value for value in found if isinstance(value, int) and value > 0)}


def _shares(value: object, workers: set[int]) -> set[object]:
    """The value as it is, and its share for one of several workers."""
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        return {value}
    return {value, *(max(1, value // each) for each in workers)}


def _is_at_most(found: Given, asked: Given) -> bool:
    return (
        isinstance(found.value, int) and isinstance(asked.value, int) and found.value <= asked.value
    )


def _counts(asked: Given, found: Given) -> Notice:
    return Notice(
        f"{asked.name} is {asked.value!r} at {asked.source}, but {found.value!r} is in effect "
        "here, which counts",
        found.place,
    )
