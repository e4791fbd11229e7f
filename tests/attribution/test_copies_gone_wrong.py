"""Copies that nothing raced with: wrong pages, too few slots, too late, without canary rows."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.attribution.events import HEAD, decode, index_of, life, numbered
from tests.attribution.helpers import diagnose

Event = dict[str, Any]


def _incoming(*, dst: list[int], late: bool) -> list[Event]:
    """A transfer names slots 1 to 3 and brings ``dst``; A reads before or after it came."""
    copy = {"kind": "copy", "src": {"req": "A", "pos": [s - 1 for s in dst]}, "dst": dst}
    came = [copy | {"id": "T", "via": "rdma", "by": "A"}, {"kind": "transfer_end", "id": "T"}]
    begin = {"kind": "transfer_begin", "id": "T", "req": "A", "slots": [1, 2, 3], "via": "rdma"}
    read = decode("A", 14, 4, row=1, position=3, step=1)
    return [
        {"kind": "history", "req": "A", "start": 0, "ids": [11, 12, 13]},
        {"kind": "alloc", "owner": "A", "slots": [1, 2, 3]},
        {"kind": "map", "row": 1, "start": 0, "slots": [1, 2, 3]},
        begin | {"direction": "in"},
        *(read if late else []),
        *came,
        *([] if late else read),
    ]


def test_a_read_before_the_transfer_arrived_says_when_it_did() -> None:
    events = numbered(_incoming(dst=[1, 2, 3], late=True))
    (finding,) = diagnose(HEAD, events).findings
    assert (finding.cls, finding.confidence) == ("unwritten_read", "certain")
    text = " ".join(finding.evidence)
    assert f"ended at event {index_of(events, 'transfer_end')}" in text
    assert f"its copy came at event {index_of(events, 'copy')}, after the read" in text
    assert "no copy of it is recorded" not in text


@pytest.mark.parametrize("dst", [[1, 2], [1], [2, 3]])
def test_a_transfer_that_ended_without_some_of_its_slots(dst: list[int]) -> None:
    events = numbered(_incoming(dst=dst, late=False))
    (finding,) = diagnose(HEAD, events).findings
    assert (finding.cls, finding.subtype) == ("transfer_mismatch", "incomplete_transfer")
    assert finding.cause_event == index_of(events, "transfer_end")
    assert finding.slots == {1, 2, 3} - set(dst)
    assert any("transfer T began" in text for text in finding.evidence)


def _free(owner: str, slots: list[int]) -> Event:
    return {"kind": "free", "owner": owner, "slots": slots}


# What the slots of the copy went through before B, or the cache, got them.
_Q: Event = {"kind": "alloc", "owner": "Q", "slots": [1, 2]}
_BEFORE: dict[str, list[Event]] = {
    "nothing": [],
    "a tenant": [_Q, _free("Q", [1, 2]), {"kind": "finish", "req": "Q"}],
    "freed by another": [_Q, _free("R", [1, 2]), {"kind": "finish", "req": "Q"}],
    "freed twice": [_Q, _free("Q", [1, 2]), _free("Q", [1, 2]), {"kind": "finish", "req": "Q"}],
}


@pytest.mark.parametrize("before", _BEFORE)
@pytest.mark.parametrize("src", [[12, 13], [11, 12]])
@pytest.mark.parametrize("windowed", [True, False])
@pytest.mark.parametrize("read", [True, False])
def test_a_copy_to_slots_that_it_never_had(
    before: str, src: list[int], windowed: bool, read: bool
) -> None:
    copy: Event = {"kind": "copy", "src": src, "dst": [1, 2], "via": "d2d", "by": "A"}
    begin: Event = {"kind": "transfer_begin", "id": "T", "req": "A", "slots": [1, 2]}
    events = numbered(
        [
            *_BEFORE[before],
            *life("A", [11, 12, 13], [11, 12, 13], row=1, step=2),
            *life("B", [21, 22], [1, 2], row=2, step=3),
            *([begin | {"via": "d2d"}] if windowed else []),
            copy | {"canary": True} | ({"id": "T"} if windowed else {}),
            *(decode("B", 23, 4, row=2, position=2, step=4) if read else []),
        ]
    )
    found = diagnose(HEAD, events).findings
    at = index_of(events, "copy")
    (finding,) = [f for f in found if f.corrupting_event == at]
    assert (finding.cls, finding.subtype) == ("transfer_mismatch", "wrong_pages")
    assert (finding.victim, finding.culprit.req) == ("B", "A")
    assert (finding.cause_event, finding.slots) == (at, {1, 2})
    assert (finding.first_bad_step, list(finding.blast_radius)) == (
        (4, ["B"]) if read else (None, [])
    )
    assert any("no damaged content was read" in text for text in finding.evidence) is not read
    assert [r.cls for r in finding.ruled_out] == ["transfer_race"]
    assert not any("changed hands" in r.because for r in finding.ruled_out)
    # A begin behind the hand-over proves it; without one an earlier tenant's copy may be late.
    assert finding.confidence == ("certain" if windowed or before == "nothing" else "probable")
    # What broke before is a fault of its own, and the only other one.
    assert {f.cls for f in found} - {"transfer_mismatch"} == (
        set() if before in ("nothing", "a tenant") else {"double_alloc"}
    )


@pytest.mark.parametrize("owner", ["tree", None])
def test_a_copy_to_slots_of_the_cache_or_of_nobody(owner: str | None) -> None:
    own = {"kind": "own", "from": "X", "owner": "tree", "slots": [1, 2], "entry": "E"}
    events = numbered(
        [
            *life("X", [1, 2], [1, 2], row=4, step=1),
            own if owner else _free("X", [1, 2]),
            {"kind": "finish", "req": "X"},
            *life("A", [11, 12, 13], [11, 12, 13], row=1, step=2),
            {"kind": "copy", "src": [12, 13], "dst": [1, 2], "via": "d2d", "by": "A"},
        ]
    )
    (finding,) = diagnose(HEAD, events).findings
    assert (finding.cls, finding.subtype) == ("transfer_mismatch", "wrong_pages")
    assert (finding.victim, finding.culprit.req, finding.slots) == (None, "A", {1, 2})


@pytest.mark.parametrize("before", _BEFORE)
@pytest.mark.parametrize("read", [True, False])
def test_a_copy_that_lost_its_slots_while_it_ran_is_a_race(before: str, read: bool) -> None:
    events = numbered(
        [
            *_BEFORE[before],
            {"kind": "alloc", "owner": "A", "slots": [1, 2]},
            {"kind": "transfer_begin", "id": "T", "req": "A", "slots": [1, 2], "via": "rdma"},
            _free("A", [1, 2]) | {"reason": "abort"},
            *life("B", [21, 22], [1, 2], row=2, step=3),
            {"kind": "copy", "src": {"req": "A", "pos": [0, 1]}, "dst": [1, 2], "id": "T"}
            | {"via": "rdma", "by": "A"},
            *(decode("B", 23, 4, row=2, position=2, step=4) if read else []),
        ]
    )
    at = index_of(events, "copy")
    (finding,) = [f for f in diagnose(HEAD, events).findings if f.corrupting_event == at]
    assert (finding.cls, finding.subtype) == ("transfer_race", "rdma_write_after_free")
    assert finding.cause_event == index_of(events, "free", reason="abort")
    assert (finding.victim, finding.culprit.req) == ("B", "A")


@pytest.mark.parametrize("read", [True, False])
def test_slots_that_somebody_got_while_the_copy_ran(read: bool) -> None:
    """Whose they were when it began is not known."""
    events = numbered(
        [
            {"kind": "transfer_begin", "id": "T", "req": "A", "slots": [1, 2], "via": "rdma"},
            *life("B", [21, 22], [1, 2], row=2, step=3),
            {"kind": "copy", "src": {"req": "A", "pos": [0, 1]}, "dst": [1, 2], "id": "T"}
            | {"via": "rdma", "by": "A"},
            *(decode("B", 23, 4, row=2, position=2, step=4) if read else []),
        ]
    )
    (finding,) = diagnose(HEAD, events).findings
    assert (finding.cls, finding.confidence) == ("transfer_race", "probable")
    assert finding.cause_event == index_of(events, "alloc", owner="B")
    text = " ".join(finding.evidence)
    assert "not recorded" not in text
    assert "B got slot 1" in text


def test_a_copy_without_canary_rows_says_so_and_is_one_finding() -> None:
    events = numbered(
        [
            *life("A", [11, 12, 13], [11, 12, 13], row=1, step=1),
            {"kind": "alloc", "owner": "A", "slots": [1, 2, 3]},
            {"kind": "copy", "src": [11, 12, 13], "dst": [1, 2, 3], "by": "A", "canary": False},
            {"kind": "map", "row": 1, "start": 0, "slots": [1, 2, 3]},
            *decode("A", 14, 4, row=1, position=3, step=2),
        ]
    )
    (finding,) = diagnose(HEAD, events).findings
    assert (finding.cls, finding.subtype) == ("transfer_mismatch", "canary_left_behind")
    assert (finding.confidence, finding.slots) == ("possible", {1, 2, 3})
    text = " ".join(finding.evidence)
    assert "without their canary rows" in text
    assert "offset" not in text


@pytest.mark.parametrize("end", ["retract", "abort"])
@pytest.mark.parametrize("by", [{}, {"by": "A"}])
@pytest.mark.parametrize("released", [True, False])
def test_a_flush_through_a_row_that_has_another_tenant(
    end: str, by: dict[str, str], released: bool
) -> None:
    events = numbered(
        [
            *life("A", [11, 12, 13], [1, 2, 3], row=1, step=1),
            {"kind": "deferred_write", "req": "A", "pos": [2]},
            {"kind": end, "req": "A"},
            {"kind": "free", "owner": "A", "slots": [1, 2, 3]},
            *([{"kind": "row_release", "row": 1, "req": "A"}] if released else []),
            *life("B", [21, 22, 23], [4, 5, 6], row=1, step=2),
            {"kind": "copy", "src": {"req": "A", "pos": [2]}, "dst": [6], "via": "flush", **by}
            | {"via_row": 1, "canary": True},
            *decode("B", 24, 7, row=1, position=3, step=3),
        ]
    )
    (finding,) = diagnose(HEAD, events).findings
    assert (finding.cls, finding.subtype) == ("late_write", "deferred_flush_through_reused_row")
    assert (finding.victim, finding.culprit.req, finding.slots) == ("B", "A", {6})
    assert finding.cause_event == index_of(events, "row_release" if released else "copy")
    assert finding.corrupting_event == index_of(events, "copy")
    assert finding.confidence == ("certain" if released else "probable")


def _given_to_the_cache(req: str, slot: int, row: int, step: int) -> list[Event]:
    return [
        *life(req, [10 + step], [slot], row=row, step=step),
        {"kind": "own", "from": req, "owner": "tree", "slots": [slot]},
    ]


@pytest.mark.parametrize("slots", list(itertools.permutations([4, 5, 6])))
def test_one_copy_that_went_wrong_in_two_ways(slots: tuple[int, ...]) -> None:
    """Which slots went which way does not hang on their numbers, nor how sure it is."""
    mine, others, reused = slots
    events = [
        *life("T", [41], [reused], row=3, step=0),
        {"kind": "finish", "req": "T"},
        {"kind": "free", "owner": "T", "slots": [reused]},
        *_given_to_the_cache("R", mine, row=1, step=1),
        *_given_to_the_cache("S", others, row=2, step=2),
        *_given_to_the_cache("U", reused, row=4, step=3),
        {"kind": "copy", "src": [30, 31, 32], "dst": list(slots), "via": "d2d", "by": "R"},
    ]
    found = {(f.cls, f.confidence): f.slots for f in diagnose(HEAD, numbered(events)).findings}
    assert found == {
        ("transfer_race", "probable"): {mine},
        ("transfer_mismatch", "probable"): {others, reused},
    }
