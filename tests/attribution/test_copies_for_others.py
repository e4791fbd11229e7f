"""Copies whose actor is not the owner of the slots: loads for the cache, and by it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.attribution.events import HEAD, decode, life, numbered
from tests.attribution.helpers import diagnose

Event = dict[str, Any]

_LOAD: Event = {"kind": "copy", "src": {"req": "A", "pos": [0, 1, 2]}, "dst": [4, 5, 6]}


def _loaded(owner: str, by: str | None, *, windowed: bool, early: bool) -> list[Event]:
    """A's prompt went to the host; B matched it there, and has it loaded to slots 4 to 6.

    ``early``: the row names the slots before the copy, else behind it.
    """
    mapped = [{"kind": "map", "row": 3, "start": 0, "slots": [4, 5, 6]}]
    begin = {"kind": "transfer_begin", "id": "L", "req": "B", "via": "h2d", "slots": [4, 5, 6]}
    copy = _LOAD | {"via": "h2d"}
    copy |= ({"by": by} if by else {}) | ({"id": "L"} if windowed else {})
    if by is None:
        copy |= {"src": [101, 102, 103], "src_pool": "host"}
    return [
        *life("A", [11, 12, 13], [1, 2, 3], row=1, step=1),
        {"kind": "copy", "src": [1, 2, 3], "dst": [101, 102, 103], "dst_pool": "host"},
        {"kind": "history", "req": "B", "start": 0, "ids": [11, 12, 13]},
        {"kind": "match", "req": "B", "entry": "P", "slots": [], "tier": "host"},
        {"kind": "alloc", "owner": owner, "slots": [4, 5, 6]},
        *(mapped if early else []),
        *([begin] if windowed else []),
        copy,
        *([{"kind": "transfer_end", "id": "L"}] if windowed else []),
        *([] if early else mapped),
        *decode("B", 14, 7, row=3, position=3, step=3),
    ]


@pytest.mark.parametrize("owner", ["tree", "B"])
@pytest.mark.parametrize("by", ["B", "tree", None])
@pytest.mark.parametrize("windowed", [True, False])
@pytest.mark.parametrize("early", [True, False])
def test_a_load_between_the_cache_and_who_matched_is_clean(
    owner: str, by: str | None, windowed: bool, early: bool
) -> None:
    events = _loaded(owner, by, windowed=windowed, early=early)
    report = diagnose(HEAD, numbered(events))
    assert not report.findings
    assert not report.ownership


@pytest.mark.parametrize("by", ["A", "tree", "R"])
def test_a_transfer_works_for_the_request_that_it_names(by: str) -> None:
    """Its slots may have content already: the request has them filled again."""
    begin = {"kind": "transfer_begin", "id": "L", "req": "B", "via": "h2d", "slots": [4, 5, 6]}
    events = [
        *life("B", [11, 12, 13], [4, 5, 6], row=3, step=1),
        begin,
        _LOAD | {"src": {"req": "B", "pos": [0, 1, 2]}, "via": "h2d", "by": by, "id": "L"},
        *decode("B", 14, 7, row=3, position=3, step=3),
    ]
    report = diagnose(HEAD, numbered(events))
    assert not report.findings
    assert not report.ownership


def test_a_slot_of_the_cache_that_the_request_matched_may_be_filled_again() -> None:
    events = [
        *life("A", [11, 12, 13], [4, 5, 6], row=1, step=1),
        {"kind": "own", "from": "A", "owner": "tree", "slots": [4, 5, 6], "entry": "P"},
        {"kind": "match", "req": "B", "entry": "P", "slots": [4, 5, 6]},
        {"kind": "history", "req": "B", "start": 0, "ids": [11, 12, 13]},
        {"kind": "map", "row": 3, "start": 0, "slots": [4, 5, 6]},
        _LOAD | {"via": "h2d", "by": "B"},
        *decode("B", 14, 7, row=3, position=3, step=3),
    ]
    report = diagnose(HEAD, numbered(events))
    assert not report.findings
    assert not report.ownership


@pytest.mark.parametrize("owner", ["tree", "B"])
# A copy that names nobody fills what is empty.
@pytest.mark.parametrize(
    ("by", "written"), [("B", True), ("B", False), ("tree", True), ("tree", False), (None, True)]
)
def test_a_load_into_slots_of_a_stranger_is_found(
    owner: str, by: str | None, written: bool
) -> None:
    """X holds slot 20: nobody but X has it filled, whether or not X wrote it so far."""
    stranger = life("X", [31], [20], row=5, step=2)
    events = _loaded(owner, by, windowed=True, early=True)
    at = next(k for k, e in enumerate(events) if e.get("id") == "L")
    for event in events[at : at + 2]:
        event["dst" if "dst" in event else "slots"] = [4, 5, 20]
    events[4:4] = stranger if written else stranger[:2]
    found = diagnose(HEAD, numbered(events))
    assert next((f.what, f.owner, f.slots) for f in found.ownership) == (
        ("write_by_non_owner", "X", (20,))
    )
    assert any(20 in f.slots for f in found.findings)


@pytest.mark.parametrize("windowed", [True, False])
def test_the_cache_fills_no_slots_of_who_asked_for_nothing(windowed: bool) -> None:
    begin = {"kind": "transfer_begin", "id": "L", "req": "B", "via": "h2d", "slots": [4, 5, 6]}
    events = [
        *life("A", [11, 12, 13], [1, 2, 3], row=1, step=1),
        {"kind": "alloc", "owner": "X", "slots": [4, 5, 6]},
        *([begin] if windowed else []),
        _LOAD | {"via": "h2d", "by": "tree"} | ({"id": "L"} if windowed else {}),
    ]
    (finding,) = diagnose(HEAD, numbered(events)).findings
    assert (finding.cls, finding.subtype) == ("transfer_mismatch", "wrong_pages")
    assert finding.slots == {4, 5, 6}
