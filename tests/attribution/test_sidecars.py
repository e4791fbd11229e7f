"""What stands beside the KV (scales and their kin), in every pool on the device."""

from __future__ import annotations

from typing import Any

import pytest

from tests.attribution.events import HEAD, decode, extend, index_of, life, numbered
from tests.attribution.helpers import diagnose

Event = dict[str, Any]
# The window pool may be the larger one: slot 70 is in no other.
SIDECARS = HEAD | {
    "pool": {"slots": 64, "rows": 9, "row_len": 64, "swa_slots": 80, "swa_window": 8},
    "records": [*HEAD["records"], "sidecar_hash", "lut"],
}
LANES = {
    None: ("target", "FULL"),
    "full": ("target", "FULL"),
    "swa": ("target", "SWA"),
    "draft": ("draft", "FULL"),
}


def _hash(phase: str, pool: str | None, slot: int, value: int, step: int = 1) -> Event:
    event: Event = {"kind": "sidecar_hash", "phase": phase, "step": step, "name": "k_scale"}
    event |= {"slots": [slot], "hash": [value]}
    return event if pool is None else event | {"pool": pool}


@pytest.mark.parametrize("pool", LANES)
@pytest.mark.parametrize("slot", [1, 70])
def test_a_change_is_told_in_its_pool(pool: str | None, slot: int) -> None:
    if slot > 64 and pool != "swa":
        return
    events = numbered([_hash("after", pool, slot, 5), _hash("before", pool, slot, 6, 2)])
    (finding,) = diagnose(SIDECARS, events).findings
    assert (finding.cls, finding.subtype) == ("payload_mutation", "sidecar_scale")
    assert (finding.worker, finding.pool_kind) == LANES[pool]
    assert (finding.slots, finding.cause_window) == ({slot}, (0, 1))


def test_slots_of_two_pools_are_two_places() -> None:
    pools = ["full", "swa", "draft", "host"]
    after = [_hash("after", pool, 1, k) for k, pool in enumerate(pools)]
    before = [_hash("before", pool, 1, k, 2) for k, pool in enumerate(pools)]
    assert not diagnose(SIDECARS, numbered([*after, *before])).findings


@pytest.mark.parametrize("pool", ["full", "swa", "draft"])
def test_what_was_rewritten_is_not_known(pool: str) -> None:
    worker = {"worker": "draft"} if pool == "draft" else {}
    written = [
        {"kind": "lut", "full": [1], "swa": [1]},
        *(e | (worker if e["kind"] == "forward" else {}) for e in life("A", [11], [1], 1, 2)),
    ]
    copied = [{"kind": "copy", "src": [2], "dst": [1], "src_pool": pool, "dst_pool": pool}]
    elsewhere = [{"kind": "copy", "src": [2], "dst": [1], "src_pool": "host", "dst_pool": "host"}]
    for between, found in ((written, False), (copied, False), (elsewhere, True)):
        events = [_hash("after", pool, 1, 5), *between, _hash("before", pool, 1, 6, 3)]
        assert bool(diagnose(SIDECARS, numbered(events)).findings) is found


def test_the_window_begins_where_it_was_last_recorded() -> None:
    events = numbered(
        [_hash("after", None, 1, 5), *life("A", [11], [1], 1, 2), _hash("after", None, 1, 6, 2)]
    )
    events = numbered([*events, _hash("before", None, 1, 7, 3)])
    (finding,) = diagnose(SIDECARS, events).findings
    assert finding.cause_window == (index_of(events, "sidecar_hash", step=2), len(events) - 1)
    assert finding.victim == "A"


@pytest.mark.parametrize("pool", ["full", "swa", "draft"])
@pytest.mark.parametrize(("seen", "found"), [(5, False), (6, True)])
def test_a_copy_takes_along_what_stands_beside_its_source(
    pool: str, seen: int, found: bool
) -> None:
    """Twice over, and whatever stood beside the destination before."""
    between = [
        {"kind": "copy", "src": [1], "dst": [2], "src_pool": pool, "dst_pool": pool},
        {"kind": "copy", "src": [2], "dst": [3], "src_pool": pool, "dst_pool": pool},
        {"kind": "copy", "src": [40], "dst": [4], "src_pool": "host", "dst_pool": pool},
    ]
    events = [_hash("after", pool, 1, 5), *(_hash("after", pool, slot, 8) for slot in (3, 4))]
    events += [*between, _hash("before", pool, 4, 9, 2), _hash("before", pool, 3, seen, 2)]
    events = numbered(events)
    findings = diagnose(SIDECARS, events).findings
    assert len(findings) == found
    for finding in findings:
        assert (finding.subtype, finding.slots) == ("sidecar_scale", {3})
        copy = index_of(events, "copy", dst=[3])
        assert finding.cause_window == (copy, len(events) - 1)
        assert any(f"the source of the copy at event {copy}" in text for text in finding.evidence)


def test_what_a_copy_brought_may_be_recorded_anew() -> None:
    copy = {"kind": "copy", "src": [1], "dst": [2]}
    events = [_hash("after", None, 1, 5), copy, _hash("after", None, 2, 6)]
    assert not diagnose(SIDECARS, numbered([*events, _hash("before", None, 2, 6, 2)])).findings
    (finding,) = diagnose(SIDECARS, numbered([*events, _hash("before", None, 2, 5, 2)])).findings
    assert not any("source of the copy" in text for text in finding.evidence)


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("pool", [None, "swa"])
def test_who_reads_what_changed_is_the_victim(pool: str | None, ended: bool) -> None:
    """Whoever wrote it, and whether that one runs still."""
    swa = [21, 22, 23]
    match = {"kind": "match", "req": "B", "entry": "E", "slots": [1, 2, 3]}
    slot = 2 if pool is None else 22
    events = numbered(
        [
            {"kind": "lut", "full": [1, 2, 3, 4], "swa": [*swa, 24]},
            *life("A", [11, 12, 13], [1, 2, 3], row=1, step=1),
            _hash("after", pool, slot, 5),
            {"kind": "own", "from": "A", "owner": "tree", "slots": [1, 2, 3], "entry": "E"},
            *([{"kind": "finish", "req": "A"}] if ended else []),
            {"kind": "history", "req": "B", "start": 0, "ids": [11, 12, 13, 24]},
            match,
            {"kind": "alloc", "owner": "B", "slots": [4]},
            {"kind": "map", "row": 2, "start": 0, "slots": [1, 2, 3, 4]},
            _hash("before", pool, slot, 6, 2),
            extend(2, "B", 2, 3, [24], [4]),
        ]
    )
    (finding,) = diagnose(SIDECARS, events).findings
    assert (finding.victim, finding.positions) == ("B", {1})
    assert list(finding.blast_radius) == ["B"]


def test_a_slot_that_a_copy_filled_is_damaged_at_the_position_of_its_reader() -> None:
    events = numbered(
        [
            *life("A", [11, 12, 13], [1, 2, 3], row=1, step=1),
            _hash("after", None, 3, 5),
            {"kind": "alloc", "owner": "A", "slots": [6]},
            {"kind": "copy", "src": [3], "dst": [6], "via": "d2d", "by": "A"},
            {"kind": "map", "row": 1, "start": 2, "slots": [6]},
            _hash("before", None, 6, 7, 2),
            *decode("A", 14, 7, row=1, position=3, step=2),
        ]
    )
    (finding,) = diagnose(SIDECARS, events).findings
    assert (finding.victim, finding.positions, finding.slots) == ("A", {2}, {6})
    assert not any("KV bytes" in fact.because for fact in finding.ruled_out)
