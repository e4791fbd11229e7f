"""Loads from another tier that name nobody: no request, no transfer, no ``by``.

For whom such a copy worked is not in the trace. Where it wrote over content, and left what had been
given to the prefix cache empty, it went to the wrong pages; whoever meets either side is told so.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.attribution.events import HEAD, decode, extend, index_of, life, numbered
from tests.attribution.helpers import diagnose

Event = dict[str, Any]
HEAD_P = HEAD | {"records": [*HEAD["records"], "prefix"]}
STORED, LOADED, CACHED = [50, 51], [10, 11], [30, 31]


def _entry(req: str, ids: list[int], slots: list[int], step: int) -> list[Event]:
    return [
        *life(req, ids, slots, row=8, step=step),
        {"kind": "own", "from": req, "owner": "tree", "slots": slots, "entry": f"of-{req}"},
        {"kind": "finish", "req": req},
        {"kind": "row_release", "row": 8, "req": req},
    ]


def _reader(req: str, ids: list[int], slots: list[int], row: int, step: int) -> list[Event]:
    """``req`` is served ``slots`` and computes the last of its ``ids``."""
    return [
        {"kind": "history", "req": req, "start": 0, "ids": ids},
        {"kind": "match", "req": req, "entry": "any", "slots": slots},
        {"kind": "map", "row": row, "start": 0, "slots": slots},
        {"kind": "alloc", "owner": req, "slots": [row]},
        {"kind": "map", "row": row, "start": len(slots), "slots": [row]},
        extend(step, req, row, len(slots), ids[-1:], [row]),
    ]


HOLDERS: dict[str, list[Event]] = {
    "cache": _entry("Q", [21, 22], CACHED, 2),
    "request": life("Q", [21, 22], CACHED, row=5, step=2),
    "free": [],
}


def _load(dst: list[int]) -> list[Event]:
    """What P had written is stored, let go, and loaded for the cache, into ``dst``."""
    store: Event = {"kind": "copy", "src": STORED, "dst": [900, 901], "dst_pool": "host"}
    load: Event = {"kind": "copy", "src": [900, 901], "dst": dst, "src_pool": "host"}
    return [
        store | {"via": "d2h"},
        {"kind": "free", "owner": "tree", "slots": STORED, "reason": "evict"},
        {"kind": "alloc", "owner": "tree", "slots": LOADED},
        load | {"via": "h2d"},
    ]


def _met(holder: str, first: str) -> list[Event]:
    """Who reads the empty slots, and who reads those that were overwritten."""
    empty = _reader("A", [11, 12, 13], LOADED, 1, 4)
    if holder == "free":
        return empty
    over = _reader("B", [21, 22, 23], CACHED, 2, 5)
    if holder == "request":
        over = decode("Q", 23, 7, row=5, position=2, step=5)
    both = [*empty, *over] if first == "empty" else [*over, *empty]
    steps = iter((4, 5))
    return [e | {"step": next(steps)} if e["kind"] == "forward" else e for e in both]


@pytest.mark.parametrize("holder", HOLDERS)
@pytest.mark.parametrize("first", ["empty", "overwritten"])
@pytest.mark.parametrize("between", [False, True], ids=["at once", "another load between"])
def test_a_load_to_the_wrong_pages(holder: str, first: str, between: bool) -> None:
    load = _load(CACHED)
    if between:
        # The host tier brings something else where it belongs.
        other: Event = {"kind": "copy", "src": [900, 901], "dst": [40, 41], "src_pool": "host"}
        load[3:3] = [
            {"kind": "alloc", "owner": "tree", "slots": [40, 41]},
            other | {"via": "h2d"},
        ]
    events = numbered(
        [*_entry("P", [11, 12], STORED, 1), *HOLDERS[holder], *load, *_met(holder, first)]
    )
    (finding,) = diagnose(HEAD_P, events).findings
    assert (finding.cls, finding.subtype) == ("transfer_mismatch", "wrong_pages")
    copied = index_of(events, "copy", dst=CACHED)
    assert (finding.cause_event, finding.corrupting_event) == (copied, copied)
    assert (finding.culprit.req, finding.confidence) == (None, "probable")
    damaged = {*LOADED, *CACHED} if holder != "free" else set(LOADED)
    assert damaged <= finding.slots
    told = " ".join(finding.evidence)
    assert "names nobody" in told or "for nobody that it names" in told


def test_a_load_to_where_it_belongs_is_clean() -> None:
    events = [*_entry("P", [11, 12], STORED, 1), *_load(LOADED), *_met("free", "empty")]
    assert not diagnose(HEAD_P, numbered(events)).findings


@pytest.mark.parametrize("known", [False, True], ids=["an entry that nobody named", "one by name"])
@pytest.mark.parametrize("anew", ["tree", "X"])
def test_slots_that_the_cache_had_before(known: bool, anew: str) -> None:
    """The cache loads into slots that it had let go, and the load brings the wrong blocks.

    Only a match of the entry that was let go, or of slots that went to a request, is a hit on what
    was freed.
    """
    events = [*_entry("P", [11, 12], STORED, 1), *_load(STORED)]
    events[-2]["slots"] = STORED
    events[-1]["src"] = [901, 900]
    if anew == "X":
        events = [*events[:-2], *life("X", [71, 72], STORED, row=6, step=3)]
    reader = _reader("A", [11, 12, 13], STORED, 1, 4)
    reader[1]["entry"] = "of-P" if known else "any"
    events = numbered([*events, *reader])
    finding = diagnose(HEAD_P, events).findings[0]
    phantom = known or anew == "X"
    assert (finding.cls, finding.subtype) == (
        ("prefix_index", "phantom_hit") if phantom else ("transfer_mismatch", "misaligned_blocks")
    )
    cause = index_of(events, "free", owner="tree") if phantom else len(_entry("P", [1], [1], 1)) + 3
    assert finding.cause_event == cause
