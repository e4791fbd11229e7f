"""A request that reads slots which it gave back itself."""

from __future__ import annotations

from typing import Any

import pytest

from tests.attribution.events import HEAD, decode, index_of, life, numbered
from tests.attribution.helpers import diagnose

Event = dict[str, Any]
FREE: Event = {"kind": "free", "owner": "A", "slots": [1, 2]}
WITH_LAUNCH = HEAD | {"records": [*HEAD["records"], "launch"]}


def _step(token: int, slot: int, position: int, step: int) -> list[Event]:
    """A decode of A in row 1 whose slot is there already."""
    return [e for e in decode("A", token, slot, 1, position, step) if e["kind"] != "alloc"]


def _begin() -> list[Event]:
    """A has three tokens, and slots for three further ones."""
    return [
        {"kind": "alloc", "owner": "A", "slots": [4, 5, 6]},
        *life("A", [1, 2, 3], [1, 2, 3], row=1, step=1),
    ]


def test_a_request_that_goes_on_is_accused() -> None:
    events = numbered([*_begin(), FREE, *decode("A", 9, 7, row=1, position=3, step=2)])
    diagnosis = diagnose(HEAD, events)
    (finding,) = diagnosis.findings
    freed = next(e["i"] for e in events if e["kind"] == "free")
    assert (finding.cls, finding.subtype) == ("use_after_free", "freed_while_mapped")
    assert (finding.cause_event, finding.culprit.event) == (freed, freed)
    assert (finding.victim, finding.culprit.req) == ("A", "A")
    assert (finding.slots, finding.positions) == ({1, 2}, {0, 1})
    assert (finding.first_bad_step, finding.confidence) == (2, "certain")
    assert list(finding.blast_radius) == ["A"]
    assert diagnosis.verdict == "corrupt"
    assert finding.facts is not None
    assert (finding.facts.access, finding.facts.step) == ("read", 2)


@pytest.mark.parametrize("launched", [False, True])
@pytest.mark.parametrize("end", ["finish", "abort", "retract", None])
def test_a_launched_overrun_is_none(end: str | None, launched: bool) -> None:
    """Its slot was given before the free, and it is the last work of the request."""
    ends: list[Event] = [] if end is None else [{"kind": end, "req": "A"}]
    queue: list[Event] = [{"kind": "launch", "step": 2, "req": "A"}] if launched else []
    for events in (
        [*_begin(), *queue, FREE, *_step(9, 4, 3, 2), *ends],
        [*_begin(), *queue, FREE, *ends, *_step(9, 4, 3, 2)],
        [*_begin(), *queue, *ends, FREE, *_step(9, 4, 3, 2)],
    ):
        assert not diagnose(WITH_LAUNCH, numbered(events)).findings


def test_work_that_was_queued_after_the_free_is_no_overrun() -> None:
    queue = {"kind": "launch", "step": 2, "req": "A"}
    events = numbered([*_begin(), FREE, queue, *_step(9, 4, 3, 2)])
    (finding,) = diagnose(WITH_LAUNCH, events).findings
    assert (finding.cls, finding.victim, finding.confidence) == ("use_after_free", "A", "certain")


@pytest.mark.parametrize(("steps", "found"), [(1, False), (2, False), (3, True)])
def test_three_steps_behind_the_free_are_no_overrun(steps: int, found: bool) -> None:
    events = [*_begin(), FREE]
    for k in range(steps):
        events += _step(9 + k, 4 + k, 3 + k, 2 + k)
    findings = diagnose(HEAD, numbered(events)).findings
    assert [f.confidence for f in findings] == (["probable"] if found else [])


def test_an_ended_request_is_left_alone_whatever_it_is_given() -> None:
    events = [*_begin(), FREE, {"kind": "finish", "req": "A"}]
    for k in range(3):
        events += _step(9 + k, 4 + k, 3 + k, 2 + k)
    assert not diagnose(HEAD, numbered(events)).findings


def test_damage_of_the_same_free_is_the_same_finding() -> None:
    """Slot 1 is taken by another and read, slot 2 still lies free: one early free."""
    events = numbered(
        [
            *_begin(),
            FREE,
            *life("C", [7], [1], row=2, step=2),
            *decode("A", 9, 7, row=1, position=3, step=3),
        ]
    )
    (finding,) = diagnose(HEAD, events).findings
    assert (finding.cls, finding.slots, finding.culprit.req) == ("use_after_free", {1}, "C")


@pytest.mark.parametrize("tokens", [1, 3])
def test_a_name_that_came_back_is_another_request(tokens: int) -> None:
    """Its row leads to what the one before it gave back."""
    events = [
        *life("A", [1, 2, 3], [1, 2, 3], row=1, step=1),
        {"kind": "finish", "req": "A"},
        {"kind": "free", "owner": "A", "slots": [1, 2, 3]},
        {"kind": "map", "row": 2, "start": 0, "slots": [1, 2, 3]},
    ]
    for k in range(tokens):
        events += decode("A", 9 + k, 7 + k, row=2, position=3 + k, step=2 + k)
    diagnosis = diagnose(HEAD, numbered(events))
    (finding,) = diagnosis.findings
    assert [(o.what, o.actor) for o in diagnosis.ownership] == [("read_of_free", "A")]
    assert (finding.cls, finding.cause_event, finding.victim) == ("stale_mapping", 6, "A")
    assert not any("goes on" in text for text in finding.evidence)


@pytest.mark.parametrize("taken", [False, True])
def test_a_row_that_is_set_to_what_its_request_gave_back_is_at_fault(taken: bool) -> None:
    """A retracted request comes back and takes its old slots for its prefix; B may have one."""
    events = numbered(
        [
            *life("A", [1, 2, 3], [1, 2, 3], row=1, step=1),
            *life("B", [21, 22], [4, 5], row=2, step=2),
            {"kind": "retract", "req": "A"},
            {"kind": "free", "owner": "A", "slots": [1, 2, 3]},
            {"kind": "row_release", "row": 1, "req": "A"},
            *(decode("B", 23, 1, row=2, position=2, step=3) if taken else []),
            {"kind": "map", "row": 3, "start": 0, "slots": [1, 2, 3]},
            *decode("A", 9, 7, row=3, position=3, step=4),
        ]
    )
    (finding,) = diagnose(HEAD, events).findings
    at = index_of(events, "map", row=3, start=0)
    assert (finding.cls, finding.subtype) == ("stale_mapping", "cells_rewritten")
    assert (finding.cause_event, finding.victim) == (at, "A")
    # Whether B shares what it has, the prefix family would tell.
    assert finding.confidence == ("probable" if taken else "certain")
    assert (finding.slots, finding.positions) == ({1, 2, 3}, {0, 1, 2})
    assert finding.seam_slots.isdisjoint(finding.slots)
