"""A row that is given to a request which was served from the cache, while the one before goes on.

Who lost the row does not know: it goes on to set cells there, behind those of the new tenant. The
slots that were set for that one are the prefix cache's, so that no owner tells whose they are.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.attribution.events import HEAD, decode, extend, index_of, life, numbered
from tests.attribution.helpers import diagnose

Event = dict[str, Any]
HEAD_P = HEAD | {"records": [*HEAD["records"], "prefix"]}
STEM, OTHER = [11, 12, 13], [21, 22, 23]


def _cached(req: str, ids: list[int], slots: list[int], step: int) -> list[Event]:
    return [
        *life(req, ids, slots, row=8, step=step),
        {"kind": "own", "from": req, "owner": "tree", "slots": slots, "entry": f"of-{req}"},
        {"kind": "finish", "req": req},
        {"kind": "row_release", "row": 8, "req": req},
    ]


def _match(req: str, ids: list[int], entry: str, slots: list[int]) -> list[Event]:
    return [
        {"kind": "history", "req": req, "start": 0, "ids": ids},
        {"kind": "match", "req": req, "entry": entry, "slots": slots},
    ]


def _served(req: str, row: int, slot: int, step: int) -> list[Event]:
    """``req`` is served what OTHER stands for, and computes one token more in ``row``."""
    return [
        *_match(req, [*OTHER, 24], "of-Q", [43, 44, 45]),
        {"kind": "map", "row": row, "start": 0, "slots": [43, 44, 45]},
        {"kind": "alloc", "owner": req, "slots": [slot]},
        {"kind": "map", "row": row, "start": 3, "slots": [slot]},
        extend(step, req, row, 3, [24], [slot]),
    ]


def _events(released: bool, goes_on: int, then: str, *, elsewhere: bool) -> list[Event]:
    """A runs in row 1, which B gets.

    Args:
        released: Whether the release of the row is told.
        goes_on: Cells that A sets behind B's.
        then: ``runs`` if B runs there before A reads, ``waits`` if behind, ``never``.
        elsewhere: Whether another request runs with the same prefix in a row of its own.
    """
    events = [*_cached("P", STEM, [40, 41, 42], 1), *_cached("Q", OTHER, [43, 44, 45], 2)]
    if elsewhere:
        events += _served("C", 3, 30, 3)
    events += [
        *_match("A", [*STEM, 14], "of-P", [40, 41, 42]),
        {"kind": "map", "row": 1, "start": 0, "slots": [40, 41, 42]},
        {"kind": "alloc", "owner": "A", "slots": [5]},
        {"kind": "map", "row": 1, "start": 3, "slots": [5]},
        extend(4, "A", 1, 3, [14], [5]),
    ]
    events += [{"kind": "row_release", "row": 1, "req": "A"}] if released else []
    own = [
        *decode("A", 15, 6, row=1, position=4, step=6)[:-1],
        *decode("A", 16, 7, row=1, position=5, step=7)[:-1],
    ]
    behind, late = own[: 3 * goes_on], own[3 * goes_on :]
    got = _served("B", 1, 9, 5)
    if then == "runs":
        events += [*got[:3], *behind, *got[3:]]
    else:
        events += [*got[:3], *behind]
    decodes = [
        decode("A", 15, 6, row=1, position=4, step=6)[-1],
        decode("A", 16, 7, row=1, position=5, step=7)[-1],
    ]
    events += [*late, *decodes]
    if then == "waits":
        events += [e | ({"step": 8} if "step" in e else {}) for e in got[3:]]
    return numbered(events)


@pytest.mark.parametrize("released", [True, False], ids=["released", "not-told"])
@pytest.mark.parametrize("goes_on", [0, 1, 2])
@pytest.mark.parametrize("then", ["runs", "waits", "never"])
@pytest.mark.parametrize("elsewhere", [False, True], ids=["alone", "another"])
def test_the_new_tenant_is_the_culprit(
    released: bool, goes_on: int, then: str, elsewhere: bool
) -> None:
    events = _events(released, goes_on, then, elsewhere=elsewhere)
    first = diagnose(HEAD_P, events).findings[0]
    assert (first.cls, first.subtype) == ("stale_mapping", "row_recycled_in_flight")
    assert (first.victim, first.culprit.req) == ("A", "B")
    begun = index_of(events, "map", row=1, slots=[43, 44, 45])
    release = index_of(events, "row_release", row=1) if released else begun
    assert (first.cause_event, first.corrupting_event) == (release, begun)


def test_who_got_the_row_is_not_certain_where_two_may_have() -> None:
    events = _events(released=True, goes_on=1, then="never", elsewhere=False)
    at = index_of(events, "match", req="B")
    two = [*events[:at], *_match("D", OTHER, "of-Q", [43, 44, 45]), *events[at:]]
    first = diagnose(HEAD_P, numbered(two)).findings[0]
    assert (first.subtype, first.confidence) == ("row_recycled_in_flight", "probable")


@pytest.mark.parametrize("position", [0, 1])
def test_a_cell_of_anothers_prefix_is_no_row_that_it_got(position: int) -> None:
    """C, which was served the slot, runs in its own row."""
    events = [
        e
        for e in _events(released=False, goes_on=2, then="never", elsewhere=True)
        if e.get("req") != "B" and e.get("owner") != "B" and e.get("slots") != [43, 44, 45]
    ]
    served = [*_cached("Q", OTHER, [43, 44, 45], 2), *_served("C", 3, 30, 3)]
    at = next(k for k, e in enumerate(events) if e.get("req") == "Q")
    end = max(k for k, e in enumerate(events) if "C" in (e.get("req"), *e.get("reqs", ()))) + 1
    stale = {"kind": "map", "row": 1, "start": position, "slots": [43 + position]}
    ran = next(k for k, e in enumerate(events) if e.get("reqs") == ["A"]) + 1
    events = numbered([*events[:at], *served, *events[end:ran], stale, *events[ran:]])
    (finding,) = diagnose(HEAD_P, events).findings
    assert (finding.cls, finding.subtype) == ("stale_mapping", "cells_rewritten")
    assert (finding.victim, finding.culprit.req) == ("A", "A")
    assert finding.cause_event == index_of(events, "map", slots=[43 + position])


@pytest.mark.parametrize("fault", ["freed", "never loaded"])
def test_a_request_that_finds_its_own_text_in_the_cache_keeps_its_row(fault: str) -> None:
    """A's cells are set to what the cache has of its text; B, which waits, was served the same."""
    mine = [5, 6, 7]
    taken = [
        {"kind": "free", "owner": "tree", "slots": [43, 44, 45], "reason": "evict"},
        *life("X", [61, 62, 63], [43, 44, 45], row=4, step=8),
    ]
    empty = [
        {"kind": "free", "owner": "tree", "slots": [43, 44, 45], "reason": "evict"},
        {"kind": "alloc", "owner": "tree", "slots": [43, 44, 45]},
    ]
    events = numbered(
        [
            *_cached("Q", OTHER, [43, 44, 45], 2),
            *(empty if fault == "never loaded" else []),
            *_match("B", [*OTHER, 24], "any", [43, 44, 45]),
            *life("A", OTHER, mine, row=1, step=3),
            {"kind": "map", "row": 1, "start": 0, "slots": [43, 44, 45]},
            {"kind": "free", "owner": "A", "slots": mine},
            *(taken if fault == "freed" else []),
            *decode("A", 24, 9, row=1, position=3, step=9),
        ]
    )
    first = diagnose(HEAD_P, events).findings[0]
    assert first.cls == ("use_after_free" if fault == "freed" else "unwritten_read")
    assert first.victim == "A"
