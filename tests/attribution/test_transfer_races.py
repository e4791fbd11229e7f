"""Slots that changed hands while a transfer ran: both sides, with and without its copies."""

from __future__ import annotations

from typing import Any

import pytest

from tests.attribution.events import HEAD, decode, index_of, life, numbered
from tests.attribution.helpers import diagnose

Event = dict[str, Any]
HOST = [101, 102, 103]
STORES = [
    {"via": "store", "key": "k"},
    {"via": "d2h", "key": "k"},
    {"via": "rdma", "key": "k", "direction": "out"},
    {"via": "d2h"},
]


def _store(how: dict[str, str], *inside: Event, copies: bool, last: str = "end") -> list[Event]:
    """A's three slots are stored; what happens ``inside`` comes before the copy reads them."""
    copy: Event = {"kind": "copy", "src": [1, 2, 3], "dst": HOST, "dst_pool": "host", "id": "T1"}
    copy |= {"by": "A", "via": how["via"], "canary": True}
    copy |= {"key": how["key"]} if "key" in how else {}
    return [
        *life("A", [11, 12, 13], [1, 2, 3], row=1, step=1),
        {"kind": "transfer_begin", "id": "T1", "req": "A", "slots": [1, 2, 3], **how},
        *inside,
        *([copy] if copies else []),
        {"kind": f"transfer_{last}", "id": "T1"},
    ]


def _given_away() -> list[Event]:
    return [
        {"kind": "finish", "req": "A"},
        {"kind": "free", "owner": "A", "slots": [1, 2, 3]},
        *life("B", [21, 22, 23], [1, 2, 3], row=2, step=2),
    ]


def _loaded(via: str) -> list[Event]:
    """D loads what was stored, and reads it."""
    return [
        {"kind": "history", "req": "D", "start": 0, "ids": [11, 12, 13]},
        {"kind": "alloc", "owner": "D", "slots": [5, 6, 7]},
        {"kind": "copy", "src": HOST, "dst": [5, 6, 7], "src_pool": "host", "via": via, "by": "D"},
        {"kind": "map", "row": 3, "start": 0, "slots": [5, 6, 7]},
        *decode("D", 14, 8, row=3, position=3, step=3),
    ]


@pytest.mark.parametrize("how", STORES)
@pytest.mark.parametrize("read", [True, False])
def test_a_store_that_reads_another_requests_content(how: dict[str, str], read: bool) -> None:
    later = [{"kind": "match", "req": "D", "entry": "k", "slots": [], "tier": "host"}]
    events = numbered(
        [
            *_store(how, *_given_away(), copies=True),
            *later,
            *(_loaded("load") if read else []),
        ]
    )
    (finding,) = diagnose(HEAD, events).findings
    assert (finding.cls, finding.subtype) == ("transfer_race", f"{how['via']}_read_after_free")
    assert (finding.victim, finding.culprit.req) == ("D" if read else None, "A")
    assert finding.cause_event == index_of(events, "free")
    assert finding.corrupting_event == index_of(events, "copy")
    assert finding.slots == ({5, 6, 7} if read else {1, 2, 3})
    matched = any("key k was matched 1 times" in text for text in finding.evidence)
    assert matched == ("key" in how)


@pytest.mark.parametrize("how", STORES)
def test_a_store_whose_copies_are_not_recorded(how: dict[str, str]) -> None:
    events = numbered(_store(how, *_given_away(), copies=False))
    (finding,) = diagnose(HEAD, events).findings
    assert (finding.cls, finding.confidence) == ("transfer_race", "probable")
    assert finding.cause_event == index_of(events, "free")


@pytest.mark.parametrize("copies", [True, False])
@pytest.mark.parametrize("how", STORES)
def test_slots_that_nobody_got_raced_with_nothing(how: dict[str, str], copies: bool) -> None:
    freed = {"kind": "free", "owner": "A", "slots": [1, 2, 3]}
    ended = {"kind": "finish", "req": "A"}
    inside = _store(how, ended, freed, copies=copies)
    behind = [*_store(how, copies=copies), *_given_away()]
    failed = _store(how, *_given_away(), copies=False, last="fail")
    for events in (inside, behind, failed):
        assert not diagnose(HEAD, numbered(events)).findings


def test_a_host_slot_that_was_stored_anew_is_sound() -> None:
    fresh = [
        *life("E", [11, 12, 13], [11, 12, 13], row=4, step=5),
        {"kind": "copy", "src": [11, 12, 13], "dst": HOST, "dst_pool": "host", "via": "d2h"},
    ]
    damaged = {"kind": "map", "row": 3, "start": 1, "slots": [7]}
    events = [*_store(STORES[0], *_given_away(), copies=True), *fresh]
    load = [e | {"step": 6} if e["kind"] == "forward" else e for e in _loaded("load")]
    at = next(k for k, e in enumerate(load) if e["kind"] == "map") + 1
    found = diagnose(HEAD, numbered([*events, *load[:at], damaged, *load[at:]])).findings
    assert [f.cls for f in found if f.victim == "D"] != ["transfer_race"]


def _receive(*inside: Event, copies: bool = False) -> list[Event]:
    """A transfer into A's slots; B reads on behind it."""
    copy: Event = {"kind": "copy", "src": {"req": "A", "pos": [0, 1, 2]}, "dst": [1, 2, 3]}
    return [
        {"kind": "history", "req": "A", "start": 0, "ids": [11, 12, 13]},
        {"kind": "alloc", "owner": "A", "slots": [1, 2, 3]},
        {"kind": "transfer_begin", "id": "L", "req": "A", "slots": [1, 2, 3], "via": "h2d"},
        *inside,
        *([copy | {"id": "L", "via": "h2d", "by": "A"}] if copies else []),
        {"kind": "transfer_end", "id": "L"},
    ]


@pytest.mark.parametrize("copies", [True, False])
def test_a_load_into_slots_that_were_given_away(copies: bool) -> None:
    freed = {"kind": "free", "owner": "A", "slots": [1, 2, 3]}
    given = life("B", [21, 22, 23], [1, 2, 3], row=2, step=1)
    read = decode("B", 24, 4, row=2, position=3, step=2)
    events = numbered([*_receive(freed, *given, copies=copies), *read])
    (finding,) = diagnose(HEAD, events).findings
    assert (finding.cls, finding.subtype) == ("transfer_race", "h2d_write_after_free")
    assert (finding.victim, finding.culprit.req) == ("B", "A")
    assert finding.cause_event == index_of(events, "free")
    assert finding.confidence == ("certain" if copies else "probable")


def test_slots_given_away_behind_the_load_are_sound() -> None:
    freed = {"kind": "free", "owner": "A", "slots": [1, 2, 3]}
    given = life("B", [21, 22, 23], [1, 2, 3], row=2, step=1)
    read = decode("B", 24, 4, row=2, position=3, step=2)
    assert not diagnose(HEAD, numbered([*_receive(), freed, *given, *read])).findings
    assert not diagnose(HEAD, numbered(_receive(freed))).findings
