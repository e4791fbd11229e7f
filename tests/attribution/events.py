"""Headers and events for small traces that are written by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

Event = dict[str, Any]

HEAD: Event = {
    "kind": "header",
    "format": "kvcanary-trace",
    "version": 1,
    "engine": {"name": "x"},
    "pool": {"slots": 64, "rows": 9, "row_len": 64},
    "records": ["forward", "map", "alloc", "request", "history", "transfer"],
}


def rank_head(rank: int, tokens: str = "raw") -> Event:
    """The header of one of two tensor-parallel ranks, with a prefix cache."""
    return {
        "kind": "header",
        "format": "kvcanary-trace",
        "version": 1,
        "engine": {"name": "synthetic"},
        "rank": {"tp": rank, "tp_size": 2, "pp": 0, "pp_size": 1, "dp": 0, "dp_size": 1},
        "pool": {"slots": 30, "rows": 9, "row_len": 64},
        "chain": "splitmix64-mix3",
        "tokens": tokens,
        "records": ["forward", "map", "alloc", "request", "history", "prefix"],
    }


def extend(
    step: int, req: str, row: int, prefix: int, tokens: list[int], slots: list[int]
) -> Event:
    """A forward of one request that writes ``tokens`` to ``slots`` behind ``prefix`` positions."""
    return {
        "kind": "forward",
        "step": step,
        "forward_mode": "EXTEND",
        "reqs": [req],
        "req_pool_indices": [row],
        "seq_lens": [prefix + len(tokens)],
        "input_ids": tokens,
        "positions": list(range(prefix, prefix + len(tokens))),
        "out_cache_loc": slots,
        "extend_prefix_lens": [prefix],
        "extend_seq_lens": [len(tokens)],
    }


def life(req: str, ids: list[int], slots: list[int], row: int, step: int) -> list[Event]:
    """A request's prompt: history, slots, cells, and the forward that writes it."""
    return [
        {"kind": "history", "req": req, "start": 0, "ids": ids},
        {"kind": "alloc", "owner": req, "slots": slots},
        {"kind": "map", "row": row, "start": 0, "slots": slots},
        extend(step, req, row, 0, ids, slots),
    ]


def decode(req: str, token: int, slot: int, row: int, position: int, step: int) -> list[Event]:
    """One decode of a request, which reads everything before ``position``."""
    return [
        {"kind": "history", "req": req, "start": position, "ids": [token]},
        {"kind": "alloc", "owner": req, "slots": [slot]},
        {"kind": "map", "row": row, "start": position, "slots": [slot]},
        decode_step(step, req, row, token, position, slot),
    ]


def decode_step(step: int, req: str, row: int, token: int, position: int, slot: int) -> Event:
    """The forward of one decode."""
    return {
        "kind": "forward",
        "step": step,
        "forward_mode": "DECODE",
        "reqs": [req],
        "req_pool_indices": [row],
        "seq_lens": [position + 1],
        "input_ids": [token],
        "positions": [position],
        "out_cache_loc": [slot],
    }


def numbered(events: Iterable[Event]) -> list[Event]:
    """The events, counted from 0."""
    return [event | {"i": i} for i, event in enumerate(events)]


def index_of(events: list[Event], kind: str, **fields: object) -> int:
    """``i`` of the first event of ``kind`` with these fields."""
    return next(
        int(e["i"])
        for e in events
        if e["kind"] == kind and all(e.get(name) == value for name, value in fields.items())
    )
