"""Slots that change hands without an event that says who did it: copies, forks, twice in one."""

from __future__ import annotations

from typing import Any

import pytest

from tests.attribution.events import HEAD, decode, life, numbered
from tests.attribution.helpers import diagnose

Event = dict[str, Any]
TWO = [
    *life("A", [1, 2], [1, 2], row=1, step=1),
    *life("B", [3, 4], [3, 4], row=2, step=2),
]


@pytest.mark.parametrize("by", [None, "A"])
@pytest.mark.parametrize("via", ["d2d", "cow"])
def test_a_copy_over_anothers_content_is_the_cause(by: str | None, via: str) -> None:
    copy: Event = {"kind": "copy", "src": [1, 2], "dst": [3, 4], "via": via}
    events = numbered([*TWO, copy | ({} if by is None else {"by": by})])
    cause = events[-1]["i"]
    events = numbered([*events, *decode("B", 9, 5, row=2, position=2, step=3)])
    (finding,) = diagnose(HEAD, events).findings
    assert (finding.cls, finding.subtype) == ("transfer_mismatch", "wrong_pages")
    assert (finding.cause_event, finding.culprit.req, finding.victim) == (cause, "A", "B")
    assert finding.slots == {3, 4}


@pytest.mark.parametrize("tier", ["host", "remote"])
def test_a_load_over_anothers_content_is_no_clean_trace(tier: str) -> None:
    copy = {"kind": "copy", "src": [1, 2], "src_pool": tier, "dst": [3, 4], "via": "h2d"}
    events = numbered([*TWO, copy, *decode("B", 9, 5, row=2, position=2, step=3)])
    diagnosis = diagnose(HEAD, events)
    (finding,) = diagnosis.findings
    assert (finding.cls, finding.victim) == ("transfer_race", "B")
    assert [o.what for o in diagnosis.ownership] == ["write_by_non_owner"]


def test_copies_within_a_request_accuse_nobody() -> None:
    move = {"kind": "copy", "src": [2], "dst": [4], "via": "d2d"}
    events = life("A", [1, 2, 3, 4], [1, 2, 3, 4], row=1, step=1)
    assert not diagnose(HEAD, numbered([*events, move])).ownership


def _fork(*ends: Event) -> list[Event]:
    events = life("A", [1, 2, 3], [1, 2, 3], row=1, step=1)
    events += [
        {"kind": "fork", "parent": "A", "child": "B", "shared": [1, 2, 3]},
        {"kind": "history", "req": "B", "start": 0, "ids": [1, 2, 3]},
        {"kind": "map", "row": 2, "start": 0, "slots": [1, 2, 3]},
        {"kind": "finish", "req": "A"},
    ]
    for step in range(2, 6):
        events += decode("B", step, 8 + step, row=2, position=1 + step, step=step)
    return numbered([*events, *ends])


def test_a_fork_keeps_what_its_parent_leaves() -> None:
    slots = [1, 2, 3, *range(10, 14)]
    ends = [{"kind": "free", "owner": "B", "slots": slots}, {"kind": "finish", "req": "B"}]
    for events in (_fork(), _fork(*ends)):
        diagnosis = diagnose(HEAD, events)
        assert not diagnosis.findings
        assert not diagnosis.ownership


def test_a_stranger_frees_a_forked_slot_while_its_owner_lives() -> None:
    events = [
        e for e in _fork({"kind": "free", "owner": "Z", "slots": [1]}) if e["kind"] != "finish"
    ]
    assert [o.what for o in diagnose(HEAD, numbered(events)).ownership] == ["free_by_non_owner"]


def test_one_alloc_that_hands_a_slot_out_twice() -> None:
    events = numbered(life("A", [1, 2], [5, 5], row=1, step=1))
    events += numbered(decode("A", 9, 6, row=1, position=2, step=2))
    diagnosis = diagnose(HEAD, numbered(events))
    assert {f.cls for f in diagnosis.findings} == {"double_alloc"}
    assert diagnosis.findings[0].cause_event == 1


@pytest.mark.parametrize("entry", [None, "e"])
def test_free_slots_are_not_the_caches_to_take(entry: str | None) -> None:
    own: Event = {"kind": "own", "from": "A", "owner": "tree", "slots": [1, 2]}
    events = life("A", [1, 2], [1, 2], row=1, step=1)
    events += [
        {"kind": "free", "owner": "A", "slots": [1, 2]},
        own | ({} if entry is None else {"entry": entry}),
    ]
    (found,) = diagnose(HEAD, numbered(events)).ownership
    assert (found.what, found.actor, found.slots) == ("publish_of_free", "A", (1, 2))
