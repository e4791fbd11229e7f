"""Content that came by a copy, and content of which only the transfer's window is recorded."""

from __future__ import annotations

from typing import Any

import pytest

from kvcanary_cli.report.finding_block import block_lines
from tests.attribution.events import HEAD, decode, index_of, life, numbered
from tests.attribution.helpers import diagnose

Event = dict[str, Any]


def _moved(*behind: Event) -> list[Event]:
    """A writes 1 and 2, then its second token moves to slot 9, which A was given before."""
    return [
        {"kind": "alloc", "owner": "A", "slots": [9]},
        *life("A", [1, 2], [1, 2], row=1, step=1),
        {"kind": "copy", "src": [2], "dst": [9], "via": "d2d"},
        {"kind": "map", "row": 1, "start": 1, "slots": [9]},
        *behind,
    ]


def test_the_timeline_shows_the_move() -> None:
    freed = [
        {"kind": "free", "owner": "A", "slots": [1, 9]},
        *life("C", [7], [1], row=2, step=2),
    ]
    events = numbered([*_moved(*freed), *decode("A", 3, 5, row=1, position=2, step=3)])
    diagnosis = diagnose(HEAD, events)
    # Slot 9 is the same early free; look at it through a damage of its own.
    events = numbered(
        [
            *_moved({"kind": "free", "owner": "A", "slots": [9]}),
            *life("C", [7], [9], row=2, step=2),
            *decode("A", 3, 5, row=1, position=2, step=3),
        ]
    )
    diagnosis = diagnose(HEAD, events)
    (finding,) = diagnosis.findings
    assert finding.facts is not None
    assert {e.event for e in finding.facts.life if e.what == "write"} >= {
        e["i"] for e in events if e["kind"] == "forward" and e["step"] == 2
    }
    # What moved content is damaged shows the move, and where it was written.
    events = numbered([*_moved(), *_swapped()])
    (finding,) = diagnose(HEAD, events).findings
    assert finding.facts is not None
    story = {(e.event, e.what) for e in finding.facts.life if 9 in e.slots}
    assert (index_of(events, "copy"), "move") in story
    assert (index_of(events, "forward"), "write") in story
    assert (index_of(events, "alloc"), "write") not in story
    entry = next(e for e in finding.facts.entries if e.slot == 9)
    assert (entry.writer.req, entry.writer.event) == ("A", index_of(events, "forward"))
    assert entry.writer.moved == index_of(events, "copy")
    text = "\n".join(line for _, line in block_lines(finding, diagnosis, 1))
    assert f"moved here at event {index_of(events, 'copy')}" in text
    assert "elsewhere, moved here later" in text


def _swapped() -> list[Event]:
    """Another request's row leads to the moved slot."""
    return [
        *life("B", [11, 12], [21, 22], row=3, step=2),
        {"kind": "map", "row": 3, "start": 0, "slots": [9]},
        *decode("B", 13, 23, row=3, position=2, step=3),
    ]


def test_a_moved_slot_is_as_old_as_its_move() -> None:
    """Written before the slot was given, moved after: no unwritten read."""
    events = [
        *life("A", [1, 2], [1, 2], row=1, step=1),
        {"kind": "alloc", "owner": "A", "slots": [9]},
        {"kind": "copy", "src": [2], "dst": [9], "via": "d2d"},
        {"kind": "map", "row": 1, "start": 1, "slots": [9]},
        *decode("A", 3, 5, row=1, position=2, step=2),
    ]
    diagnosis = diagnose(HEAD, numbered(events))
    assert not diagnosis.findings
    assert not diagnosis.ownership


def _received(*window: Event, copies: bool = False) -> list[Event]:
    """B's prompt is to come by a transfer into slots 1 to 3."""
    copy = {"kind": "copy", "src": {"req": "B", "pos": [0, 1, 2]}, "dst": [1, 2, 3], "id": "T"}
    return [
        {"kind": "history", "req": "B", "start": 0, "ids": [1, 2, 3]},
        {"kind": "alloc", "owner": "B", "slots": [1, 2, 3]},
        *window[:1],
        *([copy | {"via": "rdma", "by": "B", "canary": True}] if copies else []),
        *window[1:],
        {"kind": "map", "row": 1, "start": 0, "slots": [1, 2, 3]},
        *decode("B", 4, 5, row=1, position=3, step=1),
    ]


BEGIN = {"kind": "transfer_begin", "id": "T", "req": "B", "slots": [1, 2, 3], "via": "rdma"}
END = {"kind": "transfer_end", "id": "T"}
FAIL = {"kind": "transfer_fail", "id": "T", "reason": "peer gone"}


@pytest.mark.parametrize("window", [(BEGIN, END), (BEGIN,)])
def test_a_window_without_copies_proves_nothing(window: tuple[Event, ...]) -> None:
    (finding,) = diagnose(HEAD, numbered(_received(*window))).findings
    assert (finding.cls, finding.confidence) == ("unwritten_read", "possible")
    assert any("no copy of it is recorded" in text for text in finding.evidence)
    assert "transfer_mismatch" in {r.cls for r in finding.ruled_out}


def test_a_failed_transfer_that_is_read_is_the_transfers_fault() -> None:
    events = numbered(_received(BEGIN, FAIL))
    (finding,) = diagnose(HEAD, events).findings
    assert (finding.cls, finding.subtype) == ("transfer_mismatch", "failed_transfer_served")
    assert finding.cause_event == index_of(events, "transfer_fail")
    assert finding.culprit.details["transfer"] == "T"


def test_without_a_window_nobody_wrote() -> None:
    (finding,) = diagnose(HEAD, numbered(_received())).findings
    assert (finding.cls, finding.confidence) == ("unwritten_read", "certain")


@pytest.mark.parametrize("leaves", [{"via": "store"}, {"via": "d2h"}, {"direction": "out"}])
def test_a_transfer_that_leaves_brings_nothing(leaves: dict[str, str]) -> None:
    (finding,) = diagnose(HEAD, numbered(_received(BEGIN | leaves, END))).findings
    assert (finding.cls, finding.confidence) == ("unwritten_read", "certain")


def test_recorded_copies_are_content() -> None:
    assert not diagnose(HEAD, numbered(_received(BEGIN, END, copies=True))).findings
