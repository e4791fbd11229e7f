"""The comparison of two ranks against its definition, row by row."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvcanary_cli.attribution.ranks import RankRecord, compare_ranks

Rows = list[tuple[int, int, int, int]]

ROW = st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(0, 2), st.integers(1, 2))
ROWS = st.lists(ROW, max_size=12)


def _record(number: int, rows: Rows) -> RankRecord:
    record = RankRecord(number, 0)
    for event, (step, request, prefix, extend) in enumerate(rows):
        record.rows.extend((step, request, prefix, extend, event))
        record.names[request] = f"req-{request}"
    return record


def _first_divergence(a: Rows, b: Rows) -> tuple[int, int] | None:
    lengths = [
        {(step, req): (prefix, extend) for step, req, prefix, extend in rows} for rows in (a, b)
    ]
    shared = sorted(lengths[0].keys() & lengths[1].keys())
    return next((key for key in shared if lengths[0][key] != lengths[1][key]), None)


@given(ROWS, ROWS)
def test_the_first_row_that_differs_is_found(a: Rows, b: Rows) -> None:
    found = compare_ranks([_record(0, a), _record(1, b)])
    wanted = _first_divergence(a, b)
    assert [(f.first_bad_step, f.victim) for f in found] == (
        [] if wanted is None else [(wanted[0], f"req-{wanted[1]}")]
    )


@given(ROWS)
def test_equal_ranks_agree(rows: Rows) -> None:
    assert compare_ranks([_record(0, rows), _record(1, rows)]) == []


def test_ranks_of_other_replicas_need_not_agree() -> None:
    a, b = _record(0, [(1, 0, 1, 1)]), _record(1, [(1, 0, 2, 1)])
    assert compare_ranks([a, b])
    b.dp = 1
    assert compare_ranks([a, b]) == []
