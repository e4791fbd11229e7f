"""Validation of ``forward`` events: array lengths by mode, ranges, trees and landed slots."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from kvcanary_cli.trace.columns import NULL_CODE, Table
from kvcanary_cli.trace.fields import printable
from kvcanary_cli.trace.problems import Range, check_int_list
from kvcanary_cli.trace.schema import WORKERS

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from kvcanary_cli.trace.bounds import Bounds
    from kvcanary_cli.trace.columns import Column
    from kvcanary_cli.trace.problems import KindView

#: Prefix and tokens of a row follow from these (SPEC_CANARY 1.8).
EXTEND_MODES = ("EXTEND", "MIXED", "SPLIT_PREFILL", "DLLM_EXTEND")
DRAFT_EXTEND = "DRAFT_EXTEND_V2"
MODES = ("DECODE", "IDLE", "TARGET_VERIFY", DRAFT_EXTEND, "PREBUILT", *EXTEND_MODES)
_ROW_FIELDS = (
    "req_pool_indices",
    "seq_lens",
    "namespaces",
    "extend_prefix_lens",
    "extend_seq_lens",
)
#: Pools that a worker's forward writes: the target's two, and a draft worker's own.
_LANDING_POOLS = {"target": ("full", "swa"), "draft": ("draft", "full")}
_LENGTHS = Range(0, (1 << 31) - 1, "a length")


def check_forwards(view: KindView, bounds: Bounds) -> None:
    """Check all forwards of a segment; a row that is malformed hides the rows after it."""
    view.check_names("forward_mode", MODES)
    view.check_names("worker", WORKERS)
    view.check_range("step", bounds.step)
    view.check_range("draft_step", bounds.natural)
    mode = _modes(view)
    bad = [
        view.check_same_length("reqs", *_ROW_FIELDS),
        view.check_same_length("positions", "input_ids", "out_cache_loc"),
        *_check_mode_fields(view, mode),
    ]
    _keep(view, min((b for b in bad if b is not None), default=None))
    mode = mode[: view.table.rows]

    rows = view.lengths("reqs")
    is_padding = _padding(view.table.columns["reqs"])
    row = _check_token_count(view, mode, rows)
    if row is not None:
        _keep(view, row)
        rows, mode = rows[:row], mode[:row]
        is_padding = is_padding[: int(rows.sum())]

    _check_rows(view, bounds, rows, is_padding, mode)
    _check_tokens(view, bounds, mode, rows, is_padding)
    _check_json(view, bounds, mode, rows)


def _keep(view: KindView, rows: int | None) -> None:
    """Look at the first ``rows`` rows only from now on."""
    if rows is not None:
        columns = {name: c.slice(0, rows) for name, c in view.table.columns.items()}
        view.table = Table(rows, columns)


def _modes(view: KindView) -> NDArray[np.int64]:
    """[forwards] index into ``MODES``; -1 for an unknown one, which is already reported."""
    codes, strings = view.table.columns["forward_mode"].values, view.segment.strings
    of_code = np.full(len(strings), -1, dtype=np.int64)
    for code in np.unique(codes).tolist():
        if strings[code] in MODES:
            of_code[code] = MODES.index(strings[code])
    modes: NDArray[np.int64] = of_code[codes]
    return modes


def _is(mode: NDArray[np.int64], *names: str) -> NDArray[np.bool_]:
    are: NDArray[np.bool_] = _among(names)[mode]
    return are


@cache
def _among(names: tuple[str, ...]) -> NDArray[np.bool_]:
    """By index into ``MODES``, and at -1 for an unknown one: whether it is one of ``names``."""
    return np.array([*(name in names for name in MODES), False])


def _check_mode_fields(view: KindView, mode: NDArray[np.int64]) -> list[int | None]:
    """Check which fields a mode needs and which it must not have; returns bad rows."""
    extends = _is(mode, *EXTEND_MODES)
    draft_extends = _is(mode, DRAFT_EXTEND)
    others = _is(mode, "DECODE", "IDLE", "TARGET_VERIFY")
    verifies = _is(mode, "TARGET_VERIFY")
    needs = [
        ("extend_prefix_lens", extends),
        ("extend_seq_lens", extends | draft_extends),
        ("draft_token_num", verifies),
    ]

    def say(text: str, name: str) -> Callable[[int], str]:
        return lambda row: f"in mode {MODES[mode[row]]} {text} '{name}'"

    bad = [
        view.fail_first(wants & ~view.present(name), say("lacks the field", name))
        for name, wants in needs
    ]
    bad += [
        view.fail_first(others & view.present(name), say("must not have", name))
        for name in ("extend_prefix_lens", "extend_seq_lens")
    ]
    bad.append(view.fail_first(mode < 0, lambda row: "has an unknown mode"))
    nums = view.column("draft_token_num")
    if nums is not None:
        values = nums.values
        wrong = view.present("draft_token_num") & ((values < 1) | (values >= 1 << 31))
        bad.append(
            view.fail_first(
                wrong,
                lambda row: f"field 'draft_token_num' is {values[row]}, expected at least 1",
            )
        )
    for name in ("extend_prefix_lens", "extend_seq_lens"):
        column = view.column(name)
        if column is not None and len(column.values):
            # Sums of these must not wrap around, so they are bounded before they are summed.
            out = (column.values < _LENGTHS.low) | (column.values > _LENGTHS.high)
            if out.any():
                at = int(out.argmax())
                view.fail_value(name, at, str(_LENGTHS))
                assert column.offsets is not None
                bad.append(int(np.searchsorted(column.offsets, at, side="right")) - 1)
    return bad


def _tokens_of_rows(view: KindView, mode: NDArray[np.int64]) -> NDArray[np.int64]:
    """[forwards] tokens that each row writes, where the event has no ``extend_seq_lens``."""
    tokens = view.lengths("positions")
    per_forward = np.ones(len(mode), dtype=np.int64)
    per_forward[_is(mode, "IDLE") & (tokens == 0)] = 0
    column = view.column("draft_token_num")
    if column is not None:
        verifies = _is(mode, "TARGET_VERIFY")
        per_forward[verifies] = column.values[verifies]
    return per_forward


def _tokens_per_row(
    view: KindView, mode: NDArray[np.int64], rows: NDArray[np.int64]
) -> NDArray[np.int64]:
    """[batch rows of all forwards] tokens that each row writes."""
    per_row = np.repeat(_tokens_of_rows(view, mode), rows)
    column = view.column("extend_seq_lens")
    if column is not None:
        # Modes without the field have none of its items, so the items line up with these rows.
        per_row[np.repeat(view.present("extend_seq_lens"), rows)] = column.values
    return per_row


def _sums(values: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sum of each run of ``values``; ``lengths`` gives the runs, which may be empty."""
    ends = np.cumsum(lengths)
    total = np.zeros(len(values) + 1, dtype=np.int64)
    np.cumsum(values, out=total[1:])
    sums: NDArray[np.int64] = total[ends] - total[ends - lengths]
    return sums


def _check_token_count(
    view: KindView, mode: NDArray[np.int64], rows: NDArray[np.int64]
) -> int | None:
    want = _tokens_of_rows(view, mode) * rows
    column = view.column("extend_seq_lens")
    if column is not None:
        given = view.present("extend_seq_lens")
        want[given] = _sums(column.values, view.lengths("extend_seq_lens"))[given]
    have = view.lengths("positions")
    # PREBUILT has no rule of its own; only the lengths that it states are held against it.
    free = _is(mode, "PREBUILT") & ~view.present("extend_seq_lens")
    return view.fail_first(
        (want != have) & ~free,
        lambda row: (
            f"in mode {MODES[mode[row]]} with {rows[row]} rows must have {want[row]} tokens, "
            f"found {have[row]} in 'positions'"
        ),
    )


def _check_rows(
    view: KindView,
    bounds: Bounds,
    rows: NDArray[np.int64],
    is_padding: NDArray[np.bool_],
    mode: NDArray[np.int64],
) -> None:
    view.check_range("req_pool_indices", bounds.row)
    _check_padding(view, is_padding)
    view.check_range("seq_lens", bounds.cells, ignore=is_padding)
    view.check_range("seq_lens", bounds.natural)
    seq_lens = view.table.columns["seq_lens"].values
    column = view.column("raw_bs")
    if column is not None:
        view.fail_first(
            view.present("raw_bs") & ((column.values < 0) | (column.values > rows)),
            lambda row: (
                f"field 'raw_bs' is {column.values[row]}, expected 0 to {rows[row]} "
                "(the rows of the batch)"
            ),
        )
    prefix, extend = view.column("extend_prefix_lens"), view.column("extend_seq_lens")
    if extend is None:
        return
    # The items line up with the batch rows of those forwards that have the field.
    extends = np.flatnonzero(np.repeat(view.present("extend_seq_lens"), rows))
    if not len(extends):
        return
    real = ~is_padding[extends]
    written = extend.values
    start = np.zeros(len(extends), dtype=np.int64)
    if prefix is not None:
        has_prefix = view.present("extend_prefix_lens")
        start[np.repeat(has_prefix, rows)[extends]] = prefix.values
    _fail_row(
        view,
        extends,
        (start + written > bounds.row_len) & real,
        rows,
        lambda at: (
            f"extends {start[at]} + {written[at]} tokens, expected at most {bounds.row_len} "
            "(pool.row_len; extend_prefix_lens + extend_seq_lens)"
        ),
    )
    draft_extends = _is(mode, DRAFT_EXTEND)
    if not draft_extends.any():
        return
    lens = seq_lens[extends]
    _fail_row(
        view,
        extends,
        np.repeat(draft_extends, rows)[extends] & (written > lens) & real,
        rows,
        lambda at: (
            f"in mode {DRAFT_EXTEND} has seq_lens {lens[at]} below its "
            f"extend_seq_lens {written[at]}"
        ),
    )


def _padding(reqs: Column) -> NDArray[np.bool_]:
    """[batch rows of all forwards] whether a row has no request."""
    if reqs.limits is not None and reqs.limits[0] > NULL_CODE:
        return np.zeros(len(reqs.values), dtype=np.bool_)
    padding: NDArray[np.bool_] = reqs.values == NULL_CODE
    return padding


def _check_padding(view: KindView, is_padding: NDArray[np.bool_]) -> None:
    """Check that padding rows have table row 0, and no others."""
    column, reqs = (view.table.columns[name] for name in ("req_pool_indices", "reqs"))
    least_row, least_req = ((c.limits or (NULL_CODE, 0))[0] for c in (column, reqs))
    if least_row > 0 and least_req > NULL_CODE:
        return
    mixed = is_padding != (column.values == 0)
    if mixed.any():
        at = int(mixed.argmax())
        view.fail_value(
            "req_pool_indices",
            at,
            "row 0 for a padding row (null request)" if is_padding[at] else "a row of a request",
        )


def _fail_row(
    view: KindView,
    batch_rows: NDArray[np.int64],
    bad: NDArray[np.bool_],
    rows: NDArray[np.int64],
    what: Callable[[int], str],
) -> None:
    """Report the first bad one of some batch rows.

    Args:
        view: The forwards.
        batch_rows: Which rows, counted through all forwards.
        bad: For each of them.
        rows: Rows of each forward.
        what: Gets the place among ``batch_rows``.
    """
    if bad.any():
        which = int(bad.argmax())
        at = int(batch_rows[which])
        ends = np.cumsum(rows)
        forward = int(np.searchsorted(ends, at, side="right"))
        item = at - int(ends[forward] - rows[forward])
        view.fail(forward, f"batch row {item} {what(which)}")


def _check_tokens(
    view: KindView,
    bounds: Bounds,
    mode: NDArray[np.int64],
    rows: NDArray[np.int64],
    is_padding: NDArray[np.bool_],
) -> None:
    padding_tokens = None
    if is_padding.any():
        per_row = _tokens_per_row(view, mode, rows)
        free = _is(mode, "PREBUILT") & ~view.present("extend_seq_lens")
        row_is_free = np.repeat(free, rows)
        token_is_free = np.repeat(free, view.lengths("positions"))
        padding_tokens = np.zeros(len(token_is_free), dtype=np.bool_)
        padding_tokens[~token_is_free] = np.repeat(is_padding[~row_is_free], per_row[~row_is_free])
    view.check_range("positions", bounds.position, ignore=padding_tokens)
    view.check_range("positions", bounds.natural)
    view.check_range("out_cache_loc", bounds.slot_or_unwritten)


def _check_json(
    view: KindView, bounds: Bounds, mode: NDArray[np.int64], rows: NDArray[np.int64]
) -> None:
    tokens = view.lengths("positions")
    for row, value in view.json_rows("landed"):
        worker = view.segment.text(view.kind, "worker", row) or WORKERS[0]
        _report(view, row, "landed", _landed_problem(value, int(tokens[row]), worker, bounds))
    for row, value in view.json_rows("row_as_read"):
        _report(view, row, "row_as_read", _row_as_read_problem(value, bounds))
    if view.column("tree") is not None:
        per_row = _tokens_per_row(view, mode, rows)
        first = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(rows)])
        for row, value in view.json_rows("tree"):
            lengths = per_row[first[row] : first[row + 1]]
            _report(view, row, "tree", _tree_problem(value, int(tokens[row]), lengths))


def _report(view: KindView, row: int, name: str, problem: str | None) -> None:
    if problem is not None:
        view.fail(row, f"field '{name}' {problem}")


def _landed_problem(value: Any, tokens: int, worker: str, bounds: Bounds) -> str | None:
    if not isinstance(value, dict) or not isinstance(value.get("pool"), str):
        return 'must be {"pool": NAME, "slots": [...]}'
    pool = value["pool"]
    pools = _LANDING_POOLS.get(worker, ())
    if pool not in pools:
        return (
            f"names pool '{printable(pool, 40)}', expected {' or '.join(pools)}: "
            f"a forward of worker {worker} writes nowhere else"
        )
    if pool == "swa" and not bounds.has_swa:
        return "names pool 'swa', which the header does not have (pool.swa_slots is 0)"
    slots = bounds.swa_slot if pool == "swa" else bounds.slot
    problem = check_int_list(value.get("slots"), Range(-1, slots.high, f"{slots.noun} or -1,"))
    if problem is None and len(value["slots"]) != tokens:
        return f"has {len(value['slots'])} slots, expected {tokens} (out_cache_loc)"
    return None if problem is None else f"slots: {problem}"


def _row_as_read_problem(value: Any, bounds: Bounds) -> str | None:
    if not isinstance(value, dict):
        return "must be an object of row numbers and slot lists"
    for key, slots in value.items():
        if not (key.isascii() and key.isdigit() and len(key) < 11):
            return f"has the key {key[:40]!r}, expected {bounds.row}"
        if not bounds.row.low <= int(key) <= bounds.row.high:
            return f"has the key {key}, expected {bounds.row}"
        problem = check_int_list(slots, bounds.slot)
        if problem is None and len(slots) > bounds.row_len:
            problem = f"has {len(slots)} slots, expected at most {bounds.row_len} (pool.row_len)"
        if problem is not None:
            return f"row {key}: {problem}"
    return None


def _tree_problem(value: Any, tokens: int, per_row: NDArray[np.int64]) -> str | None:
    if not isinstance(value, dict):
        return 'must be {"parent": [...]}'
    parent: Any = value.get("parent")
    problem = check_int_list(parent, Range(-1, (1 << 31) - 1, "an index"))
    if problem is not None:
        return f"parent: {problem}"
    if len(parent) != tokens:
        return f"parent has {len(parent)} items, expected {tokens} (one a token)"
    if int(per_row.sum()) != tokens:
        return None
    ends = np.cumsum(per_row)
    index = np.arange(tokens) - np.repeat(ends - per_row, per_row)
    bad = np.array(parent, dtype=np.int64) >= index
    if bad.any():
        at = int(bad.argmax())
        return (
            f"parent[{at}] is {parent[at]}, expected -1 or an earlier node of the row "
            f"(below {index[at]})"
        )
    return None
