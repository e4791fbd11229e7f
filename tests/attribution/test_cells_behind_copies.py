"""Cells and matches that lead to the wrong one of slots which a copy filled rightly."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.attribution.events import HEAD, decode, index_of, life, numbered
from tests.attribution.helpers import diagnose

Event = dict[str, Any]

_COPIES = ["rdma", "h2d", "load", "cow"]


def _arrival(n: int, via: str, *, shift: int = 0, mapped: str = "before") -> list[Event]:
    """A copy fills slots 1 to ``n`` for A; ``shift``: with the positions of their neighbours."""
    pos = [(p + shift) % n for p in range(n)]
    copy: Event = {"kind": "copy", "src": {"req": "A", "pos": pos}, "dst": list(range(1, n + 1))}
    cells: Event = {"kind": "map", "row": 1, "start": 0, "slots": list(range(1, n + 1))}
    return [
        {"kind": "history", "req": "A", "start": 0, "ids": list(range(101, 101 + n))},
        {"kind": "alloc", "owner": "A", "slots": list(range(1, n + 1))},
        *([cells] if mapped == "before" else []),
        copy | {"via": via, "by": "A"},
        *([cells] if mapped == "behind" else []),
    ]


def _set(at: int, slot: int) -> Event:
    return {"kind": "map", "row": 1, "start": at, "slots": [slot]}


@pytest.mark.parametrize("via", _COPIES)
@pytest.mark.parametrize("mapped", ["before", "behind"])
@pytest.mark.parametrize("read", [True, False])
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_a_cell_that_was_set_behind_a_right_copy_is_the_maps_fault(
    via: str, mapped: str, read: bool, data: st.DataObject
) -> None:
    n = data.draw(st.integers(2, 6), label="n")
    at = data.draw(st.integers(0, n - 1), label="cell")
    other = data.draw(st.integers(0, n - 1).filter(lambda p: p != at), label="names")
    swap = data.draw(st.booleans(), label="swap")
    first = n + int(read)
    events = numbered(
        [
            *_arrival(n, via, mapped=mapped),
            *(decode("A", 201, n + 1, row=1, position=n, step=1) if read else []),
            _set(at, other + 1),
            *([_set(other, at + 1)] if swap else []),
            *decode("A", 202, first + 1, row=1, position=first, step=2),
            *decode("A", 203, first + 2, row=1, position=first + 1, step=3),
        ]
    )
    (finding,) = diagnose(HEAD, events).findings
    cause = index_of(events, "map", start=at, slots=[other + 1])
    assert (finding.cls, finding.subtype) == ("stale_mapping", "cells_rewritten")
    assert finding.slots == ({at + 1, other + 1} if swap else {other + 1})
    # Two cells of one reader that were set one after the other are one fault: the first one met
    # gives the event.
    both = {cause, cause + 1} if swap else {cause}
    assert finding.cause_event in both
    assert (finding.victim, finding.first_bad_step) == ("A", 2)
    assert finding.confidence == ("certain" if read else "probable")
    assert [r.cls for r in finding.ruled_out] == ["use_after_free", "transfer_mismatch"]


@pytest.mark.parametrize("via", _COPIES)
@pytest.mark.parametrize("mapped", ["before", "behind"])
@pytest.mark.parametrize("shift", [1, 2])
def test_a_copy_that_brought_the_wrong_positions_stays_the_copys_fault(
    via: str, mapped: str, shift: int
) -> None:
    events = numbered(
        [
            *_arrival(4, via, shift=shift, mapped=mapped),
            *decode("A", 201, 5, row=1, position=4, step=1),
            _set(1, 2),
            *decode("A", 202, 6, row=1, position=5, step=2),
        ]
    )
    (finding,) = diagnose(HEAD, events).findings
    assert (finding.cls, finding.subtype) == ("transfer_mismatch", "misaligned_blocks")
    assert finding.cause_event == index_of(events, "copy")
    assert finding.first_bad_step == 1


@pytest.mark.parametrize("read", [True, False])
def test_a_match_that_serves_the_wrong_slots_of_a_right_copy(read: bool) -> None:
    """What X had loaded and read soundly is not what B asked the cache for."""
    copy: Event = {"kind": "copy", "src": {"req": "X", "pos": [0, 1]}, "dst": [1, 2]}
    own: Event = {"kind": "own", "from": "X", "owner": "tree", "slots": [1, 2], "entry": "E"}
    events = numbered(
        [
            {"kind": "history", "req": "X", "start": 0, "ids": [101, 102]},
            {"kind": "alloc", "owner": "X", "slots": [1, 2]},
            {"kind": "map", "row": 1, "start": 0, "slots": [1, 2]},
            copy | {"via": "load", "by": "X"},
            *(decode("X", 103, 3, row=1, position=2, step=1) if read else []),
            own,
            {"kind": "history", "req": "B", "start": 0, "ids": [301, 302]},
            {"kind": "match", "req": "B", "entry": "E", "slots": [1, 2]},
            {"kind": "map", "row": 2, "start": 0, "slots": [1, 2]},
            *decode("B", 303, 4, row=2, position=2, step=2),
        ]
    )
    head = HEAD | {"records": [*HEAD["records"], "prefix"]}
    (finding,) = diagnose(head, events).findings
    if read:
        assert (finding.cls, finding.subtype) == ("prefix_index", "wrong_entry")
        assert finding.cause_event == index_of(events, "match")
    else:
        # Whether the copy or the match is wrong is not shown.
        assert finding.cls == "transfer_mismatch"
    assert (finding.victim, finding.slots) == ("B", {1, 2})


def test_a_cell_set_for_a_former_residence_does_not_clear_a_wrong_copy() -> None:
    events = numbered(
        [
            *life("A", [101, 102, 103], [11, 12, 13], row=1, step=1),
            {"kind": "retract", "req": "A"},
            {"kind": "free", "owner": "A", "slots": [11, 12, 13]},
            {"kind": "row_release", "row": 1, "req": "A"},
            *_arrival(3, "load", shift=1, mapped="behind")[1:],
            *decode("A", 201, 5, row=1, position=3, step=2),
        ]
    )
    (finding,) = diagnose(HEAD, events).findings
    assert (finding.cls, finding.cause_event) == ("transfer_mismatch", index_of(events, "copy"))
