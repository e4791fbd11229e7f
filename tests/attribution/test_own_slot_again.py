"""A request that is handed a slot of its own once more: its forward overwrites what it reads."""

from __future__ import annotations

from typing import Any

import pytest

from tests.attribution.events import HEAD, decode, life, numbered
from tests.attribution.helpers import diagnose

_HEAD = HEAD | {"records": [*HEAD["records"], "kv_hash"]}
Event = dict[str, Any]


def _hashes(step: int, phase: str, values: dict[int, int]) -> Event:
    return {
        "kind": "kv_hash",
        "phase": phase,
        "step": step,
        "slots": list(values),
        "hash": list(values.values()),
    }


def _hashed(events: list[Event], step: int, read: dict[int, int], wrote: dict[int, int]) -> Any:
    """``events`` that end in a forward, with the bytes that it reads and leaves."""
    before = [_hashes(step, "before", read)] if read else []
    return [*events[:-1], *before, events[-1], _hashes(step, "after", wrote)]


@pytest.mark.parametrize("own", [0, 1, 3])
@pytest.mark.parametrize("later", [0, 2])
def test_its_bytes_changed_by_its_own_write(own: int, later: int) -> None:
    """Of four slots the one at position ``own`` comes again for position 4."""
    slots = [1, 2, 3, 4]
    bytes_of = {slot: 10 + slot for slot in slots}
    events = _hashed(life("A", [101, 102, 103, 104], slots, 1, 1), 1, {}, dict(bytes_of))
    read, again = dict(bytes_of), slots[own]
    bytes_of[again] = 99
    events += _hashed(decode("A", 201, again, 1, 4, 2), 2, read, {again: 99})
    for k in range(later):
        wrote = {10 + k: 200 + k}
        more = decode("A", 202 + k, 10 + k, 1, 5 + k, 3 + k)
        events += _hashed(more, 3 + k, dict(bytes_of), wrote)
        bytes_of |= wrote
    events = numbered(events)
    alloc = [e["i"] for e in events if e["kind"] == "alloc" and e["slots"] == [again]][-1]
    forward = next(e["i"] for e in events if e["kind"] == "forward" and e["step"] == 2)
    findings = diagnose(_HEAD, events).findings
    assert [(f.cls, f.subtype) for f in findings] == [("double_alloc", "double_alloc")]
    (finding,) = findings
    assert (finding.victim, finding.culprit.req, finding.slots) == ("A", "A", {again})
    assert (finding.cause_event, finding.corrupting_event) == (alloc, forward)
    assert finding.first_bad_step == 2
