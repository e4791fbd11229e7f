"""Events that are applied together leave the ledger as one by one, broken rules included."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcanary_cli.attribution import event_runs
from kvcanary_cli.attribution.follow import Follower
from kvcanary_cli.trace.header import parse_header
from kvcanary_cli.trace.segment import SegmentBuilder

_SLOTS, _ROWS, _ROW_LEN = 24, 4, 16
_HEADER = {
    "kind": "header",
    "format": "kvcanary-trace",
    "version": 1,
    "engine": {"name": "sglang", "version": "0.5.23"},
    "rank": {"tp": 0, "tp_size": 1, "pp": 0, "pp_size": 1, "dp": 0, "dp_size": 1},
    "pool": {"slots": _SLOTS, "page_size": 1, "rows": _ROWS, "row_len": _ROW_LEN},
    "chain": "splitmix64-mix3",
    "tokens": "raw",
    "records": ["forward", "map", "alloc", "request"],
}
_OWNERS = st.sampled_from(["a", "b", "c", "tree"])
_LISTS = st.lists(st.integers(1, _SLOTS), min_size=1, max_size=3)
_ALLOC = st.fixed_dictionaries({"kind": st.just("alloc"), "owner": _OWNERS, "slots": _LISTS})
_FREE = st.fixed_dictionaries({"kind": st.just("free"), "owner": _OWNERS, "slots": _LISTS})
_OWN = st.fixed_dictionaries(
    {"kind": st.just("own"), "from": _OWNERS, "owner": _OWNERS, "slots": _LISTS}
)
_MAP = st.fixed_dictionaries(
    {
        "kind": st.just("map"),
        "row": st.integers(1, _ROWS - 1),
        "start": st.integers(0, _ROW_LEN - 3),
        "slots": st.lists(st.integers(1, _SLOTS), max_size=3),
    }
)
_FINISH = st.fixed_dictionaries({"kind": st.just("finish"), "req": st.sampled_from("abc")})
_SHARED = st.fixed_dictionaries(
    {"kind": st.just("alloc"), "owner": _OWNERS, "slots": _LISTS, "shared": _LISTS}
)


@st.composite
def _fresh_allocs(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Allocs of different slots, as a decode step has them."""
    slots = draw(st.lists(st.integers(1, _SLOTS), min_size=4, max_size=8, unique=True))
    return [{"kind": "alloc", "owner": draw(_OWNERS), "slots": [slot]} for slot in slots]


_RUNS = st.one_of(
    _fresh_allocs(),
    st.lists(_ALLOC, min_size=1, max_size=6),
    st.lists(_MAP, min_size=1, max_size=8),
    st.lists(st.one_of(_FREE, _OWN, _FINISH, _SHARED), min_size=1, max_size=3),
    st.just([{"kind": "free", "owner": "a", "slots": list(range(1, _SLOTS + 1))}]),
)


def _followed(events: list[dict[str, Any]], cut: int, least_run: int) -> Follower:
    """The ledger after two segments of events."""
    follower = Follower(parse_header(dict(_HEADER), "trace"))
    with mock.patch.object(event_runs, "_LEAST_RUN", least_run):
        for part in (events[:cut], events[cut:]):
            builder = SegmentBuilder()
            for event in part:
                builder.append(event)
            segment = builder.finish()
            for k in range(len(segment)):
                follower.event(segment, k, segment.kind_of(k), int(segment.row[k]))
    return follower


def _rows(follower: Follower) -> list[list[int]]:
    rows = [follower.context.row(row) for row in range(_ROWS)]
    return [[row.mapped_at(position) for position in range(_ROW_LEN)] for row in rows]


@settings(max_examples=150, deadline=None)
@given(runs=st.lists(_RUNS, max_size=8), data=st.data())
def test_runs_and_single_events_leave_the_same_ledger(
    runs: list[list[dict[str, Any]]], data: st.DataObject
) -> None:
    events = [{**event, "i": i} for i, event in enumerate(e for run in runs for e in run)]
    cut = data.draw(st.integers(0, len(events)))
    together, single = (_followed(events, cut, least) for least in (2, 1 << 30))
    assert together.rules.findings == single.rules.findings
    codes = range(8)
    last, expected = (f.rules.last_alloc for f in (together, single))
    assert [last.get(code, -1) for code in codes] == [expected.get(code, -1) for code in codes]
    for name, array in vars(single.rules.state).items():
        if isinstance(array, np.ndarray):
            np.testing.assert_array_equal(getattr(together.rules.state, name), array, name)
    assert together.context.ended == single.context.ended
    assert _rows(together) == _rows(single)


def test_a_decode_step_is_applied_together() -> None:
    """The allocs and cells of a step take one call each, whoever they belong to."""
    events: list[dict[str, Any]] = []
    for step in range(3):
        for n in range(5):
            slot = 1 + 5 * step + n
            events.append({"kind": "alloc", "owner": f"r{n}", "slots": [slot], "i": len(events)})
    with mock.patch.object(Follower, "_on_alloc") as one_by_one:
        follower = _followed(events, len(events), 4)
    one_by_one.assert_not_called()
    assert follower.rules.state.alloc_event[15] == 14
    assert follower.rules.last_alloc.get(follower.names.code("r4"), -1) == 14


@pytest.mark.parametrize("least", [2, 1 << 30])
@pytest.mark.parametrize("keeps", [True, False])
def test_who_begins_again_may_hang_on_an_alloc_of_the_same_run(least: int, keeps: bool) -> None:
    """An ended request whose last slot goes to another one first has none when it is named."""
    lost = 14 if not keeps else 15
    kinds: list[dict[str, Any]] = [
        {"kind": "alloc", "owner": "c", "slots": [14]},
        {"kind": "alloc", "owner": "b", "slots": [3]},
        {"kind": "finish", "req": "c"},
        {"kind": "alloc", "owner": "a", "slots": [lost]},
        {"kind": "alloc", "owner": "c", "slots": [3]},
    ]
    events = [{**event, "i": i} for i, event in enumerate(kinds)]
    follower = _followed(events, len(events), least)
    assert bool(follower.names.former("c")) is not keeps
    assert bool(follower.context.ended) is not keeps
