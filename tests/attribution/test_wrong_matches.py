"""A prefix hit on an entry that is not the prefix of the request's tokens."""

from __future__ import annotations

from typing import Any

import pytest

from tests.attribution.events import HEAD, decode, index_of, life, numbered
from tests.attribution.helpers import diagnose

Event = dict[str, Any]
HEAD_P = HEAD | {"records": [*HEAD["records"], "prefix", "namespace"]}
A, B = [1, 2, 3, 4], [5, 6, 7, 8]


def _published(
    theirs: str | None = None, ours: str | None = None, slots: list[int] = B
) -> list[Event]:
    """A and B publish their prompts; C asks for A's and is given ``slots``."""
    events: list[Event] = []
    for req, ids, mine, row in (("A", A, A, 1), ("B", B, B, 2)):
        events += life(req, ids, mine, row=row, step=row)
        shown: Event = {"kind": "publish", "entry": f"p{req}", "req": req, "slots": mine}
        events.append(shown | ({} if theirs is None else {"namespace": theirs}))
    match: Event = {"kind": "match", "req": "C", "entry": "pB", "slots": slots}
    return [
        *events,
        {"kind": "history", "req": "C", "start": 0, "ids": A},
        match | ({} if ours is None else {"namespace": ours}),
        {"kind": "map", "row": 3, "start": 0, "slots": slots},
    ]


def _reads(events: list[Event]) -> list[Event]:
    return numbered([*events, *decode("C", 9, 20, row=3, position=4, step=5)])


@pytest.mark.parametrize("names", [(None, None), ("x", "x"), (None, "x"), ("x", None)])
@pytest.mark.parametrize("slots", [B, [1, 2, 7, 8], [6, 5, 7, 8]])
def test_it_is_the_index_that_is_wrong(
    slots: list[int], names: tuple[str | None, str | None]
) -> None:
    events = _reads(_published(*names, slots=slots))
    (finding,) = diagnose(HEAD_P, events).findings
    assert (finding.cls, finding.subtype) == ("prefix_index", "wrong_entry")
    match = next(e["i"] for e in events if e["kind"] == "match")
    assert (finding.cause_event, finding.corrupting_event) == (match, match)
    assert (finding.victim, finding.culprit.req) == ("C", "B")
    assert finding.slots == set(slots) - {1, 2}
    assert {r.cls for r in finding.ruled_out} == {"stale_mapping", "use_after_free"}


def test_namespaces_that_differ_are_one_key_with_two_meanings() -> None:
    for theirs, ours, subtype in (
        ("lora-1", "lora-2", "namespace"),
        ("lora@1", "lora@2", "adapter_version"),
    ):
        (finding,) = diagnose(HEAD_P, _reads(_published(theirs, ours))).findings
        assert (finding.cls, finding.subtype) == ("key_aliasing", subtype)
    assert (finding.victim, finding.culprit.req) == ("C", "B")


def test_a_right_match_is_none() -> None:
    assert not diagnose(HEAD_P, _reads(_published(slots=A))).findings


def test_cells_that_differ_from_the_match_are_the_rows_fault() -> None:
    cell = {"kind": "map", "row": 3, "start": 1, "slots": [7]}
    (finding,) = diagnose(HEAD_P, _reads([*_published(slots=A), cell])).findings
    assert (finding.cls, finding.subtype) == ("stale_mapping", "cells_rewritten")
    assert finding.slots == {7}


def test_a_slot_that_was_rewritten_after_the_match_is_no_wrong_entry() -> None:
    events = [
        *_published(slots=A),
        {"kind": "free", "owner": "A", "slots": A},
        *life("D", [31, 32], [2, 3], row=4, step=4),
    ]
    (finding,) = diagnose(HEAD_P, _reads(events)).findings
    assert finding.cls == "use_after_free"


def test_a_prefix_that_was_written_at_wrong_positions_is_its_writers_fault() -> None:
    events = _published(slots=A)
    forward = next(e for e in events if e["kind"] == "forward")
    forward["positions"] = [1, 2, 3, 4]
    findings = diagnose(HEAD_P, _reads(events)).findings
    assert {f.cls for f in findings} == {"position_misalign"}
    assert {f.culprit.req for f in findings} == {"A"}


@pytest.mark.parametrize("read_between", [False, True])
@pytest.mark.parametrize("swapped", [(0, 1), (0, 3), (2, 3)])
def test_cells_that_changed_places_behind_a_match_are_no_hit_on_what_was_freed(
    swapped: tuple[int, int], read_between: bool
) -> None:
    """The slots had been freed and loaded anew before; the row leads to the wrong one of them."""
    one, other = swapped
    events = [
        *_published(slots=A)[:-3],
        {"kind": "own", "from": "A", "owner": "tree", "slots": A},
        {"kind": "copy", "src": A, "dst": [50, 51, 52, 53], "via": "d2h", "dst_pool": "host"},
        {"kind": "free", "owner": "tree", "slots": A, "reason": "evict"},
        {"kind": "alloc", "owner": "tree", "slots": A},
        {"kind": "copy", "src": [50, 51, 52, 53], "dst": A, "via": "h2d", "src_pool": "host"},
        {"kind": "history", "req": "C", "start": 0, "ids": A},
        {"kind": "match", "req": "C", "entry": "pA", "slots": A},
        {"kind": "map", "row": 3, "start": 0, "slots": A},
        *(decode("C", 8, 19, row=3, position=4, step=4) if read_between else []),
        {"kind": "map", "row": 3, "start": one, "slots": [A[other]]},
        {"kind": "map", "row": 3, "start": other, "slots": [A[one]]},
    ]
    at = 4 + read_between
    trace = numbered([*events, *decode("C", 9, 20, row=3, position=at, step=5)])
    (finding,) = diagnose(HEAD_P, trace).findings
    assert (finding.cls, finding.subtype) == ("stale_mapping", "cells_rewritten")
    assert (finding.culprit.req, finding.slots) == ("C", {A[one], A[other]})
    assert finding.cause_event == index_of(trace, "map", row=3, start=one, slots=[A[other]])


@pytest.mark.parametrize("flipped", A)
def test_bytes_that_changed_behind_a_match_are_no_hit_on_what_was_freed(flipped: int) -> None:
    """The slots had been freed and written anew, with the same text, before they were matched."""
    prints = {"kind": "kv_hash", "slots": A}
    values = [100 + slot for slot in A]
    seen = [value + 5000 * (slot == flipped) for slot, value in zip(A, values, strict=True)]
    last = decode("C", 9, 20, row=3, position=4, step=5)
    events = [
        *life("A", A, A, row=1, step=1),
        {"kind": "publish", "entry": "pA", "req": "A", "slots": A},
        {"kind": "free", "owner": "A", "slots": A},
        *life("B", A, A, row=2, step=2),
        prints | {"phase": "after", "step": 2, "hash": values},
        {"kind": "history", "req": "C", "start": 0, "ids": A},
        {"kind": "match", "req": "C", "entry": "pA", "slots": A},
        {"kind": "map", "row": 3, "start": 0, "slots": A},
        *last[:-1],
        prints | {"phase": "before", "step": 5, "hash": seen},
        last[-1],
    ]
    head = HEAD_P | {"records": [*HEAD_P["records"], "kv_hash"]}
    found = [f for f in diagnose(head, numbered(events)).findings if f.violations]
    assert [(f.cls, f.subtype, f.slots) for f in found] == [
        ("payload_mutation", "kv_bytes", {flipped})
    ]
