"""A cached slot goes out a second time while a row that was served from the cache reads it.

Its reader may be known by the match alone, by its row's cell alone, or by both: traces of engines
that record no match, or whose row kept a cell of the request before, have only one of them.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.attribution.events import HEAD, decode, extend, life, numbered
from tests.attribution.helpers import diagnose

Event = dict[str, Any]

_HEAD = HEAD | {"records": [*HEAD["records"], "prefix"]}
_PREFIX = [11, 12]


def _cached_by(req: str, row: int, step: int) -> list[Event]:
    return [
        *life(req, _PREFIX, [1, 2], row=row, step=step),
        {"kind": "own", "from": req, "owner": "tree", "slots": [1, 2], "entry": "p"},
        {"kind": "publish", "entry": "p", "start": 0, "slots": [1, 2]},
        {"kind": "finish", "req": req},
        {"kind": "row_release", "row": row, "req": req},
    ]


def _served(req: str, row: int, *, match: bool, cells: bool) -> list[Event]:
    events: list[Event] = [{"kind": "history", "req": req, "start": 0, "ids": [*_PREFIX, 15]}]
    if match:
        events.append({"kind": "match", "req": req, "entry": "p", "slots": [1, 2]})
    if cells:
        events.append({"kind": "map", "row": row, "start": 0, "slots": [1, 2]})
    return [
        *events,
        {"kind": "alloc", "owner": req, "slots": [5]},
        {"kind": "map", "row": row, "start": 2, "slots": [5]},
        extend(3, req, row, 2, [15], [5]),
        *decode(req, 16, 6, row=row, position=3, step=4),
    ]


def _trace(*, twice: str, match: bool, cells: bool, given_on: bool) -> tuple[list[Event], int]:
    """Z frees slots 1 and 2 twice ``before`` the cache has them, or once ``while`` it has them.

    Returns:
        The events, and ``i`` of the free that put the slots on the free list once too often.
    """
    free: Event = {"kind": "free", "owner": "Z", "slots": [1, 2]}
    old = [*life("Z", [3, 4], [1, 2], row=4, step=1), free, free, {"kind": "finish", "req": "Z"}]
    early = old if twice == "before" else []
    stray = [free] if twice == "while" else []
    taker = life("N", [21, 22], [1, 2], row=3, step=5)
    on = [{"kind": "own", "from": "N", "owner": "tree", "slots": [1, 2], "entry": "n"}]
    events = numbered(
        [
            *early,
            *_cached_by("A", 1, 2),
            *_served("B", 2 if cells else 1, match=match, cells=cells),
            *stray,
            *taker,
            *(on if given_on else []),
            *decode("B", 17, 7, row=2 if cells else 1, position=4, step=6),
        ]
    )
    second = next(e for e in reversed(events) if e["kind"] == "free" and e["owner"] == "Z")
    return events, int(second["i"])


@pytest.mark.parametrize("given_on", [False, True], ids=["held", "given_on"])
@pytest.mark.parametrize(("match", "cells"), [(True, True), (False, True), (True, False)])
@pytest.mark.parametrize("twice", ["before", "while"])
def test_who_was_served_from_the_cache_is_the_victim_of_the_free(
    twice: str, match: bool, cells: bool, given_on: bool
) -> None:
    events, cause = _trace(twice=twice, match=match, cells=cells, given_on=given_on)
    (finding,) = diagnose(_HEAD, events).findings
    expected = "double_free" if twice == "before" else "free_by_non_owner"
    assert (finding.cls, finding.subtype) == ("double_alloc", expected)
    assert (finding.victim, finding.culprit.req, finding.cause_event) == ("B", "N", cause)
    assert sorted(finding.slots) == [1, 2]


@pytest.mark.parametrize("match", [False, True], ids=["no_match", "match"])
@pytest.mark.parametrize("written", [False, True], ids=["later", "at_once"])
def test_the_cache_goes_on_to_serve_what_went_out_a_second_time(written: bool, match: bool) -> None:
    """Served behind the second alloc: the row is right, whether it is read before the damage."""
    new = life("N", [21, 22], [1, 2], row=3, step=5)
    head, write = (new, []) if written else (new[:-1], new[-1:])
    step = 6 if written else 2
    served = _served("B", 2, match=match, cells=True)
    served = [e | {"step": e["step"] + step} if "step" in e else e for e in served]
    write = [e | {"step": step + 5} for e in write]
    events = numbered(
        [
            *_cached_by("A", 1, 2),
            *head,
            *served,
            *write,
            *decode("B", 17, 7, row=2, position=4, step=step + 6),
        ]
    )
    (finding,) = diagnose(_HEAD, events).findings
    alloc = next(int(e["i"]) for e in events if e["kind"] == "alloc" and e["owner"] == "N")
    assert (finding.cls, finding.subtype) == ("double_alloc", "double_alloc")
    assert (finding.victim, finding.culprit.req, finding.cause_event) == ("B", "N", alloc)


@pytest.mark.parametrize("match", [False, True], ids=["no_match", "match"])
def test_nobody_wrote_what_went_out_a_second_time(match: bool) -> None:
    """The reader's row was set behind the second alloc, and is right all the same."""
    events = numbered(
        [
            *_cached_by("A", 1, 2),
            {"kind": "alloc", "owner": "N", "slots": [1, 2]},
            *_served("B", 2, match=match, cells=True),
        ]
    )
    (finding,) = diagnose(_HEAD, events).findings
    alloc = next(int(e["i"]) for e in events if e["kind"] == "alloc" and e["owner"] == "N")
    assert (finding.cls, finding.cause_event) == ("double_alloc", alloc)


def test_a_holder_sets_its_row_behind_the_second_alloc() -> None:
    history, alloc, cells, forward = life("A", _PREFIX, [1, 2], row=1, step=2)
    second = {"kind": "alloc", "owner": "N", "slots": [1, 2]}
    events = numbered(
        [history, alloc, second, cells, forward, *decode("A", 13, 3, row=1, position=2, step=3)]
    )
    (finding,) = diagnose(_HEAD, events).findings
    assert (finding.cls, finding.cause_event) == ("double_alloc", 2)


@pytest.mark.parametrize("given_on", [False, True], ids=["held", "given_on"])
def test_a_cell_from_before_the_cache_gave_the_slot_back_is_no_part_in_it(given_on: bool) -> None:
    """The cache evicted properly in between: reading on is the reader's own fault."""
    events, _ = _trace(twice="before", match=True, cells=True, given_on=given_on)
    evicted: Event = {"kind": "free", "owner": "tree", "slots": [1, 2], "reason": "evict"}
    at = next(k for k, e in enumerate(events) if e.get("owner") == "N")
    events = numbered([*events[:at], evicted, *events[at:]])
    damage, unread = diagnose(_HEAD, events).findings
    assert (damage.cls, damage.victim, damage.cause_event) == ("use_after_free", "B", at)
    assert (unread.cls, unread.subtype, unread.violations) == ("double_alloc", "double_free", 0)
