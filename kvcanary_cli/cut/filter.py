"""The events of a cut's window as they are kept for some requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvcanary_cli.cut.requests import Selection
    from kvcanary_cli.trace.segment import Segment

    Event = dict[str, Any]

_DROPPED = frozenset({"publish", "unpublish"})
_BY_REQUEST = frozenset(
    {
        "history",
        "finish",
        "retract",
        "abort",
        "row_release",
        "match",
        "transfer_begin",
        "transfer_end",
        "transfer_fail",
        "deferred_write",
        "launch",
        "accept",
        "future_put",
        "future_get",
    }
)
_ROW_FIELDS = (
    "reqs",
    "req_pool_indices",
    "seq_lens",
    "extend_prefix_lens",
    "extend_seq_lens",
    "namespaces",
)
_TOKEN_FIELDS = ("input_ids", "positions", "out_cache_loc")


def kept_event(segment: Segment, k: int, selection: Selection) -> Event | None:
    """Event ``k`` as it is kept for the selected requests, None = not at all."""
    kind = segment.kind_of(k)
    row = int(segment.row[k])
    if kind in _DROPPED:
        return None
    if kind in _BY_REQUEST:
        return segment.event(k) if selection.keeps(segment.text(kind, "req", row)) else None
    if kind == "map":
        wanted = segment.tables["map"].get_int("row", row) in selection.rows
        return segment.event(k) if wanted else None
    event = segment.event(k)
    match kind:
        case "forward":
            return _forward(event, selection)
        case "own":
            # An entry without its writers must not be swept.
            event.pop("entry", None)
        case "kv_hash" | "sidecar_hash":
            return _hashes(event, selection)
        case "copy":
            dst = np.array(event["dst"], dtype=np.int64)
            return event if selection.needs(event.get("dst_pool"), dst).any() else None
        case "fork":
            both = (event["parent"], event["child"])
            return event if selection.reqs.intersection(both) else None
    return event


def _hashes(event: Event, selection: Selection) -> Event | None:
    if event["phase"] == "sweep":
        # The fingerprints are worth keeping, the sweep is not: writers of its slots are left out.
        event["phase"] = "before"
    slots = np.array(event["slots"], dtype=np.int64)
    kept = np.flatnonzero(selection.needs(event.get("pool"), slots)).tolist()
    if not kept:
        return None
    for name in ("slots", "hash"):
        event[name] = [event[name][at] for at in kept]
    return event


def _forward(event: Event, selection: Selection) -> Event | None:
    reqs: list[str | None] = event["reqs"]
    if not any(req in selection.reqs for req in reqs if req is not None):
        return None
    rows = np.array([req is None or req in selection.reqs for req in reqs], dtype=np.bool_)
    per_row = _tokens_per_row(event)
    if rows.all() or sum(per_row) != len(event["positions"]):
        return event
    tokens = np.repeat(rows, per_row)
    for name in _ROW_FIELDS:
        if name in event:
            event[name] = _picked(event[name], rows)
    for name in _TOKEN_FIELDS:
        if name in event:
            event[name] = _picked(event[name], tokens)
    if "raw_bs" in event:
        event["raw_bs"] = int(rows[: event["raw_bs"]].sum())
    if "landed" in event:
        event["landed"]["slots"] = _picked(event["landed"]["slots"], tokens)
    if "tree" in event:
        # Indices are within a row, so that they stay what they are.
        event["tree"]["parent"] = _picked(event["tree"]["parent"], tokens)
    if "row_as_read" in event:
        mine = {str(row) for row in event["req_pool_indices"]}
        event["row_as_read"] = {
            row: cells for row, cells in event["row_as_read"].items() if str(int(row)) in mine
        }
        if not event["row_as_read"]:
            del event["row_as_read"]
    return event


def _picked(values: list[Any], mask: NDArray[np.bool_]) -> list[Any]:
    return [values[at] for at in np.flatnonzero(mask).tolist()]


def _tokens_per_row(event: Event) -> list[int]:
    if "extend_seq_lens" in event:
        lens: list[int] = event["extend_seq_lens"]
        return lens
    count = len(event["reqs"])
    match event["forward_mode"]:
        case "TARGET_VERIFY":
            return [event["draft_token_num"]] * count
        case "IDLE" if not event["positions"]:
            return [0] * count
        case _:
            return [1] * count
