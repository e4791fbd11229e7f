"""Rows that their request gets back, and cells set to slots that were free already."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.attribution.events import HEAD, decode, extend, index_of, life, numbered
from tests.attribution.helpers import diagnose

if TYPE_CHECKING:
    from kvcanary_cli.attribution.result import Finding

Event = dict[str, Any]
HEAD_P = HEAD | {"records": [*HEAD["records"], "prefix"]}
PREFIX = [
    *life("P", [11, 12], [40, 41], row=3, step=1),
    {"kind": "own", "from": "P", "owner": "tree", "slots": [40, 41], "entry": "E"},
    {"kind": "finish", "req": "P"},
]
MATCH = {"kind": "match", "req": "A", "entry": "E", "slots": [40, 41]}


def _free(owner: str, slots: list[int], reason: str) -> Event:
    return {"kind": "free", "owner": owner, "slots": slots, "reason": reason}


def _away(how: str, other: bool) -> list[Event]:
    """A has row 1 and gives it back; with ``other``, X has it meanwhile."""
    events = [
        *life("A", [11, 12, 13], [1, 2, 3], row=1, step=2),
        _free("A", [1, 2, 3], how),
        {"kind": how, "req": "A"},
        {"kind": "row_release", "row": 1, "req": "A"},
    ]
    if other:
        events += life("Y", [71, 72], [20, 21], row=1, step=3)
        events += [_free("Y", [20, 21], "finish"), {"kind": "finish", "req": "Y"}]
        events += [{"kind": "row_release", "row": 1, "req": "Y"}]
    return events


def _back(slots: list[int]) -> list[Event]:
    return [
        {"kind": "history", "req": "A", "start": 0, "ids": [11, 12, 13]},
        {"kind": "alloc", "owner": "A", "slots": [s for s in slots if s < 40]},
        {"kind": "map", "row": 1, "start": 0, "slots": slots},
    ]


def _freed_early() -> tuple[list[Event], Event]:
    freed = _free("A", [6], "dedup")
    return [
        *_back([4, 5, 6]),
        extend(4, "A", 1, 0, [11, 12, 13], [4, 5, 6]),
        freed,
        *life("X", [51], [6], row=5, step=5),
    ], freed


def _unwritten() -> tuple[list[Event], Event]:
    events = [*_back([4, 5, 6]), extend(4, "A", 1, 0, [11, 12], [4, 5])]
    return events, events[1]


def _short_transfer() -> tuple[list[Event], Event]:
    ended = {"kind": "transfer_end", "id": "T"}
    begin = {"kind": "transfer_begin", "id": "T", "req": "A", "slots": [4, 5, 6]}
    copy = {"kind": "copy", "src": {"req": "A", "pos": [0, 1]}, "dst": [4, 5], "id": "T"}
    return [
        *_back([4, 5, 6]),
        begin | {"via": "rdma", "direction": "in"},
        copy | {"via": "rdma", "by": "A"},
        ended,
    ], ended


def _evicted() -> tuple[list[Event], Event]:
    freed = _free("tree", [40, 41], "evict")
    return [
        MATCH,
        *_back([40, 41, 6]),
        extend(4, "A", 1, 2, [13], [6]),
        {"kind": "unpublish", "entry": "E"},
        freed,
        *life("X", [51, 52], [40, 41], row=5, step=5),
    ], freed


def _phantom() -> tuple[list[Event], Event]:
    freed = _free("tree", [40, 41], "evict")
    taken = life("X", [51, 52], [40, 41], row=5, step=4)
    written = extend(5, "A", 1, 2, [13], [6])
    return [freed, *taken, MATCH, *_back([40, 41, 6]), written], freed


FAULTS = {
    ("use_after_free", "freed_by_dedup"): _freed_early,
    ("unwritten_read", "never_written_since_alloc"): _unwritten,
    ("transfer_mismatch", "incomplete_transfer"): _short_transfer,
    ("use_after_free", "shared_slot_refcount"): _evicted,
    ("prefix_index", "phantom_hit"): _phantom,
}


def _found(events: list[Event]) -> Finding:
    (finding,) = diagnose(HEAD_P, numbered(events)).findings
    return finding


@pytest.mark.parametrize("other", [False, True], ids=["at once", "behind another"])
@pytest.mark.parametrize(
    ("kind", "how"),
    [(kind, "retract") for kind in FAULTS]
    # What a new request of an old name matched before it got slots is not kept.
    + [(kind, "finish") for kind in FAULTS if kind[1] != "phantom_hit"],
)
def test_a_row_that_its_request_got_back_is_not_recycled(
    kind: tuple[str, str], how: str, other: bool
) -> None:
    fault, cause = FAULTS[kind]()
    events = [*PREFIX, *_away(how, other), *fault]
    at = next(k for k, event in enumerate(events) if event is cause)
    finding = _found([*events, *decode("A", 14, 10, row=1, position=3, step=6)])
    assert (finding.cls, finding.subtype) == kind
    assert (finding.cause_event, finding.victim, finding.confidence) == (at, "A", "certain")


@pytest.mark.parametrize("how", ["retract", "finish"])
def test_a_row_that_another_got_is(how: str) -> None:
    events = [*_away(how, other=False), *life("X", [51, 52, 53], [4, 5, 6], row=1, step=4)]
    late = decode("A", 14, 10, row=1, position=3, step=5)
    finding = _found([*events, late[-1]])
    assert (finding.cls, finding.subtype) == ("stale_mapping", "row_recycled_in_flight")
    assert finding.culprit.req == "X"


@pytest.mark.parametrize(
    ("former", "ids"), [("Z", [11, 12, 13]), ("Z", [61, 62, 63]), ("A", [11, 12, 13])]
)
def test_a_cell_that_was_set_to_free_slots(former: str, ids: list[int]) -> None:
    events = [
        *life(former, ids, [20, 21, 22], row=3, step=1),
        _free(former, [20, 21, 22], "finish"),
        {"kind": "finish", "req": former},
        {"kind": "history", "req": "A", "start": 0, "ids": [11, 12, 13, 14]},
        {"kind": "alloc", "owner": "A", "slots": [5]},
        {"kind": "map", "row": 1, "start": 0, "slots": [20, 21, 22, 5]},
        extend(2, "A", 1, 3, [14], [5]),
        *decode("A", 15, 6, row=1, position=4, step=3),
    ]
    finding = _found(events)
    assert (finding.cls, finding.subtype) == ("stale_mapping", "cells_rewritten")
    cell = index_of(numbered(events), "map", row=1, start=0)
    assert (finding.cause_event, finding.culprit.req) == (cell, "A")
    assert (finding.victim, finding.slots) == ("A", {20, 21, 22})


@pytest.mark.parametrize("behind", [0, 1, 2])
def test_a_prefix_freed_between_its_match_and_the_row(behind: int) -> None:
    """The match was right when it was made: whoever freed the entry's slots is to blame.

    ``behind``: how many of the cells are set behind the free.
    """
    cells = [{"kind": "map", "row": 1, "start": k, "slots": [40 + k]} for k in range(2)]
    events = [
        *PREFIX,
        {"kind": "history", "req": "A", "start": 0, "ids": [11, 12, 13]},
        MATCH,
        *cells[behind:],
        _free("tree", [40, 41], "evict"),
        *cells[:behind],
        {"kind": "alloc", "owner": "A", "slots": [5]},
        {"kind": "map", "row": 1, "start": 2, "slots": [5]},
        extend(2, "A", 1, 2, [13], [5]),
    ]
    (finding,) = diagnose(HEAD_P, numbered(events)).findings
    assert (finding.cls, finding.subtype) == ("use_after_free", "shared_slot_refcount")
    assert finding.cause_event == index_of(numbered(events), "free", owner="tree")
    assert (finding.victim, finding.slots) == ("A", {40, 41})
    late = [text for text in finding.evidence if text.endswith("when they were free")]
    assert late == [
        f"row 1 was set to 1 of them at event {event['i']}, when they were free"
        for event in numbered(events)
        if event["kind"] == "map" and event["row"] == 1 and event["start"] < behind
    ]
