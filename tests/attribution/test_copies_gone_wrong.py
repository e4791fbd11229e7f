"""Copies that nothing raced with: wrong pages, too few slots, too late, without canary rows."""

from __future__ import annotations

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


@pytest.mark.parametrize("freed", [True, False])
@pytest.mark.parametrize("src", [[12, 13], [11, 12]])
def test_a_copy_to_slots_that_were_another_requests_all_along(src: list[int], freed: bool) -> None:
    former = [*life("X", [1, 2], [1, 2], row=4, step=1), {"kind": "finish", "req": "X"}]
    events = numbered(
        [
            *(former if freed else []),
            *([{"kind": "free", "owner": "X", "slots": [1, 2]}] if freed else []),
            *life("A", [11, 12, 13], [11, 12, 13], row=1, step=2),
            *life("B", [21, 22], [1, 2], row=2, step=3),
            {"kind": "copy", "src": src, "dst": [1, 2], "via": "d2d", "by": "A", "canary": True},
            *decode("B", 23, 4, row=2, position=2, step=4),
        ]
    )
    (finding,) = diagnose(HEAD, events).findings
    assert (finding.cls, finding.subtype) == ("transfer_mismatch", "wrong_pages")
    assert (finding.victim, finding.culprit.req) == ("B", "A")
    assert finding.cause_event == index_of(events, "copy")
    assert not any("changed hands" in r.because for r in finding.ruled_out)


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
