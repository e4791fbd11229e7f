"""Faults planted into the events of a clean run.

Each takes a random generator, the header and numbered events, and gives the changed events with
the place of the first forward that the fault can touch, or None where the run offers no occasion.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

Event = dict[str, Any]
Planted = tuple[list[Event], int]


def _forwards(events: list[Event], **wanted: Any) -> list[int]:
    return [
        at
        for at, event in enumerate(events)
        if event["kind"] == "forward" and all(event.get(k) == v for k, v in wanted.items())
    ]


def _prefix(event: Event, b: int) -> int:
    """Positions that batch row ``b`` reads."""
    mode = event["forward_mode"]
    if mode == "DECODE":
        return int(event["positions"][b])
    if mode == "TARGET_VERIFY":
        return int(event["seq_lens"][b])
    if mode == "DRAFT_EXTEND_V2":
        return int(event["seq_lens"][b] - event["extend_seq_lens"][b])
    return int(event["extend_prefix_lens"][b])


def _row_at(events: list[Event], at: int, row: int) -> dict[int, int]:
    cells: dict[int, int] = {}
    for event in events[:at]:
        if event["kind"] == "map" and event["row"] == row:
            cells.update(enumerate(event["slots"], start=event["start"]))
    return cells


def _next_forward(events: list[Event], at: int) -> int | None:
    return next((k for k in range(at, len(events)) if events[k]["kind"] == "forward"), None)


def _reads(rng: random.Random, events: list[Event], least: int) -> tuple[int, int, int] | None:
    """A target forward, one of its rows, and that row's prefix of at least ``least``."""
    choices = [
        (at, b, _prefix(events[at], b))
        for at in _forwards(events)
        if "worker" not in events[at]
        for b, req in enumerate(events[at]["reqs"])
        if req is not None and _prefix(events[at], b) >= least
    ]
    return rng.choice(choices) if choices else None


def _before(events: list[Event], at: int) -> int:
    """Where to insert something in front of a forward and its fingerprints."""
    while at and events[at - 1]["kind"] == "kv_hash" and events[at - 1]["phase"] == "before":
        at -= 1
    return at


def swapped_cells(rng: random.Random, head: Event, events: list[Event]) -> Planted | None:
    """Two cells of a row change places before a forward reads them."""
    place = _reads(rng, events, 2)
    if place is None:
        return None
    at, b, prefix = place
    row = events[at]["req_pool_indices"][b]
    cells = _row_at(events, at, row)
    one, other = rng.sample(range(prefix), 2)
    into = _before(events, at)
    swaps = [
        {"kind": "map", "row": row, "start": one, "slots": [cells[other]]},
        {"kind": "map", "row": row, "start": other, "slots": [cells[one]]},
    ]
    events[into:into] = swaps
    return events, at + 2


def stale_row(rng: random.Random, head: Event, events: list[Event]) -> Planted | None:
    """The request table misses an update."""
    return _dropped(rng, events, "map")


def stale_lut(rng: random.Random, head: Event, events: list[Event]) -> Planted | None:
    """The full-to-SWA table names another position's slot for a position in the window."""
    window = head["pool"].get("swa_window", 0)
    place = _reads(rng, events, 2) if window else None
    if place is None:
        return None
    at, b, prefix = place
    lut: dict[int, int] = {}
    for event in events[:at]:
        if event["kind"] == "lut":
            lut.update(zip(event["full"], event["swa"], strict=True))
    cells = _row_at(events, at, events[at]["req_pool_indices"][b])
    one, other = rng.sample(range(max(0, prefix - window), prefix), 2)
    wrong = {"kind": "lut", "full": [cells[one]], "swa": [lut[cells[other]]]}
    events.insert(_before(events, at), wrong)
    return events, at + 1


def skipped_copy(rng: random.Random, head: Event, events: list[Event]) -> Planted | None:
    """KV that should have moved stays where it was, but what moves it is never read late."""
    choices = [
        at for at, event in enumerate(events) if event["kind"] == "copy" and "dst_pool" not in event
    ]
    if not choices:
        return None
    at = rng.choice(choices)
    del events[at]
    first = _next_forward(events, at)
    return None if first is None else (events, first)


def _dropped(rng: random.Random, events: list[Event], kind: str) -> Planted | None:
    choices = [at for at, event in enumerate(events) if event["kind"] == kind]
    if not choices:
        return None
    at = rng.choice(choices)
    del events[at]
    first = _next_forward(events, at)
    return None if first is None else (events, first)


def shifted_position(rng: random.Random, head: Event, events: list[Event]) -> Planted | None:
    """One token of a forward is given the position after its own."""
    choices = [
        (at, k)
        for at in _forwards(events)
        for k, slot in enumerate(events[at]["out_cache_loc"])
        if slot > 0 and events[at]["positions"][k] + 1 < head["pool"]["row_len"]
    ]
    at, k = rng.choice(choices)
    events[at]["positions"][k] += 1
    return events, at


def wrong_token(rng: random.Random, head: Event, events: list[Event]) -> Planted | None:
    """One token fed to a forward is not the request's."""
    choices = [(at, k) for at in _forwards(events) for k in range(len(events[at]["input_ids"]))]
    at, k = rng.choice(choices)
    events[at]["input_ids"][k] += 1 if events[at]["input_ids"][k] < 1 << 62 else -1
    return events, at


def foreign_write(rng: random.Random, head: Event, events: list[Event]) -> Planted | None:
    """A forward writes into a slot that another row reads later (freed or handed out twice)."""
    place = _reads(rng, events, 1)
    if place is None:
        return None
    at, b, prefix = place
    cells = _row_at(events, at, events[at]["req_pool_indices"][b])
    slot = cells[rng.randrange(prefix)]
    earlier = [f for f in _forwards(events) if f < at and "worker" not in events[f]]
    if not earlier:
        return None
    culprit = rng.choice(earlier)
    k = rng.randrange(len(events[culprit]["out_cache_loc"]))
    events[culprit]["out_cache_loc"][k] = slot
    return events, culprit


def skipped_write(rng: random.Random, head: Event, events: list[Event]) -> Planted | None:
    """A forward does not write one of its tokens."""
    at = rng.choice(_forwards(events))
    if not events[at]["out_cache_loc"]:
        return None
    events[at]["out_cache_loc"][rng.randrange(len(events[at]["out_cache_loc"]))] = -1
    return events, at


def overwriting_copy(rng: random.Random, head: Event, events: list[Event]) -> Planted | None:
    """A copy lands on a slot that a forward then reads."""
    place = _reads(rng, events, 1)
    if place is None:
        return None
    at, b, prefix = place
    cells = _row_at(events, at, events[at]["req_pool_indices"][b])
    dst = cells[rng.randrange(prefix)]
    src = rng.randint(1, head["pool"]["max_slot"])
    into = _before(events, at)
    events.insert(into, {"kind": "copy", "src": [src], "dst": [dst], "via": "d2d"})
    return events, at + 1


def changed_bytes(rng: random.Random, head: Event, events: list[Event]) -> Planted | None:
    """KV bytes of a slot differ from what was written, in one recorded fingerprint."""
    choices = [
        at
        for at, event in enumerate(events)
        if event["kind"] == "kv_hash" and event["phase"] == "before"
    ]
    if not choices:
        return None
    at = rng.choice(choices)
    k = rng.randrange(len(events[at]["hash"]))
    events[at]["hash"][k] ^= 1
    first = _next_forward(events, at)
    assert first is not None
    return events, first


def padding_writes_live_slot(
    rng: random.Random, head: Event, events: list[Event]
) -> Planted | None:
    """A padding row's bytes land in a live slot; the canary row there stays."""
    choices = [
        at
        for at in _forwards(events)
        if None in events[at]["reqs"]
        and "kv_hash" in head["records"]
        and events[at + 1 : at + 2]
        and events[at + 1]["kind"] == "kv_hash"
    ]
    if not choices:
        return None
    at = rng.choice(choices)
    event, after = events[at], events[at + 1]
    each = event.get("draft_token_num", 1)
    padding, active = (
        event["reqs"].index(None),
        event["reqs"].index(next(r for r in event["reqs"] if r is not None)),
    )
    cells = _row_at(events, at, event["req_pool_indices"][active])
    slot = cells[rng.randrange(_prefix(event, active))]
    event["out_cache_loc"][padding * each] = slot
    after["slots"].append(slot)
    after["hash"].append(rng.getrandbits(63))
    return events, at


FAULTS: dict[str, Callable[[random.Random, Event, list[Event]], Planted | None]] = {
    fault.__name__: fault
    for fault in (
        swapped_cells,
        stale_row,
        stale_lut,
        skipped_copy,
        shifted_position,
        wrong_token,
        foreign_write,
        skipped_write,
        overwriting_copy,
        changed_bytes,
        padding_writes_live_slot,
    )
}


def plant(
    name: str, rng: random.Random, head: Event, events: list[Event]
) -> tuple[list[Event], int, int] | None:
    """Plant fault ``name``: changed events, the place of the first forward it can touch, its step.

    Events are numbered anew.
    """
    planted = FAULTS[name](rng, head, copy.deepcopy(events))
    if planted is None:
        return None
    changed, first = planted
    out = [{k: v for k, v in event.items() if k != "i"} for event in changed]
    numbered = [{"kind": event.pop("kind"), "i": i} | event for i, event in enumerate(out)]
    return numbered, first, numbered[first]["step"]
