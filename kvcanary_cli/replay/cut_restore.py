"""Restores state from the events that stand at the head of a cut trace (``cut.events``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvcanary_cli.errors import InputError
from kvcanary_cli.replay.copies import StoredSlot, is_device_pool
from kvcanary_cli.replay.lanes import get_rows, set_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvcanary_cli.replay.driver import Replay
    from kvcanary_cli.replay.history import TokenHistories
    from kvcanary_cli.replay.lanes import Lane
    from kvcanary_cli.trace.segment import Segment

    Ints = NDArray[np.int64]

_KIND = "canary_rows"
_EMPTY = np.empty(0, dtype=np.int64)


class _Rows:
    """One ``canary_rows`` event, taken apart and checked."""

    def __init__(self, segment: Segment, k: int, row: int, num_slots: int | None) -> None:
        table = segment.tables[_KIND]

        def ints(name: str) -> Ints:
            values = table.get_ints(name, row)
            return _EMPTY if values is None else values

        self.slots = ints("slots")
        names = ("token", "position", "prev_hash", "real_kv_hash")
        self.rows = np.stack([ints(name) for name in names], axis=1)
        self.written_at = table.get_ints("written_at", row)
        self.lineage = table.get_ints("lineage", row)
        for name in ("written_at", "lineage"):
            values = getattr(self, name)
            if values is not None and (
                len(values) != len(self.slots) or np.any((values < 0) | (values >= 1 << 31))
            ):
                raise _refused(segment, k, name, "a serial number for each of 'slots'")
        self.unlinked, self.unknown = ints("unlinked"), ints("unknown")
        self.proposed = ints("proposed")
        unhashed = table.get_ints("unhashed", row)
        # Without the list, 0 is "no fingerprint": the first one seen then counts.
        self.unhashed = self.slots[self.rows[:, 3] == 0] if unhashed is None else unhashed
        for name in ("unlinked", "unknown", "unhashed", "proposed"):
            values = getattr(self, name)
            low, high = values.min(initial=0), values.max(initial=0)
            if low < 0 or (num_slots is not None and high >= num_slots):
                raise _refused(segment, k, name, "slots of its pool")


def _refused(segment: Segment, k: int, name: str, expected: str) -> InputError:
    return InputError(
        f"event i={int(segment.index[k])}: 'canary_rows' field '{name}' must hold {expected}",
        hint="make the cut again with `kvcanary trace cut`",
    )


def restore_rows(replay: Replay, segment: Segment, k: int, row: int) -> None:
    """Apply a ``canary_rows`` event.

    Half ``k`` gives token, position and link of both halves; half ``v`` only the V fingerprints.
    """
    pool = segment.text(_KIND, "pool", row) or "full"
    half = segment.text(_KIND, "half", row) or "k"
    if not is_device_pool(pool):
        _restore_tier(replay, pool, half, _Rows(segment, k, row, None))
        return
    worker = replay.worker(segment.text(_KIND, "worker", row) or "target")
    if pool == "swa" and len(worker.lanes) < 2:
        return
    lane = worker.lanes[1 if pool == "swa" else 0]
    content = _Rows(segment, k, row, lane.num_slots)
    if half == "k":
        _restore_lane(lane, content)
    elif half in lane.halves:
        _restore_half(lane, half, content)


def _restore_lane(lane: Lane, content: _Rows) -> None:
    slots, rows = content.slots, content.rows
    lane.put_rows(slots, rows)
    if content.written_at is not None:
        lane.set_write_order(slots, content.written_at)
    if content.lineage is not None:
        lane.set_lineage(slots, content.lineage)
    lane.unlink(content.unlinked)
    lane.forget(content.unknown)
    if len(content.proposed):
        lane.note_proposed(content.proposed)
    for half, prints in lane.kv.items():
        if half != "k":
            tail = lane.buffers()[half, "tail"]
            bare = rows.copy()
            bare[:, 3] = 0
            set_rows(tail, slots, bare)
            prints.set(slots, bare[:, 3])
            prints.unhashed[slots] = True
            continue
        prints.set(slots, rows[:, 3])
        prints.unhashed[slots] = False
        prints.unhashed[content.unhashed] = True


def _restore_half(lane: Lane, half: str, content: _Rows) -> None:
    prints = lane.kv.get(half)
    if prints is None:
        return
    tail = lane.buffers()[half, "tail"]
    rows = get_rows(tail, content.slots)
    lane.touched(content.slots)
    rows[:, 3] = content.rows[:, 3]
    set_rows(tail, content.slots, rows)
    prints.set(content.slots, rows[:, 3])
    prints.unhashed[content.slots] = False
    prints.unhashed[content.unhashed] = True


def _restore_tier(replay: Replay, pool: str, half: str, content: _Rows) -> None:
    unhashed, unlinked, unknown = (
        set(values.tolist()) for values in (content.unhashed, content.unlinked, content.unknown)
    )
    lineage = np.zeros(len(content.slots), dtype=np.int64)
    if content.lineage is not None:
        lineage = content.lineage
        replay.pool.lineages.met(lineage)
    for slot, row, chain in zip(
        content.slots.tolist(), content.rows, lineage.tolist(), strict=True
    ):
        before = replay.tiers.at(pool, slot)
        bare = row.copy()
        bare[3] = 0
        rows = {("k", "head"): bare, ("k", "tail"): bare, ("v", "head"): bare, ("v", "tail"): bare}
        kv = {} if before is None else dict(before.kv)
        if half != "k" and before is not None and before.rows is not None:
            rows = dict(before.rows)
        rows[half, "tail"] = row
        kv[half] = (int(row[3]), slot not in unhashed)
        stored = StoredSlot(rows, kv, slot in unlinked, slot in unknown, chain)
        replay.tiers.restore(pool, slot, stored)


def restore_position_prints(histories: TokenHistories, segment: Segment, row: int) -> None:
    """Apply the fingerprints by position that a ``history`` event of a cut carries."""
    table = segment.tables["history"]
    positions, prints = table.get_ints("kv_pos", row), table.get_ints("kv", row)
    if positions is None or prints is None:
        return
    inside = histories.pool.shape[1]
    if len(positions) != len(prints) or np.any((positions < 0) | (positions >= inside)):
        raise InputError(
            f"'history' of request {segment.text('history', 'req', row)!r}: 'kv_pos' and 'kv' must "
            f"be equally long, positions from 0 to {inside - 1}",
            hint="make the cut again with `kvcanary trace cut`",
        )
    histories.note_kv(segment.text("history", "req", row) or "", positions, prints)
