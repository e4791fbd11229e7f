"""What the prefix index holds, as the entries that a sweep verifies (specification 3.4, 5.7)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

# No slot was given back this often: a slot made then is never what it was.
_GONE = -1


@dataclass(frozen=True, slots=True)
class SweepEntries:
    """Slots that the index holds, with position and predecessor (-1 = head)."""

    slots: NDArray[np.int64]
    positions: NDArray[np.int64]
    prev_slots: NDArray[np.int64]


class PrefixIndex:
    """Published prefixes. Slots that the tree gave back to the free list drop out."""

    def __init__(self, num_slots: int) -> None:
        self._entries: dict[str, SweepEntries] = {}
        self._made: dict[str, NDArray[np.int32]] = {}
        # How often the tree gave each slot back: an entry's slot counts only while that is
        # what it was when the entry was published.
        self._returns = np.zeros(num_slots, dtype=np.int32)
        self.unplaced = 0
        """Slots published without a position that the trace shows; sweeps leave them out."""

    def publish(
        self,
        entry: str,
        slots: NDArray[np.int64],
        row: NDArray[np.int32] | None,
    ) -> None:
        """Make ``entry`` visible.

        Args:
            entry: Its name; an entry of that name is replaced.
            slots: Its slots in position order.
            row: Table row of the request that published it: where it holds these slots they have
                their positions from. None = the slots start at position 0.
        """
        self.unpublish(entry)
        if not len(slots):
            return
        start, first_prev = 0, -1
        if row is not None:
            place = _find_run(row, slots)
            if place is None:
                self.unplaced += len(slots)
                return
            start, first_prev = place
        self.place(entry, slots, start, first_prev)

    def place(
        self,
        entry: str,
        slots: NDArray[np.int64],
        start: int,
        prev_slot: int,
        gone: NDArray[np.int64] | None = None,
    ) -> None:
        """Make ``entry`` visible at positions ``start`` on, behind ``prev_slot`` (-1 = head).

        Slots in ``gone`` are places only: the tree has given them back.
        """
        self.unpublish(entry)
        if not len(slots):
            return
        prev_slots = np.empty(len(slots), dtype=np.int64)
        prev_slots[0] = prev_slot
        prev_slots[1:] = slots[:-1]
        self._made[entry] = self._returns[slots]
        if gone is not None:
            self._made[entry][np.isin(slots, gone)] = _GONE
        self._entries[entry] = SweepEntries(
            slots.copy(), np.arange(start, start + len(slots), dtype=np.int64), prev_slots
        )

    def unpublish(self, entry: str) -> None:
        self._entries.pop(entry, None)
        self._made.pop(entry, None)

    def drop_slots(self, slots: NDArray[np.int64]) -> None:
        """The tree gave ``slots`` back."""
        self._returns[slots] += 1

    def visible(self) -> dict[str, SweepEntries]:
        return self._entries

    def gone(self, entry: str) -> NDArray[np.int64]:
        """Slots of ``entry`` that the tree gave back since it was published."""
        slots = self._entries[entry].slots
        gone: NDArray[np.int64] = slots[self._returns[slots] != self._made[entry]]
        return gone

    def entries(self) -> SweepEntries:
        """What a sweep verifies now: every place once, in order of publication."""
        if not self._entries:
            empty = np.empty(0, dtype=np.int64)
            return SweepEntries(empty, empty, empty)
        slots = np.concatenate([e.slots for e in self._entries.values()])
        positions = np.concatenate([e.positions for e in self._entries.values()])
        prev_slots = np.concatenate([e.prev_slots for e in self._entries.values()])
        made = np.concatenate([self._made[entry] for entry in self._entries])
        keep = self._returns[slots] == made
        slots, positions, prev_slots = slots[keep], positions[keep], prev_slots[keep]
        # Entries share their common prefix. A slot that stands at two places is two entries: that
        # is the corruption a sweep is there to see.
        places = np.stack([slots, positions, prev_slots], axis=1)
        first = np.sort(np.unique(places, axis=0, return_index=True)[1])
        return SweepEntries(slots[first], positions[first], prev_slots[first])


def _find_run(row: NDArray[np.int32], slots: NDArray[np.int64]) -> tuple[int, int] | None:
    """Where ``row`` holds ``slots`` as a run: (first position, slot before it or -1)."""
    for start in np.flatnonzero(row == slots[0]).tolist():
        if start + len(slots) <= len(row) and np.array_equal(
            row[start : start + len(slots)], slots
        ):
            return start, int(row[start - 1]) if start else -1
    return None
