"""Damage that a correct copy moved, bytes behind a replaced slot, cells that name no slot."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from tests.attribution.events import HEAD, decode, index_of, life, numbered
from tests.attribution.helpers import diagnose

Event = dict[str, Any]


def _late() -> list[Event]:
    """C runs, and its next token goes to A's slot."""
    return [
        *life("C", [31], [5], row=3, step=2),
        {"kind": "map", "row": 3, "start": 1, "slots": [13]},
        {"kind": "history", "req": "C", "start": 1, "ids": [32]},
        {
            "kind": "forward",
            "step": 3,
            "forward_mode": "DECODE",
            "reqs": ["C"],
            "req_pool_indices": [3],
            "seq_lens": [2],
            "input_ids": [32],
            "positions": [1],
            "out_cache_loc": [13],
        },
    ]


def _early() -> list[Event]:
    return [
        {"kind": "free", "owner": "A", "slots": [13], "reason": "dedup"},
        *life("C", [31], [13], row=3, step=2),
    ]


def _twice() -> list[Event]:
    return life("C", [31], [13], row=3, step=2)


@pytest.mark.parametrize("hops", [1, 2])
@pytest.mark.parametrize("by", [{}, {"by": "A"}])
@pytest.mark.parametrize(
    ("damage", "cls", "cause"),
    [
        (_late, "late_write", ("forward", {"step": 3})),
        (_early, "use_after_free", ("free", {"reason": "dedup"})),
        (_twice, "double_alloc", ("alloc", {"owner": "C"})),
    ],
)
def test_a_copy_is_not_blamed_for_what_it_moved(
    damage: Any, cls: str, cause: tuple[str, dict[str, Any]], by: dict[str, str], hops: int
) -> None:
    places = [[11, 12, 13], [1, 2, 3], [21, 22, 23]][: hops + 1]
    moves: list[Event] = []
    for src, dst in pairwise(places):
        moves += [
            {"kind": "alloc", "owner": "A", "slots": dst},
            {"kind": "copy", "src": src, "dst": dst, "via": "d2d", "canary": True, **by},
            {"kind": "map", "row": 1, "start": 0, "slots": dst},
        ]
    events = numbered(
        [
            *life("A", [11, 12, 13], places[0], row=1, step=1),
            *damage(),
            *moves,
            *decode("A", 14, 8, row=1, position=3, step=4),
        ]
    )
    (finding,) = diagnose(HEAD, events).findings
    assert (finding.cls, finding.victim, finding.culprit.req) == (cls, "A", "C")
    assert finding.cause_event == index_of(events, cause[0], **cause[1])
    assert finding.slots == {places[-1][2]}
    assert any("moved it from slot 13 to slot 3" in text for text in finding.evidence)


def test_a_copy_of_the_wrong_slots_is_to_blame() -> None:
    """The mover's row never led to what it copied."""
    events = numbered(
        [
            *life("A", [11, 12, 13], [11, 12, 13], row=1, step=1),
            *life("C", [31, 32], [5, 6], row=3, step=2),
            {"kind": "alloc", "owner": "A", "slots": [1, 2, 3]},
            {"kind": "copy", "src": [11, 12, 6], "dst": [1, 2, 3], "via": "d2d", "by": "A"},
            {"kind": "map", "row": 1, "start": 0, "slots": [1, 2, 3]},
            *decode("A", 14, 8, row=1, position=3, step=4),
        ]
    )
    (finding,) = diagnose(HEAD, events).findings
    assert finding.cls == "transfer_mismatch"
    assert finding.cause_event == index_of(events, "copy")


def _hash(phase: str, step: int, slots: list[int], values: list[int]) -> Event:
    return {"kind": "kv_hash", "phase": phase, "step": step, "slots": slots, "hash": values}


@pytest.mark.parametrize("freed", [True, False])
@pytest.mark.parametrize("replaced", [1, 2])
def test_bytes_that_changed_behind_a_replaced_slot_are_no_rewrite(
    replaced: int, freed: bool
) -> None:
    flipped = replaced + 1
    found = {slot: 100 + slot for slot in (1, 2, 3)} | {flipped: 999}
    found.pop(replaced)
    events = numbered(
        [
            *life("A", [11, 12, 13], [1, 2, 3], row=1, step=1),
            _hash("after", 1, [1, 2, 3], [101, 102, 103]),
            *([{"kind": "free", "owner": "A", "slots": [replaced]}] if freed else []),
            *life("C", [31], [replaced], row=3, step=2),
            _hash("before", 3, list(found), list(found.values())),
            *decode("A", 14, 6, row=1, position=3, step=3),
        ]
    )
    head = HEAD | {"records": [*HEAD["records"], "kv_hash"]}  # type: ignore[misc]
    findings = {f.cls: f for f in diagnose(head, events).findings}
    assert set(findings) == {"use_after_free" if freed else "double_alloc", "payload_mutation"}
    flip = findings["payload_mutation"]
    assert (flip.subtype, flip.slots, flip.culprit.req) == ("kv_bytes", {flipped}, None)
    assert any("a predecessor that was replaced" in text for text in flip.evidence)


def test_a_cell_that_was_never_set_is_a_mapping_fault() -> None:
    unset = decode("A", 14, 5, row=1, position=3, step=2)
    written = [e for e in unset if e["kind"] != "map"]
    events = numbered(
        [
            *life("A", [11, 12, 13], [1, 2, 3], row=1, step=1),
            *written,
            *decode("A", 15, 6, row=1, position=4, step=3),
            *decode("A", 16, 7, row=1, position=5, step=4),
        ]
    )
    (finding,) = diagnose(HEAD, events).findings
    assert (finding.cls, finding.subtype) == ("stale_mapping", "cell_not_mapped")
    assert finding.cause_event == index_of(events, "forward", step=2)
    assert (finding.slots, finding.seam_slots) == ({5}, set())


def test_a_position_that_nobody_wrote_has_no_slot() -> None:
    events = numbered(
        [
            *life("A", [11, 12, 13], [1, 2, 3], row=1, step=1),
            {"kind": "history", "req": "A", "start": 3, "ids": [14]},
            *decode("A", 15, 5, row=1, position=4, step=2),
        ]
    )
    (finding,) = diagnose(HEAD, events).findings
    assert (finding.cls, finding.subtype) == ("stale_mapping", "cell_not_mapped")
    assert finding.cause_event == index_of(events, "forward", step=2)


@pytest.mark.parametrize("freed", [True, False])
def test_a_wrong_token_behind_damage_is_no_unwritten_read(freed: bool) -> None:
    wrong = decode("A", 14, 6, row=1, position=3, step=3)
    fed = [e | {"input_ids": [77]} if e["kind"] == "forward" else e for e in wrong]
    events = numbered(
        [
            *life("A", [11, 12, 13], [1, 2, 3], row=1, step=1),
            *([{"kind": "free", "owner": "A", "slots": [3]}] if freed else []),
            *life("B", [21, 22], [5, 3], row=2, step=2),
            *fed,
        ]
    )
    findings = diagnose(HEAD, events).findings
    assert [f.cls for f in findings] == [
        "use_after_free" if freed else "double_alloc",
        "wrong_token_fed",
    ]
    assert [f.slots for f in findings] == [{3}, {6}]
