"""KV bytes that changed under several requests at once, with no known writer."""

from __future__ import annotations

from typing import Any

import pytest

from tests.attribution.events import HEAD, extend, life, numbered
from tests.attribution.helpers import diagnose

Event = dict[str, Any]
_HEAD = HEAD | {"records": [*HEAD["records"], "kv_hash"]}
_HELD = {"A": [1, 2, 3], "B": [4, 5, 6], "C": [7, 8, 9]}


def _hashes(phase: str, step: int, slots: list[int], flipped: tuple[int, ...] = ()) -> Event:
    values = [1000 + slot + (5000 if slot in flipped else 0) for slot in slots]
    return {"kind": "kv_hash", "phase": phase, "step": step, "slots": slots, "hash": values}


@pytest.mark.parametrize("flipped", [(2,), (2, 3), (2, 5), (5, 9), (1, 5, 6, 9), (1, 4, 7)])
def test_each_finding_has_the_slots_that_its_victim_read(flipped: tuple[int, ...]) -> None:
    events: list[Event] = []
    for row, (req, slots) in enumerate(_HELD.items(), 1):
        events += life(req, [10 * row, 10 * row + 1, 10 * row + 2], slots, row, step=row)
        events.append(_hashes("after", row, slots))
    names, every = list(_HELD), [s for slots in _HELD.values() for s in slots]
    for step in (4, 5):
        at, new = step - 1, [6 + 3 * step - 8 + k for k in (0, 1, 2)]
        new = [slot + 10 for slot in new]
        for row, req in enumerate(names, 1):
            events += [
                {"kind": "history", "req": req, "start": at, "ids": [90 + step]},
                {"kind": "alloc", "owner": req, "slots": [new[row - 1]]},
                {"kind": "map", "row": row, "start": at, "slots": [new[row - 1]]},
            ]
        events.append(_hashes("before", step, every, flipped))
        decode = extend(step, "", 0, at, [], [])
        decode |= {"reqs": names, "req_pool_indices": [1, 2, 3], "seq_lens": [at + 1] * 3}
        decode |= {"input_ids": [90 + step] * 3, "positions": [at] * 3, "out_cache_loc": new}
        decode |= {"extend_prefix_lens": [at] * 3, "extend_seq_lens": [1] * 3}
        events.append(decode)
    found = {f.victim: f for f in diagnose(_HEAD, numbered(events)).findings}
    wanted = {req: set(flipped) & set(slots) for req, slots in _HELD.items()}
    assert {req: f.slots for req, f in found.items()} == {r: s for r, s in wanted.items() if s}
    for who, finding in found.items():
        assert (finding.cls, finding.subtype) == ("payload_mutation", "kv_bytes")
        req = who or ""
        assert finding.positions == {_HELD[req].index(slot) for slot in finding.slots}
        assert list(finding.blast_radius) == [req]
        assert finding.facts is not None
        assert {e.slot for e in finding.facts.entries} == finding.slots
        assert finding.violations == 2 * len(finding.slots)
