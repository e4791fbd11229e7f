"""Batches that name other slots, or another row, than the request table gives their requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.attribution.events import HEAD, decode, extend, index_of, life, numbered
from tests.attribution.helpers import diagnose

if TYPE_CHECKING:
    from kvcanary_cli.attribution.result import Finding

Event = dict[str, Any]

BOTH = [
    *life("A", [11, 12, 13], [1, 2, 3], row=1, step=1),
    *life("B", [21, 22, 23], [4, 5, 6], row=2, step=2),
]


def _given(req: str, token: int, slot: int, row: int, position: int) -> list[Event]:
    """What a request gets before one decode of it."""
    return decode(req, token, slot, row, position, 0)[:-1]


def _batch(step: int, *rows: tuple[str, int, int, int, int]) -> Event:
    """A decode of several (request, row, token, position, slot)."""
    reqs, table, tokens, positions, slots = map(list, zip(*rows, strict=True))
    return {
        "kind": "forward",
        "step": step,
        "forward_mode": "DECODE",
        "reqs": reqs,
        "req_pool_indices": table,
        "seq_lens": [position + 1 for position in positions],
        "input_ids": tokens,
        "positions": positions,
        "out_cache_loc": slots,
    }


def _two(*, slots: tuple[int, int] = (7, 8), rows: tuple[int, int] = (1, 2)) -> list[Event]:
    """A and B decode together twice; the first time to ``slots``, in ``rows``."""
    return numbered(
        [
            *BOTH,
            *_given("A", 14, 7, row=1, position=3),
            *_given("B", 24, 8, row=2, position=3),
            _batch(3, ("A", rows[0], 14, 3, slots[0]), ("B", rows[1], 24, 3, slots[1])),
            *_given("A", 15, 9, row=1, position=4),
            *_given("B", 25, 10, row=2, position=4),
            _batch(4, ("A", 1, 15, 4, 9), ("B", 2, 25, 4, 10)),
        ]
    )


def _said(finding: Finding) -> tuple[str, str, int | None, str]:
    return finding.cls, finding.subtype, finding.cause_event, finding.confidence


def test_what_a_batch_writes_where_its_rows_say_is_clean() -> None:
    diagnosis = diagnose(HEAD, _two())
    assert not diagnosis.findings
    assert not diagnosis.ownership


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_slots_of_two_requests_of_a_batch_are_swapped(backend: str) -> None:
    events = _two(slots=(8, 7))
    at = index_of(events, "forward", step=3)
    (finding,) = diagnose(HEAD, events, backend).findings
    assert _said(finding) == ("stale_mapping", "written_beside_row", at, "certain")
    assert (finding.victim, finding.culprit.req, finding.culprit.step) == ("A", "B", 3)
    assert finding.slots == {7, 8}
    assert list(finding.blast_radius) == ["A", "B"]


def test_two_requests_of_a_batch_write_one_slot() -> None:
    """The one whose slot it is reads the other's; the other's own slot stays unwritten."""
    events = _two(slots=(7, 7))
    at = index_of(events, "forward", step=3)
    (finding,) = diagnose(HEAD, events).findings
    assert _said(finding) == ("stale_mapping", "written_beside_row", at, "certain")
    assert (finding.culprit.req, finding.slots) == ("B", {7, 8})


@pytest.mark.parametrize(
    ("prefix", "ids", "slots", "damaged"),
    [
        # The block list is the first chunk's: it is written over, its own slots never are.
        (3, [14, 15, 16], [1, 2, 3], {1, 2, 3, 4, 5, 6}),
        # The prefix is one short: each token goes where the row has the next one.
        (2, [13, 14, 15], [4, 5, 6], {4, 5, 6}),
        # The first chunk is run again, to the second one's slots.
        (0, [11, 12, 13], [4, 5, 6], {4, 5, 6}),
    ],
)
def test_a_chunk_written_over_other_positions_of_its_request(
    prefix: int, ids: list[int], slots: list[int], damaged: set[int]
) -> None:
    events = numbered(
        [
            *life("A", [11, 12, 13], [1, 2, 3], row=1, step=1),
            {"kind": "history", "req": "A", "start": 3, "ids": [14, 15, 16]},
            {"kind": "alloc", "owner": "A", "slots": [4, 5, 6]},
            {"kind": "map", "row": 1, "start": 3, "slots": [4, 5, 6]},
            extend(2, "A", 1, prefix, ids, slots),
            *decode("A", 17, 7, row=1, position=6, step=3),
        ]
    )
    (finding,) = diagnose(HEAD, events).findings
    at = index_of(events, "forward", step=2)
    assert _said(finding) == ("stale_mapping", "written_beside_row", at, "certain")
    assert (finding.victim, finding.culprit.req, finding.culprit.step) == ("A", "A", 2)
    assert finding.slots == damaged


def test_a_row_that_names_its_slots_at_two_positions() -> None:
    """The forward writes where the row says: the row is at fault, from its later event on."""
    events = numbered(
        [
            *life("A", [11, 12, 13], [1, 2, 3], row=1, step=1),
            {"kind": "history", "req": "A", "start": 3, "ids": [14, 15, 16]},
            {"kind": "alloc", "owner": "A", "slots": [4, 5, 6]},
            {"kind": "map", "row": 1, "start": 3, "slots": [1, 2, 3]},
            extend(2, "A", 1, 3, [14, 15, 16], [1, 2, 3]),
            *decode("A", 17, 7, row=1, position=6, step=3),
        ]
    )
    (finding,) = diagnose(HEAD, events).findings
    at = index_of(events, "map", start=3)
    assert _said(finding) == ("stale_mapping", "cells_rewritten", at, "certain")
    assert (finding.victim, finding.slots) == ("A", {1, 2, 3})
    assert finding.corrupting_event == index_of(events, "forward", step=2)


@pytest.mark.parametrize("later", [False, True], ids=["once", "goes on"])
def test_rows_of_two_requests_of_a_batch_are_swapped(later: bool) -> None:
    """Each reads the other's content; whoever set its row up did nothing wrong."""
    events = _two(rows=(2, 1))
    at = index_of(events, "forward", step=3)
    if later:
        events[-1]["req_pool_indices"] = [2, 1]
    (finding,) = diagnose(HEAD, events).findings
    _check_exchanged(finding, at, {1, 2, 3, 4, 5, 6} | ({7, 8} if later else set()))


def _check_exchanged(finding: Finding, at: int, slots: set[int]) -> None:
    """One event made both read the other's row: one finding, which names both."""
    assert _said(finding) == ("stale_mapping", "anothers_row", at, "certain")
    assert (finding.victim, finding.culprit.req, finding.slots) == ("A", "A", slots)
    assert list(finding.blast_radius) == ["A", "B"]
    for name, row, other in (("A", 2, "B"), ("B", 1, "A")):
        told = [text for text in finding.evidence if f"names row {row} for {name}" in text]
        assert len(told) == 1
        assert f"set for {other} " in told[0]


def test_without_alloc_events_it_is_probable() -> None:
    head = HEAD | {"records": [r for r in HEAD["records"] if r != "alloc"]}
    events = numbered([e for e in _two(slots=(8, 7)) if e["kind"] != "alloc"])
    (finding,) = diagnose(head, events).findings
    at = index_of(events, "forward", step=3)
    assert _said(finding) == ("stale_mapping", "written_beside_row", at, "probable")


def test_a_write_that_comes_late_is_no_slip_of_its_batch() -> None:
    """B's step was under way when it gave the slot back, and its row had another by then."""
    events = numbered(
        [
            *BOTH,
            *_given("B", 24, 8, row=2, position=3),
            {"kind": "launch", "step": 4, "req": "B", "slots": [8], "row": 2},
            {"kind": "free", "owner": "B", "slots": [8]},
            {"kind": "alloc", "owner": "B", "slots": [9]},
            {"kind": "map", "row": 2, "start": 3, "slots": [9]},
            *_given("A", 14, 8, row=1, position=3),
            _batch(3, ("A", 1, 14, 3, 8)),
            _batch(4, ("B", 2, 24, 3, 8)),
            *decode("A", 15, 7, row=1, position=4, step=5),
        ]
    )
    head = HEAD | {"records": [*HEAD["records"], "launch"]}
    found = {f.victim: f for f in diagnose(head, events).findings}
    assert (found["A"].cls, found["A"].subtype) == ("late_write", "overlap_forward_after_free")


def test_a_write_over_a_cached_slot_is_told_to_whoever_reads_it_later() -> None:
    """B's batch names a slot of the cache; C is served from there behind that."""
    prefix = HEAD | {"records": [*HEAD["records"], "prefix"]}
    events = numbered(
        [
            *life("A", [11, 12, 13], [1, 2, 3], row=1, step=1),
            {"kind": "own", "from": "A", "owner": "tree", "slots": [1, 2, 3], "entry": "E"},
            *life("B", [21, 22], [4, 5], row=2, step=2),
            *_given("B", 23, 6, row=2, position=2),
            _batch(3, ("B", 2, 23, 2, 2)),
            {"kind": "history", "req": "C", "start": 0, "ids": [11, 12, 13, 34]},
            {"kind": "match", "req": "C", "entry": "E", "slots": [1, 2, 3]},
            {"kind": "alloc", "owner": "C", "slots": [7]},
            {"kind": "map", "row": 3, "start": 0, "slots": [1, 2, 3, 7]},
            extend(4, "C", 3, 3, [34], [7]),
        ]
    )
    (finding,) = diagnose(prefix, events).findings
    at = index_of(events, "forward", step=3)
    assert _said(finding) == ("stale_mapping", "written_beside_row", at, "certain")
    assert (finding.victim, finding.culprit.req, finding.slots) == ("C", "B", {2})


def test_rows_that_nobody_ran_in_before_are_swapped() -> None:
    """The first forwards of two requests that the cache serves name each other's rows."""
    prefix = HEAD | {"records": [*HEAD["records"], "prefix"]}
    served: list[Event] = []
    for name, row, ids, slots, new in (
        ("A", 1, [11, 12], [1, 2], 5),
        ("B", 2, [21, 22], [3, 4], 6),
    ):
        served += [
            {"kind": "history", "req": name, "start": 0, "ids": [*ids, 99]},
            {"kind": "match", "req": name, "entry": f"E-{slots[0]}", "slots": slots},
            {"kind": "alloc", "owner": name, "slots": [new]},
            {"kind": "map", "row": row, "start": 0, "slots": [*slots, new]},
        ]
    cached: list[Event] = []
    for step, (ids, slots) in enumerate((([11, 12], [1, 2]), ([21, 22], [3, 4])), 1):
        entry = {"owner": "tree", "entry": f"E-{slots[0]}"}
        cached += life(f"P{step}", ids, slots, row=2 + step, step=step)
        cached.append({"kind": "own", "from": f"P{step}", "slots": slots} | entry)
    events = numbered([*cached, *served, _batch(3, ("A", 2, 99, 2, 5), ("B", 1, 99, 2, 6))])
    at = index_of(events, "forward", step=3)
    (finding,) = diagnose(prefix, events).findings
    _check_exchanged(finding, at, {1, 2, 3, 4})


@pytest.mark.parametrize("moved", [True, False])
def test_a_request_that_moves_to_the_row_of_an_ended_one(moved: bool) -> None:
    """Its cells move with it, or the batch alone names the new row, and what the other one left."""
    move = {"kind": "map", "row": 1, "start": 0, "slots": [4, 5, 6]}
    events = numbered(
        [
            *BOTH,
            {"kind": "finish", "req": "A"},
            {"kind": "free", "owner": "A", "slots": [1, 2, 3]},
            *([move] if moved else []),
            *decode("B", 24, 7, row=1, position=3, step=3),
            *life("C", [31, 32], [1, 2], row=2, step=4),
            *decode("B", 25, 8, row=1, position=4, step=5),
        ]
    )
    findings = diagnose(HEAD, events).findings
    at = index_of(events, "forward", step=3)
    assert len(findings) == (not moved)
    for finding in findings:
        assert _said(finding) == ("stale_mapping", "anothers_row", at, "certain")
        assert (finding.victim, finding.culprit.req, finding.slots) == ("B", "B", {1, 2, 3})


@pytest.mark.parametrize("cell", [0, 1, 2])
@pytest.mark.parametrize("same", [False, True])
@pytest.mark.parametrize("tenant", [False, True])
def test_a_row_that_was_given_back_is_its_readers_no_more(
    cell: int, same: bool, tenant: bool
) -> None:
    """A retracted request comes back in another row, and a cell of that is set wrongly."""
    before = [
        *life("C", [31, 32], [11, 12], row=3, step=3),
        {"kind": "finish", "req": "C"},
        {"kind": "free", "owner": "C", "slots": [11, 12]},
        {"kind": "row_release", "row": 3, "req": "C"},
    ]
    row = 1 if same else 3
    events = numbered(
        [
            *BOTH,
            *(before if tenant else []),
            {"kind": "own", "from": "A", "owner": "tree", "slots": [1, 2, 3], "entry": "e"},
            {"kind": "retract", "req": "A"},
            {"kind": "row_release", "row": 1, "req": "A"},
            {"kind": "match", "req": "A", "entry": "e", "slots": [1, 2, 3]},
            {"kind": "map", "row": row, "start": 0, "slots": [1, 2, 3]},
            {"kind": "map", "row": row, "start": cell, "slots": [4 + (cell + 1) % 3]},
            *decode("A", 14, 7, row=row, position=3, step=4),
        ]
    )
    head = HEAD | {"records": [*HEAD["records"], "prefix"]}
    (finding,) = diagnose(head, events).findings
    at = index_of(events, "map", row=row, start=cell, slots=[4 + (cell + 1) % 3])
    assert _said(finding)[:2] == ("stale_mapping", "cells_rewritten")
    assert finding.slots == {4 + (cell + 1) % 3}
    assert finding.cause_event in (at, at - 1)
