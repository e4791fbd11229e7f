"""Validation of every kind of event but ``forward``: ranges and array lengths."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvcanary_cli.trace.problems import OutOfRange, Range, check_int_list
from kvcanary_cli.trace.schema import PHASES, WORKERS

if TYPE_CHECKING:
    from kvcanary_cli.trace.bounds import Bounds
    from kvcanary_cli.trace.problems import KindView

#: Kind to (field, attribute of ``Bounds``).
_RANGES: dict[str, tuple[tuple[str, str], ...]] = {
    "map": (("row", "row"), ("start", "position"), ("slots", "slot")),
    "alloc": (("slots", "slot"), ("shared", "slot")),
    "free": (("slots", "slot"),),
    "own": (("slots", "slot"),),
    "history": (("start", "history_start"),),
    "row_release": (("row", "row"),),
    "publish": (("slots", "slot"), ("start", "position"), ("prev_slot", "slot_or_unwritten")),
    "unpublish": (("slots", "slot"),),
    "match": (("slots", "slot"),),
    "copy": (("via_row", "row"),),
    "transfer_begin": (("slots", "any_device_slot"),),
    "transfer_end": (("slots", "any_device_slot"),),
    "transfer_fail": (("slots", "any_device_slot"),),
    "deferred_write": (("pos", "position"),),
    "lut": (("full", "slot"), ("swa", "swa_slot")),
    "launch": (("slots", "slot"), ("row", "row")),
    "accept": (("nodes", "natural"), ("committed_len", "natural")),
    "fork": (("shared", "slot"),),
}
#: Kind to lists that must be equally long, the first one with each other one.
_SAME_LENGTH: dict[str, tuple[str, ...]] = {
    "lut": ("full", "swa"),
    "kv_hash": ("slots", "hash"),
    "sidecar_hash": ("slots", "hash"),
    "canary_rows": (
        *("slots", "token", "position", "prev_hash", "real_kv_hash"),
        *("writer", "writer_step", "writer_event", "writer_position", "namespace"),
    ),
    "map": ("slots", "at"),
    "alloc": ("slots", "at"),
    "free": ("slots", "at"),
}
_NAMES: dict[str, tuple[str, tuple[str, ...]]] = {
    "kv_hash": ("phase", PHASES),
    "sidecar_hash": ("phase", PHASES),
    "canary_rows": ("worker", WORKERS),
}
#: Kinds whose slots belong to the pool that the event names.
_POOLED = (
    ("kv_hash", "slots", "pool"),
    ("sidecar_hash", "slots", "pool"),
    ("canary_rows", "slots", "pool"),
    ("copy", "dst", "dst_pool"),
)


def check_events(view: KindView, bounds: Bounds) -> None:
    """Check all events of one kind."""
    for name, attribute in _RANGES.get(view.kind, ()):
        view.check_range(name, getattr(bounds, attribute))
    same = _SAME_LENGTH.get(view.kind)
    if same is not None:
        view.check_same_length(same[0], *same[1:])
    names = _NAMES.get(view.kind)
    if names is not None:
        view.check_names(*names)
    for kind, field_name, pool_field in _POOLED:
        if kind == view.kind:
            _check_pooled(view, field_name, pool_field, bounds)
    match view.kind:
        case "map":
            _check_map(view, bounds)
        case "accept":
            _check_accept(view)
        case "copy":
            _check_copy(view, bounds)
        case "fork":
            _check_fork(view, bounds)


def _check_map(view: KindView, bounds: Bounds) -> None:
    start = view.table.columns["start"].values
    count = view.lengths("slots")
    if int(start.max()) + int(count.max()) <= bounds.row_len:
        return
    view.fail_first(
        count > bounds.row_len - start,
        lambda row: (
            f"writes cells {start[row]} to {int(start[row]) + int(count[row]) - 1}, "
            f"expected them below {bounds.row_len} (pool.row_len)"
        ),
        lambda row: OutOfRange(
            "slots", bounds.row_len - int(start[row]), bounds.row_len, str(bounds.position)
        ),
    )


def _check_accept(view: KindView) -> None:
    nodes, tokens = view.lengths("nodes"), view.lengths("tokens")
    # One token more than nodes: the one that the target model sampled after the last node.
    view.fail_first(
        (tokens != nodes) & (tokens != nodes + 1),
        lambda row: (
            f"has {nodes[row]} nodes and {tokens[row]} tokens, expected as many tokens, or one more"
        ),
    )


def _check_pooled(view: KindView, name: str, pool_field: str, bounds: Bounds) -> None:
    column = view.column(name)
    if column is None:
        return
    pools = view.column(pool_field)
    if pools is None:
        view.check_range(name, bounds.slot)
        return
    have = view.present(pool_field)
    codes = np.where(have, pools.values, -1)
    lengths = view.lengths(name)
    for code in np.unique(codes).tolist():
        bounds_here = bounds.slot_in(None if code < 0 else view.segment.strings[code])
        others = np.repeat(codes != code, lengths)
        if bounds_here is not None:
            view.check_range(name, bounds_here, ignore=others)


def _check_copy(view: KindView, bounds: Bounds) -> None:
    lengths = view.lengths("dst")
    for row, src in view.json_rows("src"):
        pool = bounds.slot_in(view.segment.text(view.kind, "src_pool", row))
        problem = _source_problem(src, int(lengths[row]), pool, bounds)
        if problem is not None:
            view.fail(row, f"field 'src' {problem}")


def _source_problem(src: Any, count: int, pool: Range | None, bounds: Bounds) -> str | None:
    items = src
    if isinstance(src, dict):
        if not isinstance(src.get("req"), str):
            return 'must be a list of slots or {"req": R, "pos": [...]}'
        items = src.get("pos")
        problem = check_int_list(items, bounds.position)
    else:
        problem = check_int_list(items, pool)
    if problem is None and len(items) != count:
        return f"has {len(items)} items, expected {count} ('dst')"
    return problem


def _check_fork(view: KindView, bounds: Bounds) -> None:
    for row, pairs in view.json_rows("copy_on_write"):
        if not isinstance(pairs, list):
            view.fail(row, "field 'copy_on_write' must be a list of [src, dst] pairs")
            continue
        for k, pair in enumerate(pairs):
            problem = check_int_list(pair, bounds.slot)
            if problem is None and len(pair) != 2:
                problem = f"has {len(pair)} slots, expected [src, dst]"
            if problem is not None:
                view.fail(row, f"field 'copy_on_write'[{k}] {problem}")
                break
