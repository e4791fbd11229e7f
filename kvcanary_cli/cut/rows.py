"""Canary rows and fingerprints of a replay's lanes and tiers as events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvcanary_cli.abi.constants import PoolKind
from kvcanary_cli.replay.lanes import get_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from kvcanary_cli.cut.requests import Selection
    from kvcanary_cli.cut.state import StateReplay
    from kvcanary_cli.replay.copies import StoredSlot
    from kvcanary_cli.replay.lanes import Lane

    Event = dict[str, Any]
    Ints = NDArray[np.int64]
    Mask = NDArray[np.bool_]

_ROW_FIELDS = ("token", "position", "prev_hash", "real_kv_hash")
#: Slots of one event: up to sixteen values each.
_SLOTS = 12_500
#: Fingerprints of one event.
_HASHES = 100_000


def lane_rows(
    replay: StateReplay, selection: Selection | None, *, written_since: bool
) -> Iterator[Event]:
    """``canary_rows`` of all lanes.

    Args:
        replay: The state.
        selection: What is kept of it, None = everything.
        written_since: Slots that were written since their last ``alloc``, or all others.
    """
    for name, worker in replay.workers.items():
        for lane in worker.lanes:
            wanted = _held(lane)
            # Only the allocator of the full pool is recorded.
            since = np.zeros(lane.num_slots, dtype=np.bool_)
            if lane.kind is PoolKind.FULL:
                since = replay.owners.written_since(name, lane.written_at)
            wanted &= since if written_since else ~since
            if selection is not None:
                wanted &= selection.slots_of(lane.kind)
            yield from _rows(replay, lane, np.flatnonzero(wanted))


def _held(lane: Lane) -> Mask:
    """[num_slots] slots whose rows say more than a fresh lane's."""
    held: Mask = (lane.written_at > 0) | lane.unlinked
    if lane.unknown is not None:
        # Of a pool that was in use before the recording, what is known must be said.
        held |= ~lane.unknown if lane.starts_mid_run else lane.unknown
    for prints in lane.kv.values():
        held |= prints.unhashed
    held |= np.any(get_rows(lane.group.k_tail, np.arange(lane.num_slots)) != 0, axis=1)
    return held


def _pool_name(lane: Lane) -> str:
    if lane.worker == "draft":
        return "draft"
    return "swa" if lane.kind is PoolKind.SWA else "full"


def _rows(replay: StateReplay, lane: Lane, slots: Ints) -> Iterator[Event]:
    for start in range(0, len(slots), _SLOTS):
        part = slots[start : start + _SLOTS]
        for half in lane.halves:
            prints = lane.kv.get(half)
            rows = get_rows(lane.buffers()[half, "tail"], part)
            if half != "k" and (prints is None or bool(prints.unhashed[part].all())):
                continue
            event: Event = {
                "kind": "canary_rows",
                "worker": lane.worker,
                "pool": _pool_name(lane),
                "half": half,
                "slots": part,
                **{name: rows[:, k] for k, name in enumerate(_ROW_FIELDS)},
                "written_at": lane.written_at[part].astype(np.int64),
            }
            if lane.lineage is not None and lane.lineage[part].any():
                event["lineage"] = lane.lineage[part].astype(np.int64)
            masks: dict[str, Mask | None] = {
                "unlinked": lane.unlinked[part],
                "unhashed": None if prints is None else prints.unhashed[part],
                "unknown": None if lane.unknown is None else lane.unknown[part],
                "proposed": None if lane.proposal is None else lane.proposal[part],
            }
            for name, mask in masks.items():
                if mask is not None and (mask.any() or name == "unhashed"):
                    event[name] = part[mask]
            if half == "k":
                event |= replay.past.writers(lane, part)
            yield event


def changed_bytes(replay: StateReplay, selection: Selection | None) -> Iterator[Event]:
    """``kv_hash`` of slots whose bytes are not what their row says, as before the first step."""
    layer = replay.kv_layer
    said = False
    for worker in replay.workers.values():
        for lane in worker.lanes:
            for half, prints in lane.kv.items():
                slots = np.arange(lane.num_slots, dtype=np.int64)
                now = prints.get(slots)
                changed = now != get_rows(lane.buffers()[half, "tail"], slots)[:, 3]
                if selection is not None:
                    changed &= selection.slots_of(lane.kind)
                pool = _pool_name(lane)
                for part in _pieces(np.flatnonzero(changed)):
                    said = True
                    yield _kv_hash(replay, half, part, now[part], None if pool == "full" else pool)
    if layer is not None and not said:
        # Fingerprints of one layer are compared: the one that came first.
        empty = np.empty(0, dtype=np.int64)
        yield _kv_hash(replay, "k", empty, empty, None)


def _pieces(slots: Ints) -> Iterator[Ints]:
    for start in range(0, len(slots), _HASHES):
        yield slots[start : start + _HASHES]


def _kv_hash(replay: StateReplay, half: str, slots: Ints, prints: Ints, pool: str | None) -> Event:
    event: Event = {
        "kind": "kv_hash",
        "phase": "before",
        "step": replay.first,
        "slots": slots,
        "hash": prints,
    }
    optional = {"pool": pool, "half": None if half == "k" else half, "layer": replay.kv_layer}
    return event | {name: value for name, value in optional.items() if value is not None}


def tier_rows(replay: StateReplay) -> Iterator[Event]:
    """``canary_rows`` of pools off the device."""
    for pool, content in replay.tiers.content():
        held = {slot: stored for slot, stored in content.items() if stored.rows is not None}
        slots = list(held)
        for start in range(0, len(slots), _SLOTS):
            part = {slot: held[slot] for slot in slots[start : start + _SLOTS]}
            yield _tier_event(pool, "k", part)
            if any(
                ("v", "tail") in (s.rows or {}) and s.kv.get("v", (0, False))[1]
                for s in part.values()
            ):
                yield _tier_event(pool, "v", part)


def _tier_event(pool: str, half: str, part: dict[int, StoredSlot]) -> Event:
    assert all(stored.rows is not None for stored in part.values())
    rows = np.stack([stored.rows[half, "tail"] for stored in part.values() if stored.rows])
    lineage = [stored.lineage for stored in part.values()]
    return {
        "kind": "canary_rows",
        "worker": "target",
        "pool": pool,
        "half": half,
        "slots": list(part),
        **{name: rows[:, k] for k, name in enumerate(_ROW_FIELDS)},
        **({"lineage": lineage} if any(lineage) else {}),
        "unlinked": [slot for slot, stored in part.items() if stored.unlinked],
        "unhashed": [s for s, stored in part.items() if not stored.kv.get(half, (0, False))[1]],
        "unknown": [slot for slot, stored in part.items() if stored.unknown],
    }


def tier_bytes(replay: StateReplay) -> Iterator[Event]:
    """``kv_hash`` of slots off the device whose bytes are not what their row says."""
    for pool, content in replay.tiers.content():
        for half in ("k", "v"):
            changed = {}
            for slot, stored in content.items():
                value, known = stored.kv.get(half, (0, False))
                row = None if stored.rows is None else stored.rows.get((half, "tail"))
                if known and (row is None or int(row[3]) != value):
                    changed[slot] = value
            slots = np.array(list(changed), dtype=np.int64)
            prints = np.array(list(changed.values()), dtype=np.int64)
            for start in range(0, len(slots), _HASHES):
                stop = start + _HASHES
                yield _kv_hash(replay, half, slots[start:stop], prints[start:stop], pool)
