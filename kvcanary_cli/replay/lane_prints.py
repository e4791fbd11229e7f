"""The recorded fingerprints of one worker's lanes: behind a forward, before one, at any time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvcanary_cli.replay.lanes import get_rows, set_rows
from kvcanary_cli.replay.under_padding import UnderPadding

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvcanary_cli.replay.collector import Collector
    from kvcanary_cli.replay.forwards import Forward
    from kvcanary_cli.replay.lanes import Lane

    Ints = NDArray[np.int64]


class LanePrints:
    """Enters fingerprints where the kernels compare them.

    Args:
        lanes: The worker's.
        collector: Knows what the pending forward wrote.

    Attributes:
        under_padding: Bytes that were wrong before a padding row wrote over them.
    """

    def __init__(self, lanes: list[Lane], collector: Collector) -> None:
        self._lanes, self._collector = lanes, collector
        self.under_padding = UnderPadding(lanes[0])
        self._taken: dict[tuple[int, str], list[Ints]] = {}
        # Of slots that the pending forward did not write: lane, half, slots, hashes, event.
        self._late: list[tuple[int, str, Ints, Ints, int]] = []

    def begin(self) -> None:
        """Another forward begins."""
        self._taken = {}
        self.under_padding.clear()

    def taken(self, lane_index: int, half: str) -> Ints:
        """Slots that the pending forward wrote and whose fingerprint was taken behind it."""
        parts = self._taken.get((lane_index, half), [])
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)

    def take(
        self,
        lane_index: int,
        half: str,
        slots: Ints,
        hashes: Ints,
        *,
        event: int,
        forward: Forward | None,
    ) -> None:
        """Fingerprints taken behind ``forward``, whose TAIL is still to come.

        TAIL sees those of slots that the forward wrote; all others count from then on.
        """
        wrote = np.isin(slots, self._collector.all_slots(lane_index))
        kv = self._lanes[lane_index].kv[half]
        if lane_index == 0:
            self.under_padding.note(forward, half, slots[wrote])
        kv.set(slots[wrote], hashes[wrote])
        self._taken.setdefault((lane_index, half), []).append(slots[wrote])
        if not wrote.all():
            self._late.append((lane_index, half, slots[~wrote], hashes[~wrote], event))

    def changed_under_padding(self, slot: int) -> bool:
        """Whether a padding row of the pending forward hit ``slot``, whose bytes were right so far.

        Only where a fingerprint was taken behind the forward did TAIL see what the row had left.
        """
        return any(
            slot in self.taken(0, half) and not self.under_padding.was_wrong(half, slot)
            for half in self._lanes[0].kv
        )

    def before_tail(self, written: list[Ints]) -> None:
        """Settle what TAIL compares in slots that the forward wrote.

        Args:
            written: For each lane, the slots.
        """
        for index, lane in enumerate(self._lanes):
            for half, kv in lane.kv.items():
                known = self.taken(index, half)
                bare = np.setdiff1d(written[index], known)
                fresh = np.intersect1d(written[index], known)
                # What other rows of the batch read there had no fingerprint to differ from.
                self._take_as_right(index, half, fresh[kv.unhashed[fresh]])
                kv.unhashed[fresh] = False
                if len(bare):
                    # Until TAIL writes the slot its old fingerprint is as good as any.
                    tail = lane.buffers()[half, "tail"]
                    kv.set(bare, get_rows(tail, bare)[:, 3])
                    self._collector.unhashed[index, half] = bare

    def behind_tail(self, event: int | None) -> None:
        """TAIL has run; ``event`` is the forward's if all was compared, and found right."""
        for lane in self._lanes:
            for kv in lane.kv.values():
                kv.met_by(event)
        for lane_index, half, slots, hashes, of_event in self._late:
            self.adopt(lane_index, half, slots, hashes, event=of_event)
        self._late.clear()

    def adopt(
        self,
        lane_index: int,
        half: str,
        slots: Ints,
        hashes: Ints,
        *,
        event: int,
        before: bool = False,
    ) -> None:
        """Fingerprints of slots as they are now, outside a pending forward.

        A slot that the canary wrote without a recorded fingerprint takes the first one seen as
        the right one.

        Args:
            lane_index, half: Whose bytes.
            slots, hashes: [n] slots and their fingerprints.
            event: That told them.
            before: Whether they were taken for the next forward.
        """
        lane = self._lanes[lane_index]
        kv = lane.kv[half]
        kv.set(slots, hashes)
        first_seen = slots[kv.unhashed[slots]]
        self._take_as_right(lane_index, half, first_seen)
        kv.unhashed[first_seen] = False
        right = get_rows(lane.buffers()[half, "tail"], slots)[:, 3] == hashes
        kv.note_agreed(slots[right], event, before=before)

    def _take_as_right(self, lane_index: int, half: str, slots: Ints) -> None:
        """The bytes of ``slots`` as they are now are those that their canary rows vouch for."""
        if not len(slots):
            return
        lane = self._lanes[lane_index]
        tail = lane.buffers()[half, "tail"]
        rows = get_rows(tail, slots)
        rows[:, 3] = lane.kv[half].get(slots)
        set_rows(tail, slots, rows)
