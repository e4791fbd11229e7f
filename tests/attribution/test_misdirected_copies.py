"""A copy to the wrong slot: who lost what was there and who waits for it suffer from one fault."""

from __future__ import annotations

from typing import Any

import pytest

from tests.attribution.events import HEAD, decode, extend, index_of, life, numbered
from tests.attribution.helpers import diagnose

Event = dict[str, Any]

_HEAD = HEAD | {"records": [*HEAD["records"], "prefix", "fork", "spec"]}
# Where the copies below put what belongs in the other slot.
_WRONG = 20
_LACKING = 6
_Q: list[Event] = [
    *life("Q", [41, 42], [_WRONG, 21], row=6, step=1),
    {"kind": "finish", "req": "Q"},
]
_CACHED = {"kind": "own", "from": "Q", "owner": "tree", "slots": [_WRONG, 21], "entry": "E"}
# Whose the wrong slot is, and who reads it behind the copy.
_LANDINGS: dict[str, tuple[list[Event], list[Event], str | None]] = {
    "another request's": (
        life("X", [31, 32], [_WRONG, 21], row=5, step=1),
        decode("X", 33, 22, row=5, position=2, step=9),
        "X",
    ),
    "the cache's": (
        [*_Q, _CACHED],
        [
            {"kind": "history", "req": "U", "start": 0, "ids": [41, 42, 43]},
            {"kind": "match", "req": "U", "entry": "E", "slots": [_WRONG, 21]},
            {"kind": "alloc", "owner": "U", "slots": [22]},
            {"kind": "map", "row": 5, "start": 0, "slots": [_WRONG, 21, 22]},
            extend(9, "U", 5, 2, [43], [22]),
        ],
        "U",
    ),
    "free again": ([*_Q, {"kind": "free", "owner": "Q", "slots": [_WRONG, 21]}], [], None),
    "never used": ([], [], None),
}


def _forked(by: dict[str, str], early: bool) -> list[Event]:
    """C shares A's first slots and gets a copy of the third one."""
    mapped = [{"kind": "map", "row": 2, "start": 0, "slots": [1, 2, 6]}]
    fork = {"kind": "fork", "parent": "A", "child": "B", "shared": [1, 2]}
    return [
        *life("A", [11, 12, 13], [1, 2, 3], row=1, step=2),
        {"kind": "history", "req": "B", "start": 0, "ids": [11, 12, 13]},
        fork | {"copy_on_write": [[3, 6]]},
        {"kind": "alloc", "owner": "B", "slots": [6]},
        *(mapped if early else []),
        {"kind": "copy", "src": [3], "dst": [_WRONG], "via": "cow", **by},
        *([] if early else mapped),
    ]


def _received(by: dict[str, str], early: bool) -> list[Event]:
    """B's prompt comes from a peer."""
    mapped = [{"kind": "map", "row": 2, "start": 0, "slots": [4, 5, 6]}]
    window = {"id": "T", "req": "B", "slots": [4, 5, 6], "via": "rdma", "direction": "in"}
    copy = {"src": {"req": "B", "pos": [0, 1, 2]}, "dst": [4, 5, _WRONG], "id": "T"}
    return [
        {"kind": "history", "req": "B", "start": 0, "ids": [11, 12, 13]},
        {"kind": "alloc", "owner": "B", "slots": [4, 5, 6]},
        *(mapped if early else []),
        {"kind": "transfer_begin", **window},
        {"kind": "copy", "via": "rdma", **copy, **by},
        {"kind": "transfer_end", "id": "T"},
        *([] if early else mapped),
    ]


def _loaded(by: dict[str, str], early: bool) -> list[Event]:
    """B matched what A left on the host."""
    mapped = [{"kind": "map", "row": 2, "start": 0, "slots": [4, 5, 6]}]
    window: Event = {"id": "L", "req": "B", "slots": [4, 5, 6], "via": "h2d"}
    copy = {"src": [101, 102, 103], "dst": [4, 5, _WRONG], "src_pool": "host", "via": "h2d"}
    return [
        *life("A", [11, 12, 13], [1, 2, 3], row=1, step=2),
        {"kind": "copy", "src": [1, 2, 3], "dst": [101, 102, 103], "dst_pool": "host"},
        {"kind": "history", "req": "B", "start": 0, "ids": [11, 12, 13]},
        {"kind": "match", "req": "B", "entry": "P", "slots": [], "tier": "host"},
        {"kind": "alloc", "owner": "B", "slots": [4, 5, 6]},
        *(mapped if early else []),
        *([] if by else [{"kind": "transfer_begin", **window}]),
        {"kind": "copy", **copy, **by, **({} if by else {"id": "L"})},
        *([] if by else [{"kind": "transfer_end", "id": "L"}]),
        *([] if early else mapped),
    ]


def _accepted(by: dict[str, str], early: bool) -> list[Event]:
    """Two of B's accepted drafts move up behind its prompt; the second one does not get there."""
    tree = {"parent": [-1, 0, 0, 2]}
    verify = extend(3, "B", 2, 1, [12, 91, 13, 14], [4, 5, 6, 7])
    for name in ("extend_prefix_lens", "extend_seq_lens"):
        del verify[name]
    verify |= {"forward_mode": "TARGET_VERIFY", "seq_lens": [1], "positions": [1, 2, 2, 3]}
    return [
        *life("B", [11], [1], row=2, step=2),
        {"kind": "history", "req": "B", "start": 0, "ids": [11, 12, 13, 14]},
        {"kind": "alloc", "owner": "B", "slots": [4, 5, 6, 7]},
        {"kind": "map", "row": 2, "start": 1, "slots": [4, 5, 6, 7]},
        verify | {"draft_token_num": 4, "tree": tree},
        {"kind": "accept", "req": "B", "nodes": [0, 2, 3], "tokens": [12, 13, 14]}
        | {"committed_len": 4},
        {"kind": "copy", "src": [6, 7], "dst": [5, _WRONG], "via": "d2d", **by},
    ]


_COPIES = {
    "copy on write": (_forked, "B", 3),
    "peer": (_received, "B", 3),
    "host": (_loaded, "B", 3),
    "accepted drafts": (_accepted, "B", 4),
}


@pytest.mark.parametrize("landing", _LANDINGS)
@pytest.mark.parametrize("kind", _COPIES)
@pytest.mark.parametrize("by", [{"by": "B"}, {}])
@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("readers", ["both", "stranger first", "waiting", "stranger"])
def test_one_fault_is_told_once(
    kind: str, landing: str, by: dict[str, str], early: bool, readers: str
) -> None:
    make, actor, length = _COPIES[kind]
    before, loss, stranger = _LANDINGS[landing]
    waits = decode("B", 19, 9, row=2, position=length, step=8)
    if readers == "stranger first":
        waits[-1]["step"] = 10
    order = {
        "both": [*waits, *loss],
        "stranger first": [*loss, *waits],
        "waiting": waits,
        "stranger": loss,
    }[readers]
    events = numbered([*before, *make(by, early), *order])
    found = diagnose(_HEAD, events).findings
    if landing == "never used" and readers == "stranger":
        # Nobody had the slot and nobody missed anything.
        assert not found
        return
    (finding,) = found
    assert (finding.cls, finding.subtype) == ("transfer_mismatch", "wrong_pages")
    at = index_of(events, "copy", dst=next(e["dst"] for e in events if _WRONG in e.get("dst", [])))
    assert (finding.cause_event, finding.corrupting_event) == (at, at)
    # Without a name, who had the source sent it: a fork's parent.
    assert finding.culprit.req == ("A" if kind == "copy on write" and not by else actor)
    read = readers != "stranger"
    lost = landing != "never used"
    assert finding.slots == ({_LACKING} if read else set()) | ({_WRONG} if lost else set())
    if read:
        assert finding.confidence == "certain"
        assert any(f"slot {_LACKING}, where B reads it, got nothing" in t for t in finding.evidence)
    assert not any("no copy since" in text for text in finding.evidence)
    met = [*(["B"] if read else []), *([stranger] if stranger and readers != "waiting" else [])]
    assert set(finding.blast_radius) == set(met)


@pytest.mark.parametrize("kind", _COPIES)
@pytest.mark.parametrize("by", [{"by": "B"}, {}])
@pytest.mark.parametrize("early", [True, False])
def test_the_same_copies_to_the_right_slots_are_clean(
    kind: str, by: dict[str, str], early: bool
) -> None:
    make, _actor, length = _COPIES[kind]
    events = make(by, early)
    for event in events:
        if _WRONG in event.get("dst", []):
            event["dst"] = [6 if slot == _WRONG else slot for slot in event["dst"]]
    events += decode("B", 19, 9, row=2, position=length, step=8)
    report = diagnose(_HEAD, numbered(events))
    assert not report.findings
    assert not report.ownership


@pytest.mark.parametrize("kind", ["copy on write", "peer", "host"])
def test_a_copy_that_does_not_happen_is_no_wrong_copy(kind: str) -> None:
    """Another copy of the request, which came where it belongs, is not to blame."""
    make, _actor, length = _COPIES[kind]
    events = make({"by": "B"}, True)
    for event in events:
        if _WRONG in event.get("dst", []):
            keep = [k for k, slot in enumerate(event["dst"]) if slot != _WRONG]
            event["dst"] = [event["dst"][k] for k in keep]
            if isinstance(event["src"], dict):
                event["src"]["pos"] = [event["src"]["pos"][k] for k in keep]
            else:
                event["src"] = [event["src"][k] for k in keep]
    events = [event for event in events if event.get("dst") != []]
    events += decode("B", 19, 9, row=2, position=length, step=8)
    (finding,) = diagnose(_HEAD, numbered(events)).findings
    assert (finding.cls, finding.subtype) in {
        ("unwritten_read", "copy_on_write_skipped"),
        ("unwritten_read", "never_written_since_alloc"),
        ("transfer_mismatch", "incomplete_transfer"),
    }
    assert finding.slots == {6}


def test_two_children_of_one_slot_do_not_get_each_others_blame() -> None:
    """The copy for the first child is right, the one for the second does not happen."""
    fork = {"kind": "fork", "parent": "A", "shared": [1, 2]}
    events = numbered(
        [
            *life("A", [11, 12, 13], [1, 2, 3], row=1, step=2),
            {"kind": "history", "req": "B", "start": 0, "ids": [11, 12, 13]},
            {"kind": "history", "req": "C", "start": 0, "ids": [11, 12, 13]},
            fork | {"child": "C", "copy_on_write": [[3, 7]]},
            fork | {"child": "B", "copy_on_write": [[3, 6]]},
            {"kind": "alloc", "owner": "B", "slots": [6]},
            {"kind": "alloc", "owner": "C", "slots": [7]},
            {"kind": "map", "row": 2, "start": 0, "slots": [1, 2, 6]},
            {"kind": "map", "row": 3, "start": 0, "slots": [1, 2, 7]},
            {"kind": "copy", "src": [3], "dst": [7], "via": "cow"},
            *decode("C", 18, 8, row=3, position=3, step=7),
            *decode("B", 19, 9, row=2, position=3, step=8),
        ]
    )
    (finding,) = diagnose(_HEAD, events).findings
    assert (finding.cls, finding.subtype) == ("unwritten_read", "copy_on_write_skipped")
    assert (finding.victim, finding.slots) == ("B", {6})


def test_a_copy_before_the_slot_was_given_is_not_to_blame() -> None:
    """What was brought for an earlier stay of the request says nothing of this one."""
    events = numbered(
        [
            {"kind": "history", "req": "B", "start": 0, "ids": [11, 12, 13]},
            {"kind": "alloc", "owner": "B", "slots": [4, 5, 20]},
            {"kind": "copy", "src": {"req": "B", "pos": [0, 1, 2]}, "dst": [4, 5, 20]}
            | {"via": "rdma", "by": "B"},
            {"kind": "free", "owner": "B", "slots": [4, 5, 20], "reason": "retract"},
            {"kind": "retract", "req": "B"},
            {"kind": "alloc", "owner": "B", "slots": [1, 2, 3]},
            {"kind": "map", "row": 2, "start": 0, "slots": [1, 2, 3]},
            *decode("B", 19, 9, row=2, position=3, step=8),
        ]
    )
    (finding,) = diagnose(_HEAD, events).findings
    assert (finding.cls, finding.slots) == ("unwritten_read", {1, 2, 3})


@pytest.mark.parametrize("records", [{"alloc"}, {"history"}, {"alloc", "history"}, set()])
def test_a_cell_that_left_a_right_copy_is_to_blame_itself(records: set[str]) -> None:
    """Whatever is recorded: what is read is empty, what was copied is where the row led."""
    kept = [
        {"kind": "history", "req": "B", "start": 0, "ids": [11, 12, 13]},
        {"kind": "alloc", "owner": "B", "slots": [4, 5, 6, 10]},
        {"kind": "map", "row": 2, "start": 0, "slots": [4, 5, 6]},
        {"kind": "copy", "src": {"req": "B", "pos": [0, 1, 2]}, "dst": [4, 5, 6], "via": "rdma"}
        | {"by": "B"},
        {"kind": "map", "row": 2, "start": 1, "slots": [10]},
        *decode("B", 19, 9, row=2, position=3, step=8),
    ]
    left_out = records - {"history"} if "history" in records else records
    head = _HEAD | {"records": [r for r in _HEAD["records"] if r not in left_out]}
    events = [event for event in kept if event["kind"] not in left_out]
    found = diagnose(head, numbered(events)).findings
    assert all(f.subtype != "wrong_pages" for f in found)
    assert found


@pytest.mark.parametrize("by", ["A", "B", None])
@pytest.mark.parametrize("early", [True, False])
def test_either_side_of_a_fork_may_copy_what_it_meant(by: str | None, early: bool) -> None:
    """The parent too: the fork names the slot of its child."""
    events = _forked({"by": by} if by else {}, early)
    for event in events:
        if event["kind"] == "copy":
            event["dst"] = [_LACKING]
    events += decode("B", 19, 9, row=2, position=3, step=8)
    report = diagnose(_HEAD, numbered(events))
    assert not report.findings
    assert not report.ownership


@pytest.mark.parametrize("landing", _LANDINGS)
@pytest.mark.parametrize("named", [True, False])
def test_a_slot_that_still_holds_what_did_not_come_is_one_fault_too(
    landing: str, named: bool
) -> None:
    """B comes back to its slots: what one of them lacks, it has from before."""
    before, _loss, _stranger = _LANDINGS[landing]
    copy = {"kind": "copy", "src": {"req": "B", "pos": [0, 1, 2]}, "via": "rdma", "by": "B"}
    window = {"id": "T", "req": "B", "slots": [4, 5, _LACKING], "via": "rdma", "direction": "in"}
    slots = [4, 5, _LACKING]
    events = numbered(
        [
            *before,
            {"kind": "history", "req": "B", "start": 0, "ids": [11, 12, 13]},
            {"kind": "alloc", "owner": "B", "slots": slots},
            copy | {"dst": slots},
            {"kind": "free", "owner": "B", "slots": slots, "reason": "retract"},
            {"kind": "retract", "req": "B"},
            {"kind": "alloc", "owner": "B", "slots": slots},
            {"kind": "map", "row": 2, "start": 0, "slots": slots},
            *([{"kind": "transfer_begin", **window}] if named else []),
            copy | {"dst": [4, 5, _WRONG]} | ({"id": "T"} if named else {}),
            *decode("B", 19, 9, row=2, position=3, step=8),
        ]
    )
    (finding,) = diagnose(_HEAD, events).findings
    assert (finding.cls, finding.subtype) == ("transfer_mismatch", "wrong_pages")
    assert finding.cause_event == index_of(events, "copy", dst=[4, 5, _WRONG])
    assert finding.culprit.req == "B"
    lost = {_WRONG} if landing != "never used" else set()
    assert finding.slots == {_LACKING} | lost
    assert sum("got nothing" in text for text in finding.evidence) == 1
    assert list(finding.blast_radius) == ["B"]
