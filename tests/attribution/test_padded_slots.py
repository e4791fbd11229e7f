"""Slots that a padding row wrote: who read them, and from which batch it came."""

from __future__ import annotations

from typing import Any

import pytest

from tests.attribution.events import HEAD, decode, index_of, life, numbered
from tests.attribution.helpers import diagnose

Event = dict[str, Any]
IDLE: Event = {
    "kind": "forward",
    "forward_mode": "IDLE",
    "reqs": [None],
    "req_pool_indices": [0],
    "input_ids": [0],
    "positions": [0],
    "seq_lens": [1],
    "raw_bs": 0,
}
HASHED = HEAD | {"records": [*HEAD["records"], "kv_hash"]}


def _padded(decoded: Event, slot: int) -> Event:
    """The decode of one request, with a padding row that targets ``slot``."""
    out = dict(decoded)
    for name, value in {
        "reqs": None,
        "req_pool_indices": 0,
        "input_ids": 0,
        "positions": 0,
        "out_cache_loc": slot,
        "seq_lens": 1,
    }.items():
        out[name] = [*decoded[name], value]
    return out | {"raw_bs": 1}


def _hash(phase: str, step: int, **slots: int) -> Event:
    numbers = [int(name[1:]) for name in slots]
    return {
        "kind": "kv_hash",
        "phase": phase,
        "step": step,
        "slots": numbers,
        "hash": list(slots.values()),
    }


@pytest.mark.parametrize("readers", [0, 1, 2])
@pytest.mark.parametrize("idle", [True, False])
def test_whoever_reads_what_padding_left_is_told(idle: bool, readers: int) -> None:
    first = [*life("A", [1, 2, 3], [1, 2, 3], 1, 1), *life("B", [7], [21], 2, 2)]
    *before, step = decode("B", 8, 22, 2, 1, 3)
    pad = [IDLE | {"step": 3, "out_cache_loc": [2]}] if idle else [*before, _padded(step, 2)]
    later = [decode("A", 4 + k, 4 + k, 1, 3 + k, 5 + k) for k in range(readers)]
    events = numbered([*first, *pad, *(e for each in later for e in each)])
    (finding,) = diagnose(HEAD, events).findings
    assert (finding.cls, finding.victim, finding.slots) == ("pad_or_dummy_write", "A", {2})
    assert finding.cause_event == index_of(events, "forward", step=3)
    assert finding.culprit.details["batch_row"] == (0 if idle else 1)
    assert list(finding.blast_radius) == ["A"] * min(readers, 1)
    assert finding.first_bad_step == (5 if readers else 3)
    assert finding.positions == ({1} if readers else set())
    words = "raw batch size 0, padded to 1" if idle else "raw batch size 1, padded to 2"
    assert any(text == words for text in finding.evidence)
    unread = "no damaged content was read in this trace"
    assert (unread in finding.evidence) == (not readers)


@pytest.mark.parametrize("hands", ["own", "publish"])
def test_who_is_served_it_from_the_cache_is_told(hands: str) -> None:
    """The cache takes the slot with what the padding row left in it."""
    first, slots = life("A", [1, 2, 3], [1, 2, 3], 1, 1), [1, 2, 3]
    shown: Event = {"kind": "own", "from": "A", "owner": "tree", "slots": slots, "entry": "P"}
    if hands == "publish":
        shown = {"kind": "publish", "entry": "P", "req": "A", "slots": slots}
    hit: list[Event] = [
        {"kind": "history", "req": "B", "start": 0, "ids": [1, 2, 3]},
        {"kind": "match", "req": "B", "entry": "P", "slots": slots},
        {"kind": "map", "row": 2, "start": 0, "slots": slots},
    ]
    pad = IDLE | {"step": 2, "out_cache_loc": [2]}
    events = numbered([*first, pad, shown, *hit, *decode("B", 4, 9, 2, 3, 5)])
    head = HEAD | {"records": [*HEAD["records"], "prefix"]}
    (finding,) = diagnose(head, events).findings
    assert (finding.cls, finding.victim, finding.slots) == ("pad_or_dummy_write", "B", {2})
    assert (finding.first_bad_step, list(finding.blast_radius)) == (5, ["B"])
    assert "no damaged content was read in this trace" not in finding.evidence


def test_what_was_written_anew_is_sound_again() -> None:
    first = life("A", [1, 2, 3], [1, 2, 3], 1, 1)
    again = {"kind": "free", "owner": "A", "slots": [1, 2, 3]}
    pad = IDLE | {"step": 2, "out_cache_loc": [2]}
    new = [*life("B", [1, 2, 3], [1, 2, 3], 2, 3), *decode("B", 4, 4, 2, 3, 4)]
    (finding,) = diagnose(HEAD, numbered([*first, pad, again, *new])).findings
    assert (finding.cls, list(finding.blast_radius)) == ("pad_or_dummy_write", [])


@pytest.mark.parametrize("hashed", [True, False])
def test_padding_that_hits_what_its_own_batch_reads(hashed: bool) -> None:
    """TAIL sees what the padding left if a fingerprint was taken behind it, else the next read."""
    *before, step = decode("A", 4, 4, 1, 3, 2)
    *then, last = decode("A", 5, 5, 1, 4, 3)
    sound = _hash("before", 2, s1=11, s2=12, s3=13)
    behind = _hash("after", 2, s4=14, **({"s2": 99} if hashed else {}))
    events = numbered(
        [
            *life("A", [1, 2, 3], [1, 2, 3], 1, 1),
            _hash("after", 1, s1=11, s2=12, s3=13),
            *before,
            sound,
            _padded(step, 2),
            behind,
            *then,
            _hash("before", 3, s1=11, s2=99, s3=13, s4=14),
            last,
            _hash("after", 3, s5=15),
        ]
    )
    (finding,) = diagnose(HASHED, events).findings
    assert (finding.cls, finding.victim, finding.slots) == ("pad_or_dummy_write", "A", {2})
    assert finding.cause_event == index_of(events, "forward", step=2)
    assert finding.first_bad_step == (2 if hashed else 3)
    assert finding.culprit.details["batch_row"] == 1


@pytest.mark.parametrize("behind", [None, 77, 99])
@pytest.mark.parametrize("again", [False, True])
def test_bytes_that_were_wrong_before_the_padding_are_not_its_fault(
    behind: int | None, again: bool
) -> None:
    """``behind``: the fingerprint of the slot that was taken behind the forward."""
    *before, step = decode("A", 4, 4, 1, 3, 2)
    *then, last = decode("A", 5, 5, 1, 4, 3)
    left = 77 if behind is None else behind
    events = [
        *life("A", [1, 2, 3], [1, 2, 3], 1, 1),
        _hash("after", 1, s1=11, s2=12, s3=13),
        *before,
        _hash("before", 2, s1=11, s2=77, s3=13),
        _padded(step, 2),
        _hash("after", 2, s4=14, **({} if behind is None else {"s2": behind})),
    ]
    if again:
        events += [*then, _hash("before", 3, s1=11, s2=left, s3=13, s4=14), last]
        events += [_hash("after", 3, s5=15)]
    bytes_, padding = diagnose(HASHED, numbered(events)).findings
    assert (bytes_.cls, bytes_.victim, bytes_.slots) == ("payload_mutation", "A", {2})
    assert bytes_.first_bad_step == 2
    # What it left is its fault where that is something else again; the write is in any case.
    changed = again and left != 77
    assert (padding.cls, padding.violations) == ("pad_or_dummy_write", changed)
    assert bytes_.violations == 1 + (again and not changed)


@pytest.mark.parametrize("order", [(2, 3), (3, 2)])
def test_of_two_slots_that_padding_hit_only_the_sound_one_is_its_fault(
    order: tuple[int, int],
) -> None:
    *before, step = decode("A", 4, 4, 1, 3, 2)
    padded = step
    for slot in order:
        padded = _padded(padded, slot)
    events = [
        *life("A", [1, 2, 3], [1, 2, 3], 1, 1),
        _hash("after", 1, s1=11, s2=12, s3=13),
        *before,
        _hash("before", 2, s1=11, s2=77, s3=13),
        padded,
        _hash("after", 2, s2=98, s3=99, s4=14),
    ]
    found = {f.cls: f for f in diagnose(HASHED, numbered(events)).findings}
    assert set(found) == {"payload_mutation", "pad_or_dummy_write"}
    assert found["payload_mutation"].slots == {2}
    assert {f.violations for f in found.values()} == {1}
