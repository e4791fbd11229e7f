"""The first free since somebody named a slot is to blame, also where an entry did, or nobody wrote.

``test_earlier_frees.py`` has the reads of damaged content through a row.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcanary_cli.attribution import past_frees
from kvcanary_cli.attribution.diagnose import diagnose_trace
from kvcanary_cli.replay.options import ReplayOptions
from tests.attribution.events import HEAD, decode, extend, index_of, life, numbered
from tests.attribution.helpers import diagnose
from tests.attribution.test_wrong_matches import HEAD_P, B, _published, _reads
from tests.replay.documents import assert_incremental_is_full, document
from tests.replay.helpers import UNCHECKED, MemoryReader

Event = dict[str, Any]
_SLOTS = [10, 11]


def _free(owner: str, slots: list[int], reason: str = "") -> Event:
    return {"kind": "free", "owner": owner, "slots": slots} | ({"reason": reason} if reason else {})


def _tenants(ends: list[bool], slots: list[int], *, write: bool) -> list[Event]:
    """Others get ``slots``, one behind the other, and give them back, but for a last one."""
    events: list[Event] = []
    for k, gives_back in enumerate(ends):
        name = f"T{k}"
        if write:
            events += life(name, [91, 92], slots, row=5, step=3 + k)
        else:
            events += [{"kind": "alloc", "owner": name, "slots": slots}]
        if gives_back:
            events += [_free(name, slots), {"kind": "finish", "req": name}]
            events += [{"kind": "row_release", "row": 5, "req": name}] if write else []
    return events


ENDS = [[True], [False], [True, True], [True, False], [True, True, True, False]]


def _stale_entry(ends: list[bool], *, write: bool, read: bool, how: str) -> list[Event]:
    """P's entry keeps slots that were freed and went through other hands; A is served it."""
    events = life("Z", [71, 72], _SLOTS, row=6, step=1)
    events += [_free("Z", _SLOTS), {"kind": "finish", "req": "Z"}]
    events += [{"kind": "row_release", "row": 6, "req": "Z"}]
    events += life("P", [11, 12, 13, 14], [*_SLOTS, 12, 13], row=4, step=2)
    owner = "tree"
    if how == "own":
        events += [{"kind": "own", "from": "P", "owner": "tree", "slots": _SLOTS, "entry": "E"}]
    elif how == "path":
        # The entry that A is served begins behind the slots.
        events += [{"kind": "own", "from": "P", "owner": "tree", "slots": _SLOTS, "entry": "D"}]
        events += [{"kind": "own", "from": "P", "owner": "tree", "slots": [12, 13], "entry": "E"}]
    else:
        events += [{"kind": "publish", "entry": "E", "req": "P", "slots": _SLOTS}]
        owner = "P"
    events += [{"kind": "finish", "req": "P"}, _free(owner, _SLOTS, "evict")]
    events += _tenants(ends, _SLOTS, write=write)
    events += [
        {"kind": "history", "req": "A", "start": 0, "ids": [11, 12, 13]},
        {"kind": "match", "req": "A", "entry": "E", "slots": _SLOTS},
    ]
    if read:
        step = 3 + len(ends)
        events += [
            {"kind": "alloc", "owner": "A", "slots": [5]},
            {"kind": "map", "row": 1, "start": 0, "slots": [*_SLOTS, 5]},
            extend(step, "A", 1, 2, [13], [5]),
        ]
    return numbered(events)


@pytest.mark.parametrize("read", [True, False])
@pytest.mark.parametrize("write", [True, False])
@pytest.mark.parametrize("how", ["own", "path", "publish"])
@pytest.mark.parametrize("ends", ENDS)
def test_of_a_stale_entry(ends: list[bool], how: str, write: bool, read: bool) -> None:
    events = _stale_entry(ends, write=write, read=read, how=how)
    (finding,) = diagnose(HEAD_P, events).findings
    assert (finding.cls, finding.subtype) == ("prefix_index", "phantom_hit")
    assert finding.cause_event == index_of(events, "free", reason="evict")
    assert (finding.victim, finding.slots) == ("A", set(_SLOTS))
    assert finding.confidence == "certain"


def test_a_free_behind_a_stale_match_took_nothing() -> None:
    events = _stale_entry([False], write=True, read=True, how="own")
    at = index_of(events, "match") + 1
    freed = [_free("T0", _SLOTS), *life("U", [93, 94], _SLOTS, row=6, step=4)]
    last = events[-1] | {"step": 5}
    events = numbered([*events[:at], *freed, *events[at:-1], last])
    (finding,) = diagnose(HEAD_P, events).findings
    assert (finding.cls, finding.subtype) == ("prefix_index", "phantom_hit")
    assert finding.cause_event == index_of(events, "free", reason="evict")


@pytest.mark.parametrize("names", [(None, None), ("lora-1", "lora-2")])
def test_what_slots_went_through_before_they_were_published(
    names: tuple[str | None, str | None],
) -> None:
    """A wrong match, or one key with two meanings, of slots that somebody had before."""
    before: list[Event] = [
        *life("Z", list(range(61, 69)), [1, 2, 3, 4, 5, 6, 7, 8], row=5, step=0),
        _free("Z", [1, 2, 3, 4, 5, 6, 7, 8]),
        {"kind": "finish", "req": "Z"},
    ]
    found = []
    for events in (_published(*names), [*before, *_published(*names)]):
        (finding,) = diagnose(HEAD_P, _reads(events)).findings
        found.append((finding.cls, finding.subtype, finding.culprit.req, finding.slots))
    cls = "prefix_index" if names[0] is None else "key_aliasing"
    assert found == [(cls, "wrong_entry" if names[0] is None else "namespace", "B", set(B))] * 2


@pytest.mark.parametrize("ends", ENDS)
@pytest.mark.parametrize("by", ["A", "tree"])
def test_of_slots_that_nobody_wrote_since(by: str, ends: list[bool]) -> None:
    """The content is still the reader's own: only the ownership rules tell of the read."""
    events = life("A", [101, 102, 103, 104], [1, 2, 3, 4], row=1, step=1)
    if by == "tree":
        events += [{"kind": "own", "from": "A", "owner": "tree", "slots": [1, 2, 3, 4]}]
    events += [_free(by, [2, 3], "first"), *_tenants(ends, [2, 3], write=False)]
    events = numbered([*events, *decode("A", 105, 40, row=1, position=4, step=3)])
    (finding,) = diagnose(HEAD, events).findings
    assert finding.violations == 0
    assert finding.cls == "use_after_free"
    assert finding.cause_event == index_of(events, "free", reason="first")
    assert (finding.victim, finding.slots, finding.confidence) == ("A", {2, 3}, "certain")


@pytest.mark.parametrize("given", [True, False])
def test_a_cell_that_was_set_to_a_free_slot_was_not_freed_while_named(given: bool) -> None:
    """Whether or not somebody was given the slot before it was read."""
    events = [
        *life("Z", [71, 72], [2, 3], row=6, step=1),
        _free("Z", [2, 3]),
        {"kind": "finish", "req": "Z"},
        *life("A", [71, 72, 103, 104], [1, 5, 7, 8], row=1, step=2),
        {"kind": "map", "row": 1, "start": 0, "slots": [2, 3]},
        *([{"kind": "alloc", "owner": "T", "slots": [2, 3]}] if given else []),
        *decode("A", 105, 40, row=1, position=4, step=3),
    ]
    events = numbered(events)
    (finding,) = diagnose(HEAD, events).findings
    assert (finding.cls, finding.subtype) == ("stale_mapping", "cells_rewritten")
    assert finding.cause_event == index_of(events, "map", row=1, slots=[2, 3])
    assert finding.culprit.req == "A"
    assert any("that were free then" in line for line in finding.evidence)


def test_what_is_not_kept_any_more_is_not_certain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(past_frees, "_LEAST_KEPT", 1)
    head = HEAD_P | {"pool": {"slots": 41, "rows": 9, "row_len": 64}}
    events = _stale_entry([True] * 40, write=False, read=True, how="own")
    reader = MemoryReader(head, events, 9)
    (finding,) = diagnose_trace(reader, ReplayOptions(backend="cpu"), UNCHECKED).findings
    assert (finding.subtype, finding.confidence) == ("phantom_hit", "probable")
    events = life("A", [101, 102, 103, 104], [1, 2, 3, 4], row=1, step=1)
    events += [_free("A", [2, 3]), *_tenants([True] * 40, [2, 3], write=False)]
    events = numbered([*events, *decode("A", 105, 40, row=1, position=4, step=3)])
    reader = MemoryReader(head, events, 9)
    (finding,) = diagnose_trace(reader, ReplayOptions(backend="cpu"), UNCHECKED).findings
    assert (finding.cls, finding.confidence) == ("use_after_free", "probable")


@pytest.mark.parametrize("matched_at_once", [True, False])
@pytest.mark.parametrize(("twice", "once"), [(10, 11), (11, 10)])
def test_one_slot_of_a_free_that_is_not_known_to_be_the_first(
    twice: int, once: int, matched_at_once: bool
) -> None:
    """Nobody saw an entry being published, and only one of its slots was freed before."""
    both = [twice, once]
    matches = [both] if matched_at_once else [[once], [twice]]
    events = [
        {"kind": "alloc", "owner": "Z", "slots": [twice]},
        _free("Z", [twice]),
        {"kind": "alloc", "owner": "T", "slots": both},
        _free("T", both),
        *({"kind": "match", "req": "A", "entry": "E", "slots": slots} for slots in matches),
    ]
    (finding,) = diagnose(HEAD_P, numbered(events)).findings
    assert (finding.subtype, finding.cause_event, finding.slots) == ("phantom_hit", 3, set(both))
    assert finding.confidence == "probable"
    assert finding.evidence.count("whether they were freed before, too, is not known") == 1


@given(
    ends=st.lists(st.booleans(), min_size=1, max_size=3).map(
        lambda e: [True] * (len(e) - 1) + e[:1]
    ),
    write=st.booleans(),
    how=st.sampled_from(["own", "path", "publish"]),
    segment_events=st.sampled_from([None, 1, 3]),
)
@settings(max_examples=15, deadline=None)
def test_compiled_events_tell_the_same(
    ends: list[bool], write: bool, how: str, segment_events: int | None
) -> None:
    events = _stale_entry(ends, write=write, read=True, how=how)
    assert_incremental_is_full(HEAD_P, events)
    options: dict[str, Any] = {"segment_events": segment_events}
    general = document(HEAD_P, events, compiled=False, **options)
    assert document(HEAD_P, events, compiled=True, **options) == general
