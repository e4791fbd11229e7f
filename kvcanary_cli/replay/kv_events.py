"""Events that bring KV bytes: fingerprints of slots, copies, and rows restored at a cut."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvcanary_cli.replay import copies, cut_restore

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from kvcanary_cli.replay.driver import Replay
    from kvcanary_cli.replay.forwards import Forward
    from kvcanary_cli.replay.lanes import Lane
    from kvcanary_cli.replay.worker import WorkerCanary
    from kvcanary_cli.trace.segment import Segment

    Ints = NDArray[np.int64]

TARGET, DRAFT = "target", "draft"


class KvEvents:
    """Applies them to the lanes of a replay, which counts them."""

    def __init__(self, replay: Replay) -> None:
        self._replay = replay

    def handlers(self) -> dict[str, Callable[[Segment, int, int], None]]:
        """Event kind to what applies it: (segment, event number in it, row of its table)."""
        return {
            "copy": self._copy,
            "kv_hash": self._kv_hash,
            "canary_rows": self._canary_rows,
        }

    def _lane_index(self, pool: str | None) -> tuple[WorkerCanary, int] | None:
        """Worker and lane number of the pool that a fingerprint or copy names."""
        if pool == DRAFT:
            return self._replay.worker(DRAFT), 0
        worker = self._replay.worker(TARGET)
        if pool == "swa":
            return (worker, 1) if len(worker.lanes) > 1 else None
        return worker, 0

    def _kv_hash(self, segment: Segment, k: int, row: int) -> None:
        table = segment.tables["kv_hash"]
        slots, hashes = table.get_ints("slots", row), table.get_ints("hash", row)
        assert slots is not None
        assert hashes is not None
        phase = segment.text("kv_hash", "phase", row)
        step = table.get_int("step", row) or 0
        pool = segment.text("kv_hash", "pool", row)
        half = segment.text("kv_hash", "half", row) or "k"
        if pool is not None and not copies.is_device_pool(pool):
            if self._is_compared(table.get_int("layer", row)):
                self._replay.kv_hashes += len(slots)
                self._replay.tiers.set_prints(pool, half, *_last_of_each(slots, hashes))
            return
        place = self._lane_index(pool)
        if place is None:
            self._leave_out("the SWA pool", slots)
            return
        worker, lane = place
        waiting = worker.pending
        is_after = phase == "after" and waiting is not None and waiting.step == step
        if not is_after:
            self._replay.flush_forwards()
        recorded = (
            self._replay.options.sweep_interval is None and not self._replay.options.strict_upstream
        )
        if phase == "sweep" and recorded:
            self._replay.sweep_due = (step, int(segment.index[k]))
        if not self._is_compared(table.get_int("layer", row)):
            self._leave_out("further layers", slots)
            return
        if half not in worker.lanes[lane].kv:
            if self._replay.check_kv:
                self._leave_out(f"the {half.upper()} half", slots)
            return
        self._replay.kv_hashes += len(slots)
        slots, hashes = _last_of_each(slots, hashes)
        event = int(segment.index[k])
        if is_after:
            worker.prints.take(lane, half, slots, hashes, event=event, forward=worker.pending)
        else:
            worker.prints.adopt(lane, half, slots, hashes, event=event, before=phase == "before")

    def _leave_out(self, what: str, slots: Ints) -> None:
        self._replay.uncompared[what] = self._replay.uncompared.get(what, 0) + len(slots)

    def _is_compared(self, layer: int | None) -> bool:
        """Whether fingerprints of ``layer`` count: those of the first layer seen do."""
        if self._replay.kv_layer is None:
            self._replay.kv_layer = layer
        return layer == self._replay.kv_layer

    def keep(self, worker: WorkerCanary, forward: Forward) -> None:
        """Remember the written positions' fingerprints, for copies that name them."""
        histories = self._replay.pool.histories
        if histories is None or not histories.keeps_kv or "k" not in worker.lanes[0].kv:
            return
        hashed = worker.prints.taken(0, "k")
        slots = worker.collector.token_slots(0)
        good = np.isin(slots, hashed)
        if not good.any():
            return
        prints = worker.lanes[0].kv["k"].get(np.maximum(slots, 0))
        for b, req in enumerate(forward.reqs):
            mine = good & (forward.token_row == b)
            if req is not None and mine.any():
                histories.note_kv(req, forward.true_positions[mine], prints[mine])

    # Copies and restored state.

    def _copy(self, segment: Segment, k: int, row: int) -> None:
        self._replay.flush_forwards()
        self._replay.slots_copied_unknown += copies.apply_copy(
            segment,
            row,
            lane_of=self._lane,
            tiers=self._replay.tiers,
            histories=self._replay.pool.histories,
        )

    def _lane(self, pool: str) -> Lane | None:
        """Lane of a device pool, None for other pools and for a lane that is not checked."""
        place = self._lane_index(pool) if copies.is_device_pool(pool) else None
        return None if place is None else place[0].lanes[place[1]]

    def _canary_rows(self, segment: Segment, k: int, row: int) -> None:
        self._replay.flush_forwards()
        cut_restore.restore_rows(self._replay, segment, k, row)


def _last_of_each(slots: Ints, hashes: Ints) -> tuple[Ints, Ints]:
    """Drop all but the last fingerprint of each slot."""
    if len(np.unique(slots)) == len(slots):
        return slots, hashes
    _, at = np.unique(slots[::-1], return_index=True)
    last = np.sort(len(slots) - 1 - at)
    return slots[last], hashes[last]
