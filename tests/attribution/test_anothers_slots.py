"""Reads of slots that belong to another request: written or not, the same fault has one name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.attribution.events import HEAD, decode, extend, index_of, life, numbered
from tests.attribution.helpers import diagnose

if TYPE_CHECKING:
    from kvcanary_cli.attribution.result import Finding

Event = dict[str, Any]
HEAD_P = HEAD | {"records": [*HEAD["records"], "prefix", "fork"]}
A = life("A", [11, 12, 13], [1, 2, 3], row=1, step=1)
# A has a slot that it never wrote.
SHORT = [*A[:-1], extend(1, "A", 1, 0, [11, 12], [1, 2])]


def _alloc(owner: str, slots: list[int]) -> Event:
    return {"kind": "alloc", "owner": owner, "slots": slots}


def _free(owner: str, slots: list[int]) -> Event:
    return {"kind": "free", "owner": owner, "slots": slots}


def _map(row: int, start: int, slots: list[int]) -> Event:
    return {"kind": "map", "row": row, "start": start, "slots": slots}


def _b_writes(step: int) -> list[Event]:
    ids = {"kind": "history", "req": "B", "start": 0, "ids": [21, 22]}
    return [ids, _map(2, 0, [10, 11]), extend(step, "B", 2, 0, [21, 22], [10, 11])]


def _found(events: list[Event], head: Event = HEAD) -> Finding:
    (finding,) = diagnose(head, numbered(events)).findings
    return finding


@pytest.mark.parametrize("written", ["never", "before the cell", "between", "after a first read"])
def test_a_cell_that_was_set_to_anothers_slot(written: str) -> None:
    events = [*A, _alloc("B", [10, 11])]
    events += _b_writes(2) if written == "before the cell" else []
    events += [_map(1, 1, [10])]
    events += _b_writes(2) if written == "between" else []
    if written == "after a first read":
        events += [*decode("A", 14, 4, row=1, position=3, step=2), *_b_writes(3)]
        events += decode("A", 15, 5, row=1, position=4, step=4)
    else:
        events += decode("A", 14, 4, row=1, position=3, step=3)
    events = numbered(events)
    finding = _found(events, HEAD | {"records": [*HEAD["records"], "prefix"]})
    unsure = _found(events)
    assert (unsure.cls, unsure.confidence, unsure.unseen) == (
        "stale_mapping",
        "probable",
        ("prefix",),
    )
    assert (finding.cls, finding.subtype) == ("stale_mapping", "cells_rewritten")
    assert finding.cause_event == index_of(events, "map", start=1)
    assert (finding.victim, finding.slots, finding.confidence) == ("A", {10}, "certain")
    first = min(e["step"] for e in events if e["kind"] == "forward" and e["seq_lens"] == [4])
    assert finding.first_bad_step == first
    assert any("belongs to B since" in text for text in finding.evidence)
    others = {r.cls for r in finding.ruled_out}
    assert ("unwritten_read" in others) == (written in ("never", "after a first read"))


@pytest.mark.parametrize("tier", [True, False])
def test_what_a_copy_brought_for_its_owner_is_no_fault_of_the_copy(tier: bool) -> None:
    copy = {"kind": "copy", "dst": [10, 11], "by": "B"}
    copy |= {"src": [90, 91], "src_pool": "host"} if tier else {"src": {"req": "B", "pos": [0, 1]}}
    ids = {"kind": "history", "req": "B", "start": 0, "ids": [21, 22]}
    events = [*A, ids, _alloc("B", [10, 11]), copy, _map(1, 1, [10])]
    events += decode("A", 14, 4, row=1, position=3, step=3)
    finding = _found(events)
    assert (finding.cls, finding.subtype) == ("stale_mapping", "cells_rewritten")


@pytest.mark.parametrize("taken", [False, True])
@pytest.mark.parametrize("by", ["A", "Z"])
def test_an_unwritten_slot_that_was_freed_is_freed(taken: bool, by: str) -> None:
    events = [*SHORT, _free(by, [3])]
    events += [_alloc("B", [3])] if taken else []
    events = numbered([*events, *decode("A", 14, 4, row=1, position=3, step=2)])
    (finding,) = diagnose(HEAD, events).findings
    if by == "A":
        assert finding.cls == "use_after_free"
    else:
        # Who frees what another one has breaks a rule of its own.
        assert (finding.cls, finding.subtype) == ("double_alloc", "free_by_non_owner")
    assert finding.cause_event == index_of(events, "free")
    assert (finding.victim, finding.slots) == ("A", {3})


def test_an_unwritten_slot_of_the_reader_stays_unwritten() -> None:
    finding = _found([*SHORT, *decode("A", 14, 4, row=1, position=3, step=2)])
    assert (finding.cls, finding.confidence) == ("unwritten_read", "certain")
    assert {r.because.split(";")[0] for r in finding.ruled_out} == {"the reader owns the slot"}


@pytest.mark.parametrize("copied", [False, True])
def test_a_fork_shares_unwritten_slots_too(copied: bool) -> None:
    fork: Event = {"kind": "fork", "parent": "A", "child": "C", "shared": [1, 2, 3]}
    ids = {"kind": "history", "req": "C", "start": 0, "ids": [11, 12, 13]}
    cells = [1, 2, 3]
    extra: list[Event] = []
    if copied:
        fork |= {"shared": [1, 2], "copy_on_write": [[3, 8]]}
        # Whoever the new slot was booked to.
        extra, cells = [_alloc("A", [8])], [1, 2, 8]
    events = [*SHORT, fork, ids, *extra, _map(3, 0, cells)]
    finding = _found([*events, *decode("C", 14, 9, row=3, position=3, step=2)], HEAD_P)
    subtype = "copy_on_write_skipped" if copied else "never_written_since_alloc"
    assert (finding.cls, finding.subtype) == ("unwritten_read", subtype)
    assert finding.victim == "C"


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("taken", [False, True])
def test_a_hit_on_freed_slots_is_one_finding(written: bool, taken: bool) -> None:
    """Whether or not the new owner wrote what the entry still names."""
    events = life("P", [11, 12], [10, 11], row=4, step=1)
    own = {"kind": "own", "from": "P", "owner": "tree", "slots": [10, 11], "entry": "E"}
    events += [own, {"kind": "finish", "req": "P"}, _free("tree", [10, 11])]
    events += [_alloc("B", [10, 11])] if taken else []
    events += _b_writes(2) if written and taken else []
    events += [
        {"kind": "history", "req": "A", "start": 0, "ids": [11, 12, 13]},
        {"kind": "match", "req": "A", "entry": "E", "slots": [10, 11]},
        _alloc("A", [5]),
        _map(1, 0, [10, 11, 5]),
        extend(3, "A", 1, 2, [13], [5]),
    ]
    events = numbered(events)
    finding = _found(events, HEAD_P)
    assert (finding.cls, finding.subtype) == ("prefix_index", "phantom_hit")
    assert finding.cause_event == index_of(events, "free")
    # The match names wrong slots; where another wrote them since, that write brought the content.
    forwards = [e["i"] for e in events if e["kind"] == "forward"]
    wrote = forwards[1] if written and taken else index_of(events, "match")
    assert finding.corrupting_event == wrote
    assert (finding.victim, list(finding.blast_radius)) == ("A", ["A"])
    assert (finding.first_bad_step, finding.slots) == (3, {10, 11})
    if taken:
        assert finding.culprit.req == "B"


@pytest.mark.parametrize("late", [True, False])
def test_the_wrong_content_of_a_stale_hit_is_what_was_written(late: bool) -> None:
    """Before or after the match: the culprit's write and the corrupting event are one."""
    events = life("P", [11, 12], [10, 11], row=4, step=1)
    own = {"kind": "own", "from": "P", "owner": "tree", "slots": [10, 11], "entry": "E"}
    events += [own, {"kind": "finish", "req": "P"}, _free("tree", [10, 11])]
    taken = life("B", [91, 92], [10, 11], row=5, step=2 if not late else 3)
    events += taken if not late else []
    events += [
        {"kind": "history", "req": "A", "start": 0, "ids": [11, 12, 13]},
        {"kind": "match", "req": "A", "entry": "E", "slots": [10, 11]},
        _alloc("A", [5]),
        _map(1, 0, [10, 11, 5]),
    ]
    events += [extend(2, "A", 1, 2, [13], [5]), *taken] if late else []
    events += decode("A", 14, 6, row=1, position=3, step=4) if late else []
    events += [] if late else [extend(3, "A", 1, 2, [13], [5])]
    events = numbered(events)
    wrote = next(e["i"] for e in events if e["kind"] == "forward" and e["reqs"] == ["B"])
    (finding,) = [f for f in diagnose(HEAD_P, events).findings if f.violations]
    assert (finding.cls, finding.subtype) == ("prefix_index", "phantom_hit")
    assert finding.cause_event == index_of(events, "free")
    assert finding.corrupting_event == finding.culprit.event == wrote


@pytest.mark.parametrize("publisher", ["P", None])
def test_an_entry_without_its_slots_serves_those_of_its_publisher(publisher: str | None) -> None:
    shown: Event = {"kind": "publish", "entry": "E"}
    shown |= {} if publisher is None else {"req": publisher}
    other = life("O", [11, 12], [20, 21], row=5, step=1)
    for slots, sound in (([10, 11], True), ([20, 21], publisher is None)):
        events = [
            *other,
            *life("P", [11, 12], [10, 11], row=4, step=2),
            shown,
            {"kind": "history", "req": "A", "start": 0, "ids": [11, 12, 13]},
            {"kind": "match", "req": "A", "entry": "E", "slots": slots},
            _alloc("A", [5]),
            _map(1, 0, [*slots, 5]),
            extend(3, "A", 1, 2, [13], [5]),
        ]
        diagnosis = diagnose(HEAD_P, numbered(events))
        assert (not diagnosis.findings and not diagnosis.ownership) is sound


@given(
    cell=st.integers(0, 2),
    written=st.booleans(),
    seen=st.lists(st.integers(0, 2), min_size=0, max_size=2, unique=True),
)
@settings(max_examples=40, deadline=None)
def test_a_forward_that_saw_another_row_than_the_table_says(
    cell: int, written: bool, seen: list[int]
) -> None:
    """Where the table's slot holds the reader's content, only the way there is wrong."""
    events = [*A, _alloc("B", [10, 11]), *(_b_writes(2) if written else [])]
    step = decode("A", 14, 4, row=1, position=3, step=3)
    cells = [1, 2, 3]
    cells[cell] = 10
    # Cells beyond what was noted are as the table has them.
    step[-1]["row_as_read"] = {"1": cells[: max([cell, *seen]) + 1]}
    events = numbered([*events, *step])
    finding = _found(events)
    assert (finding.cls, finding.subtype) == ("stale_mapping", "row_not_as_read")
    assert finding.cause_event == index_of(events, "map", row=1)
    assert finding.corrupting_event == events[-1]["i"]
    assert (finding.victim, finding.slots, finding.positions) == ("A", {10}, {cell})


@pytest.mark.parametrize("former", [False, True])
@pytest.mark.parametrize("taken", [False, True])
@pytest.mark.parametrize("content", ["same", "unknown"])
def test_the_row_is_at_fault_where_no_content_differs(
    former: bool, taken: bool, content: str
) -> None:
    """A free is not blamed for a cell that was set to the slot since, taken again or not."""
    events: list[Event] = [*A]
    if former:
        events += [_alloc("Z", [10, 11]), _free("Z", [10, 11])]
    events += [{"kind": "history", "req": "B", "start": 0, "ids": [11, 12]}, _alloc("B", [10, 11])]
    if content == "same":
        events += [_map(2, 0, [10, 11]), extend(2, "B", 2, 0, [11, 12], [10, 11])]
    else:
        events += [{"kind": "copy", "dst": [10, 11], "src": [90, 91], "src_pool": "host"}]
    events += [] if taken else [_free("B", [10, 11])]
    events += [_map(1, 0, [10, 11]), *decode("A", 14, 4, row=1, position=3, step=3)]
    events = numbered(events)
    diagnosis = diagnose(HEAD, events)
    (finding,) = diagnosis.findings
    mapped = index_of(events, "map", row=1, slots=[10, 11])
    assert (finding.cls, finding.subtype) == ("stale_mapping", "cells_rewritten")
    assert (finding.cause_event, finding.culprit.req) == (mapped, "A")
    whose = "B's" if taken else "free"
    assert any(f"was {whose} already" in ruled.because for ruled in finding.ruled_out)
    assert (finding.victim, finding.slots) == ("A", {10, 11})
    assert (finding.first_bad_step, list(finding.blast_radius)) == (3, ["A"])
    assert finding.facts is not None
    assert (finding.facts.access, finding.facts.event) == ("read", events[-1]["i"])
