"""The comparison of two ranks against its definition, row by row."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvcanary_cli.attribution.rank_compare import compare_ranks
from kvcanary_cli.attribution.ranks import RankRecord

Rows = list[tuple[int, int, int, int, int]]

ROW = st.tuples(
    st.integers(0, 5), st.integers(0, 3), st.integers(0, 2), st.integers(1, 2), st.integers(0, 2)
)
ROWS = st.lists(ROW, max_size=12)


def _record(number: int, rows: Rows) -> RankRecord:
    record = RankRecord(number, 0)
    for event, (step, request, prefix, extend, tokens) in enumerate(rows):
        record.rows.extend((step, request, prefix, extend, event, tokens))
        record.names[request] = f"req-{request}"
    return record


def _first_divergence(a: Rows, b: Rows) -> tuple[int, int, str] | None:
    last = [{(step, req): rest for step, req, *rest in rows} for rows in (a, b)]
    found = []
    steps = [{step for step, _req in each} for each in last]
    for step in steps[0] | steps[1] if all(steps) else ():
        # What stands before the later beginning, or behind the earlier end, may be a part only.
        begin, end = max(map(min, steps)), min(map(max, steps))
        whole = begin < step < end
        whole |= step == begin <= end and min(steps[0]) == min(steps[1])
        whole |= step == end >= begin and max(steps[0]) == max(steps[1])
        if begin == end:
            whole = step == begin and min(steps[0]) == min(steps[1]) and max(steps[0]) == end
            whole &= max(steps[1]) == end
        for k in (0, 1):
            lone = {req for s, req in last[k] if s == step and (s, req) not in last[1 - k]}
            if whole and lone:
                found.append((step, 0, k, min(lone), "request_set"))
    for step, req in last[0].keys() & last[1].keys():
        (p, e, t), (q, f, u) = last[0][step, req], last[1][step, req]
        name = "prefix_len" if p != q else "extend_len" if e != f else "fed_tokens"
        if (p, e, t) != (q, f, u):
            found.append((step, 1, 0, req, name))
    if not found:
        return None
    step, _order, _rank, req, name = min(found)
    return step, req, name


@given(ROWS, ROWS)
def test_the_first_row_that_differs_is_found(a: Rows, b: Rows) -> None:
    found = compare_ranks([_record(0, a), _record(1, b)])
    wanted = _first_divergence(a, b)
    assert [(f.first_bad_step, f.victim, f.subtype) for f in found] == (
        [] if wanted is None else [(wanted[0], f"req-{wanted[1]}", wanted[2])]
    )


@given(ROWS)
def test_equal_ranks_agree(rows: Rows) -> None:
    assert compare_ranks([_record(0, rows), _record(1, rows)]) == []


@given(ROWS)
def test_tokens_salted_with_two_keys_are_not_compared(rows: Rows) -> None:
    a, b = _record(0, rows), _record(1, [(*row[:4], row[4] + 100) for row in rows])
    a.raw_tokens = b.raw_tokens = False
    assert compare_ranks([a, b]) == []


@given(ROWS, ROWS)
def test_a_gap_hides_which_requests_ran(a: Rows, b: Rows) -> None:
    one, other = _record(0, a), _record(1, b)
    one.lost = True
    assert "request_set" not in [f.subtype for f in compare_ranks([one, other])]


def test_ranks_of_other_replicas_need_not_agree() -> None:
    a, b = _record(0, [(1, 0, 1, 1, 0)]), _record(1, [(1, 0, 2, 1, 0)])
    assert compare_ranks([a, b])
    b.dp = 1
    assert compare_ranks([a, b]) == []
