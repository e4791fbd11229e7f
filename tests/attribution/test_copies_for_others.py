"""Copies whose actor is not the owner of the slots: loads for the cache, and by it."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from kvcanary_cli.report.finding_text import ownership_part
from tests.attribution.events import HEAD, decode, index_of, life, numbered
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


# How slots 1 to 3 went from a former holder, who copies later, to X.
_LEFT: dict[str, list[Event]] = {
    "A": [{"kind": "free", "owner": "A", "slots": [1, 2, 3], "reason": "retract"}],
    "tree": [
        {"kind": "own", "from": "A", "owner": "tree", "slots": [1, 2, 3], "entry": "P"},
        {"kind": "free", "owner": "tree", "slots": [1, 2, 3], "reason": "evict"},
    ],
}


def _came_back(former: str, by: str | None, *, begun: str, reread: bool) -> list[Event]:
    """A's new transfer fills slots 4 to 6, but brings one block to slot 1, which X has.

    ``begun``: when it began, ``before`` the slots were given away, ``after``, before X ``wrote``
    its prompt, or not at ``all``.
    """
    begin = {"kind": "transfer_begin", "id": "T", "req": "A", "via": "h2d", "slots": [4, 5, 6]}
    copy = _LOAD | {"dst": [4, 5, 1], "via": "h2d"} | ({"by": by} if by else {})
    copy |= {"id": "T"} if begun != "all" else {}
    if by is None:
        copy |= {"src": [101, 102, 103], "src_pool": "host"}
    x = life("X", [51, 52, 53], [1, 2, 3], row=2, step=2)
    return [
        *life("A", [11, 12, 13], [1, 2, 3], row=1, step=1),
        {"kind": "copy", "src": [1, 2, 3], "dst": [101, 102, 103], "dst_pool": "host"},
        *([begin] if begun == "before" else []),
        *_LEFT[former],
        *x[:3],
        *([begin] if begun == "wrote" else []),
        x[3],
        {"kind": "match", "req": "A", "entry": "P", "slots": [], "tier": "host"},
        {"kind": "alloc", "owner": "A", "slots": [4, 5, 6]},
        *([begin] if begun == "after" else []),
        copy,
        *(decode("X", 54, 9, row=2, position=3, step=3) if reread else []),
    ]


@pytest.mark.parametrize(
    ("former", "by", "writer"), [("A", "A", "A"), ("tree", "tree", "tree"), ("tree", None, "A")]
)
@pytest.mark.parametrize("reread", [True, False])
def test_what_was_given_away_before_the_copy_began_did_not_race(
    former: str, by: str | None, writer: str, reread: bool
) -> None:
    events = numbered(_came_back(former, by, begun="after", reread=reread))
    at = index_of(events, "copy", dst=[4, 5, 1])
    report = diagnose(HEAD, events)
    (finding,) = [f for f in report.findings if 1 in f.slots]
    assert (finding.cls, finding.subtype) == ("transfer_mismatch", "wrong_pages")
    assert (finding.cause_event, finding.corrupting_event) == (at, at)
    assert (finding.victim, finding.culprit.req) == ("X", writer)
    assert finding.confidence == "certain"
    assert [f.actor for f in report.ownership if f.event == at] == [writer]


@pytest.mark.parametrize("former", _LEFT)
@pytest.mark.parametrize("begun", ["before", "wrote", "all"])
@pytest.mark.parametrize("reread", [True, False])
def test_what_was_given_away_or_written_while_the_copy_ran_is_a_race(
    former: str, begun: str, reread: bool
) -> None:
    """So is what may have been: without a begin the copy may be under way for long."""
    events = numbered(_came_back(former, former, begun=begun, reread=reread))
    (finding,) = [f for f in diagnose(HEAD, events).findings if 1 in f.slots]
    assert (finding.cls, finding.subtype) == ("transfer_race", "h2d_write_after_free")
    assert finding.cause_event == index_of(events, "free")


def test_a_copy_that_names_nobody_is_no_padding_row() -> None:
    events = numbered(_came_back("A", None, begun="all", reread=False))
    report = diagnose(HEAD, events)
    (broken,) = report.ownership
    assert (broken.actor, broken.step) == (None, None)
    console = Console(width=100, file=StringIO())
    with console.capture() as shown:
        console.print(*ownership_part(report, 100, None))
    assert "a copy" in shown.get()
    assert "padding row" not in shown.get()


@pytest.mark.parametrize("end", ["abort", "finish", "retract"])
@pytest.mark.parametrize("written", [True, False])
@pytest.mark.parametrize("read", [True, False])
def test_a_transfer_for_slots_that_its_request_had_given_back(
    end: str, written: bool, read: bool
) -> None:
    """Who sends goes on for a request that is gone: to the slots that were its, not to wrong ones.

    The begin may come behind everything: what it names was the request's, and is no more.
    """
    slots = [1, 2, 3]
    begin = {"kind": "transfer_begin", "id": "T", "req": "A", "via": "rdma", "slots": slots}
    copy = {"kind": "copy", "src": {"req": "A", "pos": [0, 1, 2]}, "dst": slots, "id": "T"}
    x = life("X", [51, 52, 53], slots, row=2, step=2)
    late = [begin | {"direction": "in"}, copy | {"via": "rdma", "by": "A", "canary": True}]
    events = numbered(
        [
            {"kind": "history", "req": "A", "start": 0, "ids": [11, 12, 13]},
            {"kind": "alloc", "owner": "A", "slots": slots},
            {"kind": "map", "row": 1, "start": 0, "slots": slots},
            {"kind": end, "req": "A"},
            {"kind": "free", "owner": "A", "slots": slots},
            *(x if written else x[:3]),
            *late,
            *([] if written else x[3:]),
            *(decode("X", 54, 9, row=2, position=3, step=3) if read and written else []),
        ]
    )
    (finding,) = diagnose(HEAD, events).findings
    assert (finding.cls, finding.subtype) == ("transfer_race", "rdma_write_after_free")
    assert finding.cause_event == index_of(events, "free")
    assert (finding.victim, finding.culprit.req) == ("X", "A")
    assert finding.confidence == "probable"
