"""`own` by a request that has no right to give the slots away."""

from __future__ import annotations

from typing import Any

import pytest

from tests.attribution.events import HEAD, decode, life, numbered
from tests.attribution.helpers import diagnose
from tests.attribution.test_takeovers import TWO

Event = dict[str, Any]


def _own(giver: str, owner: str, slots: list[int], entry: str | None = None) -> Event:
    event: Event = {"kind": "own", "from": giver, "owner": owner, "slots": slots}
    return event if entry is None else event | {"entry": entry}


def _place(events: list[Event], **wanted: Any) -> int:
    return next(e["i"] for e in events if all(e.get(k) == v for k, v in wanted.items()))


@pytest.mark.parametrize("owner", ["tree", "C"])
@pytest.mark.parametrize("entry", [None, "e"])
def test_it_is_broken_when_it_happens(owner: str, entry: str | None) -> None:
    events = numbered([*TWO, _own("A", owner, [2, 3], entry)])
    diagnosis = diagnose(HEAD, events)
    (broken,) = diagnosis.ownership
    assert (broken.what, broken.event) == ("own_by_non_owner", events[-1]["i"])
    assert (broken.owner, broken.actor, broken.slots) == ("B", "A", (3,))
    (finding,) = diagnosis.findings
    assert (finding.cls, finding.subtype) == ("double_alloc", "own_by_non_owner")
    assert (finding.cause_event, finding.culprit.req) == (events[-1]["i"], "A")
    assert not finding.blast_radius


def test_the_damage_after_an_eviction_goes_back_to_the_hand_over() -> None:
    """The cache's free is right: it was made the owner."""
    events = numbered(
        [
            *TWO,
            _own("A", "tree", [3, 4], "e"),
            {"kind": "free", "owner": "tree", "slots": [3, 4], "reason": "evict"},
            *life("C", [7, 8], [3, 4], row=3, step=3),
            *decode("B", 9, 5, row=2, position=2, step=4),
            {"kind": "free", "owner": "B", "slots": [3, 4, 5]},
        ]
    )
    diagnosis = diagnose(HEAD, events)
    (finding,) = diagnosis.findings
    assert (finding.cls, finding.subtype) == ("double_alloc", "own_by_non_owner")
    assert finding.cause_event == _place(events, kind="own")
    assert (finding.victim, finding.culprit.req) == ("B", "C")
    assert finding.slots == {3, 4}
    # B's own free breaks a rule, too, and follows from the hand-over.
    assert [o.what for o in diagnosis.ownership] == [
        "own_by_non_owner", "read_of_foreign", "free_by_non_owner",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "own",
    [
        _own("B", "tree", [3, 4], "e"),
        _own("B", "C", [3, 4]),
        # Slots that the trace never showed have no owner who could be robbed.
        _own("A", "tree", [30, 31], "e"),
    ],
)
def test_what_an_owner_gives_breaks_nothing(own: Event) -> None:
    diagnosis = diagnose(HEAD, numbered([*TWO, own]))
    assert not diagnosis.ownership
    assert not diagnosis.findings


def test_naming_again_what_the_cache_has_breaks_nothing() -> None:
    """A request inserts its whole prefix, of which the cache holds the first part."""
    events = numbered([*TWO, _own("A", "tree", [1, 2], "a"), _own("B", "tree", [1, 2, 3], "b")])
    assert not diagnose(HEAD, events).ownership


def test_the_last_holder_of_forked_slots_gives_them_for_its_parent() -> None:
    events = numbered(
        [
            *life("A", [1, 2], [1, 2], row=1, step=1),
            {"kind": "fork", "parent": "A", "child": "B", "shared": [1, 2]},
            {"kind": "history", "req": "B", "start": 0, "ids": [1, 2]},
            {"kind": "map", "row": 2, "start": 0, "slots": [1, 2]},
            {"kind": "finish", "req": "A"},
            _own("B", "tree", [1, 2], "e"),
        ]
    )
    assert not diagnose(HEAD, events).ownership


def test_what_the_cache_took_from_the_free_list_is_handed_out_again() -> None:
    """One cause: the hand-over; the alloc that follows did nothing wrong."""
    events = numbered(
        [
            *life("A", [1, 2], [1, 2], row=1, step=1),
            {"kind": "free", "owner": "A", "slots": [1, 2]},
            _own("A", "tree", [1, 2], "e"),
            *life("C", [7, 8], [1, 2], row=2, step=2),
            {"kind": "history", "req": "D", "start": 0, "ids": [1, 2, 9]},
            {"kind": "match", "req": "D", "entry": "e", "slots": [1, 2]},
            {"kind": "map", "row": 3, "start": 0, "slots": [1, 2]},
            *decode("D", 9, 5, row=3, position=2, step=3),
        ]
    )
    (finding,) = diagnose(HEAD, events).findings
    assert (finding.cls, finding.subtype) == ("prefix_index", "publish_of_free")
    assert finding.cause_event == _place(events, kind="own")
    assert (finding.victim, finding.culprit.req) == ("D", "C")


def test_one_owner_at_every_event_is_said_only_where_it_is_true() -> None:
    """The cache's early free is told apart from slots that had two holders before."""
    text = "exactly one owner at every event"
    for first in ([], [{"kind": "free", "owner": "Z", "slots": [3]}]):
        events = numbered(
            [
                *TWO,
                *first,
                *([{"kind": "alloc", "owner": "B", "slots": [3]}] if first else []),
                {"kind": "free", "owner": "B", "slots": [3, 4]},
                *life("C", [7, 8], [3, 4], row=3, step=3),
                *decode("B", 9, 5, row=2, position=2, step=4),
            ]
        )
        said = {
            slot: [r.because for r in f.ruled_out if r.cls == "double_alloc"]
            for f in diagnose(HEAD, events).findings
            for slot in f.slots
        }
        assert (text in said.get(3, [])) is not bool(first)


@pytest.mark.parametrize("read", [True, False])
def test_the_timeline_marks_a_hand_over_that_is_the_cause_once(read: bool) -> None:
    events = [
        *life("A", [1, 2], [1, 2], row=1, step=1),
        {"kind": "own", "from": "Z", "owner": "tree", "slots": [1, 2], "entry": "p"},
    ]
    if read:
        events += [
            {"kind": "free", "owner": "tree", "slots": [1, 2]},
            *life("B", [5, 6], [1, 2], row=2, step=2),
            *decode("A", 7, 3, row=1, position=2, step=3),
        ]
    (finding,) = diagnose(HEAD, numbered(events)).findings
    assert finding.cause_event == 4
    assert finding.facts is not None
    told = [e for e in finding.facts.life if e.event == 4 and e.what == "own_by_non_owner"]
    assert [e.who for e in told] == ["Z"]
