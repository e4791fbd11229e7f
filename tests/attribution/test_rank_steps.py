"""Steps that one rank ran and another one did not, against recordings that end or begin apart."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcanary_cli.attribution.report import Report
from tests.attribution.events import decode, life, numbered, rank_head
from tests.attribution.helpers import diagnose

Event = dict[str, Any]


def _steps(order: str) -> list[list[Event]]:
    """One list of events for each step: the requests of ``order`` in turn, one decode each."""
    rows = {req: row for row, req in enumerate(sorted(set(order)), 1)}
    done: dict[str, int] = {}
    slot, steps = 0, []
    for step, req in enumerate(order, 1):
        at = done.get(req, 0)
        if not at:
            steps.append(life(req, [100, 101], [slot + 1, slot + 2], rows[req], step))
            slot, done[req] = slot + 2, 2
        else:
            steps.append(decode(req, 100 + at, slot + 1, rows[req], at, step))
            slot, done[req] = slot + 1, at + 1
    return steps


def _report(*ranks: list[Event]) -> Report:
    return Report.of([diagnose(rank_head(k), events) for k, events in enumerate(ranks)])


@settings(max_examples=40, deadline=None)
@given(
    before=st.text("ABC", min_size=1, max_size=5),
    req=st.sampled_from("ABC"),
    # Of the other two requests: what this one does behind it would differ, too.
    behind=st.lists(st.integers(0, 1), min_size=1, max_size=4),
    odd=st.integers(0, 1),
    more=st.integers(0, 3),
)
def test_a_step_that_only_one_rank_ran_is_told(
    before: str, req: str, behind: list[int], odd: int, more: int
) -> None:
    """Wherever the two recordings end, if both went on behind it."""
    missed, others = len(before), "ABC".replace(req, "")
    steps = _steps(before + req + "".join(others[k] for k in behind))
    ranks: list[list[Event]] = [[], []]
    for k in (0, 1):
        kept = [s for at, s in enumerate(steps) if k == odd or at != missed]
        last = len(kept) - (more if k == odd else 0)
        ranks[k] = numbered(e for s in kept[: max(last, missed + 2)] for e in s)
    report = _report(*ranks)
    (finding,) = report.divergences
    assert (finding.cls, finding.subtype) == ("rank_divergence", "request_set")
    assert (finding.first_bad_step, finding.victim) == (missed + 1, req)
    assert f"ran on rank {odd} and not on rank {1 - odd}" in finding.evidence[0]
    # The slots that its rows were given there are the first difference, and not what followed.
    allocs = [e["i"] for e in ranks[odd] if e["kind"] == "alloc" and e["owner"] == req]
    assert (finding.cause_event, finding.cause_rank) == (allocs[-1], odd)
    assert report.verdict == "corrupt"


@settings(max_examples=40, deadline=None)
@given(
    order=st.text("AB", min_size=3, max_size=8),
    windows=st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3), st.integers(0, 3)),
    running=st.booleans(),
)
def test_recordings_that_begin_and_end_apart_are_silent(
    order: str, windows: tuple[int, int, int, int], running: bool
) -> None:
    steps = _steps(order)
    ranks = []
    for k in (0, 1):
        first, less = windows[2 * k : 2 * k + 2]
        part = numbered(e for s in steps for e in s)
        starts = [sum(map(len, steps[:n])) for n in range(len(steps) + 1)]
        ranks.append(part[starts[min(first, len(steps))] : starts[max(0, len(steps) - less)]])
    heads = [rank_head(k) | ({"starts_mid_run": True} if running else {}) for k in (0, 1)]
    traces = [diagnose(h, e) for h, e in zip(heads, ranks, strict=True) if e]
    assert Report.of(traces).divergences == ()


@pytest.mark.parametrize("odd", [0, 1])
def test_a_step_that_was_lost_in_recording_is_no_difference(odd: int) -> None:
    steps = _steps("AABAB")
    whole = numbered(e for s in steps for e in s)
    begin = sum(map(len, steps[:3]))
    lossy = [e for e in whole if not begin <= e["i"] < begin + len(steps[3])]
    ranks = [whole, lossy] if odd else [lossy, whole]
    assert _report(*ranks).divergences == ()
