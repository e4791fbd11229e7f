"""A slot that was given back under its readers, and that another row is set to afterwards.

The free is what went wrong: whoever is set to the slot later meets the same fault, in whatever
order the batch holds the readers.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.attribution.events import HEAD, extend, life, numbered
from tests.attribution.helpers import diagnose

Event = dict[str, Any]

_PREFIX = [11, 12]


def _cached(req: str, row: int, step: int) -> list[Event]:
    return [
        *life(req, _PREFIX, [1, 2], row=row, step=step),
        {"kind": "own", "from": req, "owner": "tree", "slots": [1, 2], "entry": "p"},
    ]


def _set(req: str, row: int, slot: int) -> list[Event]:
    """``req`` shares the prefix; no match was recorded."""
    return [
        {"kind": "history", "req": req, "start": 0, "ids": [*_PREFIX, 15, 16, 17]},
        {"kind": "map", "row": row, "start": 0, "slots": [1, 2]},
        {"kind": "alloc", "owner": req, "slots": [slot, slot + 1, slot + 2]},
        {"kind": "map", "row": row, "start": 2, "slots": [slot, slot + 1, slot + 2]},
    ]


def _batch(step: int, of: list[Event]) -> Event:
    """Several prefills as one forward."""
    joined: Event = {"kind": "forward", "step": step, "forward_mode": "EXTEND"}
    for name in of[0]:
        if name not in joined:
            joined[name] = [value for one in of for value in one[name]]
    return joined


def _freed(reason: str | None) -> Event:
    event: Event = {"kind": "free", "owner": "tree", "slots": [1, 2]}
    return event if reason is None else event | {"reason": reason}


@pytest.mark.parametrize("taker_first", [False, True], ids=["taker_last", "taker_first"])
@pytest.mark.parametrize("late_first", [False, True], ids=["named_first", "late_first"])
@pytest.mark.parametrize("at_once", [False, True], ids=["later", "same_batch"])
@pytest.mark.parametrize("reason", [None, "evict"])
def test_who_named_the_slot_first_suffers_from_the_free(
    reason: str | None, at_once: bool, late_first: bool, taker_first: bool
) -> None:
    """``at_once``: the taker writes in the batch that the others read in."""
    named = extend(4, "B", 2, 3, [16], [6])
    late = extend(4, "L", 3, 2, [15], [8])
    readers = [late, named] if late_first else [named, late]
    taker = life("N", [21, 22], [1, 2], row=4, step=4)
    if at_once:
        behind = [_batch(4, [taker[-1], *readers] if taker_first else [*readers, taker[-1]])]
    else:
        behind = [taker[-1] | {"step": 3}, _batch(4, readers)]
    events = numbered(
        [
            *_cached("A", 1, 1),
            *_set("B", 2, 5),
            extend(2, "B", 2, 2, [15], [5]),
            _freed(reason),
            *taker[:-1],
            *_set("L", 3, 8),
            *behind,
            extend(6, "B", 2, 4, [17], [7]),
        ]
    )
    (finding,) = diagnose(HEAD, events).findings
    freed = next(int(e["i"]) for e in events if e["kind"] == "free")
    assert (finding.cls, finding.subtype) == ("use_after_free", "shared_slot_refcount")
    assert (finding.victim, finding.culprit.req, finding.cause_event) == ("B", "N", freed)
    assert set(finding.blast_radius) == {"B", "L"}
    assert finding.first_bad_step == 4


@pytest.mark.parametrize("reason", [None, "evict"])
def test_who_was_set_to_a_slot_that_was_freed_under_another(reason: str | None) -> None:
    """L reads the free slot before anybody writes it; B, who named it first, reads it later."""
    events = numbered(
        [
            *_cached("A", 1, 1),
            *_set("B", 2, 5),
            extend(2, "B", 2, 2, [15], [5]),
            _freed(reason),
            *_set("L", 3, 8),
            extend(3, "L", 3, 2, [15], [8]),
            *life("N", [21, 22], [1, 2], row=4, step=4),
            extend(5, "B", 2, 3, [16], [6]),
        ]
    )
    (finding,) = diagnose(HEAD, events).findings
    freed = next(int(e["i"]) for e in events if e["kind"] == "free")
    assert (finding.cls, finding.cause_event) == ("use_after_free", freed)


def test_alone_the_row_that_is_set_too_late_is_at_fault() -> None:
    """Nobody named the slots when they were evicted: the free was right."""
    events = numbered(
        [
            *_cached("A", 1, 1),
            {"kind": "finish", "req": "A"},
            {"kind": "row_release", "row": 1, "req": "A"},
            _freed("evict"),
            *life("N", [21, 22], [1, 2], row=4, step=3),
            *_set("L", 3, 8),
            extend(4, "L", 3, 2, [15], [8]),
        ]
    )
    (finding,) = diagnose(HEAD, events).findings
    assert (finding.cls, finding.subtype, finding.victim) == (
        "stale_mapping",
        "cells_rewritten",
        "L",
    )
