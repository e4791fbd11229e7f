"""Slots that a fork shared: parent and child hold them alike, whoever lets go first."""

from __future__ import annotations

from typing import Any

import pytest

from tests.attribution.events import HEAD, decode, life, numbered
from tests.attribution.helpers import diagnose

Event = dict[str, Any]
HEAD_F = HEAD | {"records": [*HEAD["records"], "fork", "prefix"]}
SHARED = [1, 2, 3]


def _forked(**more: Any) -> list[Event]:
    return [
        *life("A", [11, 12, 13], SHARED, row=1, step=1),
        {"kind": "fork", "parent": "A", "child": "B", "shared": SHARED} | more,
        {"kind": "history", "req": "B", "start": 0, "ids": [11, 12, 13]},
        {"kind": "map", "row": 2, "start": 0, "slots": SHARED},
        *decode("B", 14, 5, row=2, position=3, step=2),
        *decode("A", 15, 4, row=1, position=3, step=3),
    ]


@pytest.mark.parametrize("reused", [True, False])
@pytest.mark.parametrize(("first", "other"), [("A", "B"), ("B", "A")])
def test_the_first_to_free_takes_them_from_the_other(first: str, other: str, reused: bool) -> None:
    events = [*_forked(), {"kind": "finish", "req": first}]
    cause = len(events)
    events.append({"kind": "free", "owner": first, "slots": [*SHARED, {"A": 4, "B": 5}[first]]})
    if reused:
        events += life("C", [31, 32, 33], SHARED, row=3, step=4)
    events += decode(other, 16, 6, row={"A": 1, "B": 2}[other], position=4, step=5)
    diagnosis = diagnose(HEAD_F, numbered(events))
    (finding,) = diagnosis.findings
    assert (finding.cls, finding.subtype) == ("use_after_free", "shared_slot_refcount")
    assert (finding.cause_event, finding.victim) == (cause, other)
    assert finding.culprit.req == ("C" if reused else first)
    if not reused:
        # It gave them back; the read is the other one's.
        assert (finding.culprit.step, finding.culprit.event) == (None, cause)
    assert finding.slots == set(SHARED)
    assert {o.what for o in diagnosis.ownership} == {
        "read_of_foreign" if reused else "read_of_free"
    }


@pytest.mark.parametrize(("first", "other"), [("A", "B"), ("B", "A")])
@pytest.mark.parametrize("entry", [None, "P"])
def test_either_may_give_them_to_the_cache(first: str, other: str, entry: str | None) -> None:
    def own(giver: str) -> Event:
        event: Event = {"kind": "own", "from": giver, "owner": "tree", "slots": SHARED}
        return event if entry is None else event | {"entry": f"{entry}{giver}"}

    events = [
        *_forked(),
        own(first),
        {"kind": "finish", "req": first},
        *decode(other, 16, 6, row={"A": 1, "B": 2}[other], position=4, step=4),
        own(other),
        {"kind": "finish", "req": other},
        {"kind": "free", "owner": "tree", "slots": SHARED, "reason": "evict"},
    ]
    diagnosis = diagnose(HEAD_F, numbered(events))
    assert not diagnosis.ownership
    assert not diagnosis.findings


@pytest.mark.parametrize("owner", ["Z", "B"])
def test_what_a_fork_shared_before_the_slots_last_alloc_gives_nobody_a_part(owner: str) -> None:
    events = [
        *_forked(),
        {"kind": "free", "owner": "A", "slots": SHARED},
        {"kind": "alloc", "owner": "C", "slots": SHARED},
        {"kind": "fork", "parent": "C", "child": "D", "shared": SHARED},
        {"kind": "free", "owner": owner, "slots": SHARED},
    ]
    diagnosis = diagnose(HEAD_F, numbered(events))
    assert [(o.what, o.actor) for o in diagnosis.ownership] == [("free_by_non_owner", owner)]


@pytest.mark.parametrize("copied", [True, False])
def test_a_copy_that_the_fork_meant_and_nobody_made_is_told(copied: bool) -> None:
    start = life("A", [11, 12, 13], SHARED, row=1, step=1)
    events = [
        {"kind": "alloc", "owner": "A", "slots": [4]},
        *start,
        {"kind": "map", "row": 1, "start": 3, "slots": [4]},
        {"kind": "fork", "parent": "A", "child": "B", "shared": [*SHARED, 4]}
        | {"copy_on_write": [[4, 8]]},
        {"kind": "history", "req": "B", "start": 0, "ids": [11, 12, 13]},
        {"kind": "map", "row": 2, "start": 0, "slots": [*SHARED, 4]},
    ]
    if copied:
        events.append({"kind": "copy", "src": [4], "dst": [8], "via": "cow", "by": "B"})
    for req, row, step in (("A", 1, 2), ("B", 2, 3)):
        grown = decode(req, 10 + step, 4, row=row, position=3, step=step)
        events += [grown[0], grown[3]]
    events = numbered([*events, *decode("A", 17, 5, row=1, position=4, step=4)])
    (finding,) = diagnose(HEAD_F, events).findings
    fork = next(e["i"] for e in events if e["kind"] == "fork")
    assert (finding.cls, finding.culprit.req, finding.victim) == ("late_write", "B", "A")
    told = [text for text in finding.evidence if f"fork at event {fork}" in text]
    assert bool(told) != copied
    assert all("slot 8" in text for text in told)


@pytest.mark.parametrize(("first", "other"), [("A", "B"), ("B", "A")])
@pytest.mark.parametrize("read", [True, False])
def test_who_gives_back_what_was_taken_from_it_knows_no_better(
    first: str, other: str, read: bool
) -> None:
    """Its own free is one too many, and no fault of its own: one finding, of the first free."""
    mine = {"A": 4, "B": 5}
    events = [*_forked(), {"kind": "finish", "req": first}]
    cause = len(events)
    events.append({"kind": "free", "owner": first, "slots": [*SHARED, mine[first]]})
    if read:
        events += decode(other, 16, 6, row={"A": 1, "B": 2}[other], position=4, step=5)
    events.append({"kind": "finish", "req": other})
    events.append({"kind": "free", "owner": other, "slots": [*SHARED, mine[other]]})
    diagnosis = diagnose(HEAD_F, numbered(events))
    (finding,) = diagnosis.findings
    if read:
        assert (finding.cls, finding.subtype) == ("use_after_free", "shared_slot_refcount")
        assert (finding.cause_event, finding.victim) == (cause, other)
    else:
        assert (finding.cls, finding.subtype) == ("double_alloc", "double_free")
    assert "double_free" in {o.what for o in diagnosis.ownership}
