"""What the prefix index holds, as the entries that a sweep verifies (specification 3.4, 5.7)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvcanary_cli.backends.cpu.event_records import NEVER
from kvcanary_cli.backends.cpu.event_state import Entry, PrefixNumber
from kvcanary_cli.backends.cpu.pages import zeros
from kvcanary_cli.replay.token_store import without_gaps

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

# No slot was given back this often: a slot made then is never what it was.
_GONE = -1
_FIRST_ENTRIES, _FIRST_PLACES = 64, 1024
# Names of entries that are not visible any more are dropped when there are so many, and most are.
_OLD_NAMES = 4096
_HIDDEN = -1


@dataclass(frozen=True, slots=True)
class SweepEntries:
    """Slots that the index holds, with position and predecessor (-1 = head)."""

    slots: NDArray[np.int64]
    positions: NDArray[np.int64]
    prev_slots: NDArray[np.int64]


class PrefixIndex:
    """Published prefixes. Slots that the tree gave back to the free list drop out.

    Attributes:
        cells: [room, fields] int64, columns as in ``Entry``; replaced when it grows.
        places: [room, 2] int32: a slot of an entry, and how often the tree had given it back when
            the entry was published; the slot counts while that is so. Replaced when it is full.
        numbers: Further numbers, see ``PrefixNumber``; compiled code keeps them, too.
        returns: [slots] int32, how often the tree gave each slot back.
    """

    def __init__(self, num_slots: int) -> None:
        self.cells = _hidden(_FIRST_ENTRIES)
        self.places: NDArray[np.int32] = np.zeros((_FIRST_PLACES, 2), dtype=np.int32)
        self.numbers: Ints = np.zeros(len(PrefixNumber), dtype=np.int64)
        self.numbers[PrefixNumber.ROOM] = _FIRST_PLACES
        self.returns: NDArray[np.int32] = zeros(num_slots, np.int32)
        self._codes: dict[str, int] = {}
        self._names: list[str] = []
        # From so many on it is looked at how many of them nobody sees.
        self._many_names = _OLD_NAMES

    @property
    def unplaced(self) -> int:
        """Slots published without a position that the trace shows; sweeps leave them out."""
        return int(self.numbers[PrefixNumber.UNPLACED])

    def code(self, entry: str) -> int:
        """Number of an entry, good until ``forget_names``."""
        code = self._codes.get(entry)
        if code is None:
            code = self._codes[entry] = len(self._names)
            self._names.append(entry)
            if code == len(self.cells):
                self.cells = np.concatenate([self.cells, _hidden(len(self.cells))])
        return code

    def publish(
        self,
        entry: str,
        slots: Ints,
        row: NDArray[np.int32] | None,
        event: int,
    ) -> None:
        """Make ``entry`` visible.

        Args:
            entry: Its name; an entry of that name is replaced.
            slots: Its slots in position order.
            row: Table row of the request that published it: where it holds these slots they have
                their positions from. None = the slots start at position 0.
            event: The ``i`` that does it.
        """
        self.unpublish(entry)
        if not len(slots):
            return
        code = self.code(entry)
        self.cells[code, Entry.EVENT] = event
        start, first_prev = 0, -1
        if row is not None:
            place = _find_run(row, slots)
            if place is None:
                self.numbers[PrefixNumber.UNPLACED] += len(slots)
                return
            start, first_prev = place
        self.place(entry, slots, start, first_prev)
        self.cells[code, Entry.EVENT] = event

    def place(
        self,
        entry: str,
        slots: Ints,
        start: int,
        prev_slot: int,
        gone: Ints | None = None,
    ) -> None:
        """Make ``entry`` visible at positions ``start`` on, behind ``prev_slot`` (-1 = head).

        Slots in ``gone`` are places only: the tree has given them back. Since when they are in the
        index is not known.
        """
        self.unpublish(entry)
        if not len(slots):
            return
        self.make_room(len(slots))
        at, code = int(self.numbers[PrefixNumber.USED]), self.code(entry)
        self.numbers[PrefixNumber.USED] += len(slots)
        self.numbers[PrefixNumber.SERIAL] += 1
        places = self.places[at : at + len(slots)]
        places[:, 0], places[:, 1] = slots, self.returns[slots]
        if gone is not None:
            places[np.isin(slots, gone), 1] = _GONE
        cells = self.cells[code]
        cells[[Entry.AT, Entry.LEN, Entry.START, Entry.PREV]] = at, len(slots), start, prev_slot
        cells[Entry.SERIAL] = self.numbers[PrefixNumber.SERIAL]
        cells[Entry.EVENT] = NEVER

    def unpublish(self, entry: str) -> None:
        code = self._codes.get(entry)
        if code is not None:
            self.cells[code, Entry.AT] = _HIDDEN

    def drop_slots(self, slots: Ints) -> None:
        """The tree gave ``slots`` back."""
        self.returns[slots] += 1

    def make_room(self, more: int) -> None:
        """Let ``more`` places follow those of visible entries."""
        if self.numbers[PrefixNumber.USED] + more <= len(self.places):
            return
        visible = self._visible()
        lengths = self.cells[visible, Entry.LEN]
        live = int(lengths.sum())
        # Entries stand in the order of their publication.
        pairs = self.places.view(np.int64).ravel()
        pairs = without_gaps(pairs, self.cells[visible, Entry.AT], lengths, live + more)
        self.places = pairs.view(np.int32).reshape(-1, 2)
        self.cells[visible, Entry.AT] = np.cumsum(lengths) - lengths
        self.numbers[[PrefixNumber.USED, PrefixNumber.ROOM]] = live, len(self.places)

    def forget_names(self) -> None:
        """Drop the names of entries that nobody sees, if there are many; numbers change then."""
        if len(self._names) < self._many_names:
            return
        visible = self._visible()
        self._many_names = _OLD_NAMES + 2 * len(visible)
        if len(self._names) < self._many_names:
            return
        self._names = [self._names[code] for code in visible.tolist()]
        self._codes = {name: code for code, name in enumerate(self._names)}
        cells = _hidden(max(_FIRST_ENTRIES, 2 * len(visible)))
        cells[: len(visible)] = self.cells[visible]
        self.cells = cells

    def visible(self) -> dict[str, SweepEntries]:
        """All entries, in order of publication."""
        return {self._names[code]: self._entry(code) for code in self._visible().tolist()}

    def gone(self, entry: str) -> Ints:
        """Slots of ``entry`` that the tree gave back since it was published."""
        places = self._places(self._codes[entry])
        gone: Ints = places[self.returns[places[:, 0]] != places[:, 1], 0].astype(np.int64)
        return gone

    def knows(self, entry: str) -> bool:
        """Whether ``entry`` was published, or placed, under that name, and may be hidden since."""
        code = self._codes.get(entry)
        if code is None:
            return False
        event, at = self.cells[code, Entry.EVENT], self.cells[code, Entry.AT]
        return bool(event != NEVER or at != _HIDDEN)

    def shown_at(self, entry: str, slot: int, position: int, before: int) -> int:
        """The event at which the index began to name what a match served.

        Args:
            entry: What was matched. Its path leads through other entries, so that ``slot`` may be
                one of theirs.
            slot, position: What it served.
            before: The match.

        Returns:
            Of entries on the path that of the newest which names it there; ``NEVER`` if it is not
            known: the entry is older than the trace, or was published anew.
        """
        code = self._codes.get(entry)
        if code is not None:
            event = int(self.cells[code, Entry.EVENT])
            # A name alone, which compiled code has numbered, is no entry that was published.
            if self.cells[code, Entry.AT] == _HIDDEN:
                names_it = event != NEVER
            else:
                names_it = bool((self._places(code)[:, 0] == slot).any())
            if names_it and event < before:
                return event
        codes = self._visible()
        ends = self.cells[codes, Entry.AT] + self.cells[codes, Entry.LEN]
        at = np.flatnonzero(self.places[: self.numbers[PrefixNumber.USED], 0] == slot)
        # Entries stand in the order of their publication.
        which = np.searchsorted(ends, at, side="right")
        at, which = at[which < len(codes)], codes[which[which < len(codes)]]
        within = at - self.cells[which, Entry.AT]
        fits = (within >= 0) & (self.cells[which, Entry.START] + within == position)
        events = self.cells[which[fits], Entry.EVENT]
        return int(events[events < before].max(initial=NEVER))

    def entries(self) -> SweepEntries:
        """What a sweep verifies now: every place once, in order of publication."""
        codes = self._visible().tolist()
        if not codes:
            empty = np.empty(0, dtype=np.int64)
            return SweepEntries(empty, empty, empty)
        each = [self._entry(code) for code in codes]
        slots = np.concatenate([e.slots for e in each])
        positions = np.concatenate([e.positions for e in each])
        prev_slots = np.concatenate([e.prev_slots for e in each])
        made = np.concatenate([self._places(code)[:, 1] for code in codes])
        keep = self.returns[slots] == made
        slots, positions, prev_slots = slots[keep], positions[keep], prev_slots[keep]
        # Entries share their common prefix. A slot that stands at two places is two entries: that
        # is the corruption a sweep is there to see.
        places = np.stack([slots, positions, prev_slots], axis=1)
        first = np.sort(np.unique(places, axis=0, return_index=True)[1])
        return SweepEntries(slots[first], positions[first], prev_slots[first])

    def _visible(self) -> Ints:
        """Numbers of the visible entries, in order of publication."""
        cells = self.cells[: len(self._names)]
        visible = np.flatnonzero(cells[:, Entry.AT] != _HIDDEN)
        order: Ints = visible[np.argsort(cells[visible, Entry.SERIAL], kind="stable")]
        return order

    def _places(self, code: int) -> NDArray[np.int32]:
        at, length = self.cells[code, [Entry.AT, Entry.LEN]].tolist()
        return self.places[at : at + length]

    def _entry(self, code: int) -> SweepEntries:
        slots = self._places(code)[:, 0].astype(np.int64)
        start, prev_slot = self.cells[code, [Entry.START, Entry.PREV]].tolist()
        prev_slots = np.append(prev_slot, slots[:-1])
        return SweepEntries(slots, np.arange(start, start + len(slots)), prev_slots)


def _hidden(count: int) -> Ints:
    """Cells of entries that are not visible."""
    cells = np.full((count, len(Entry)), _HIDDEN, dtype=np.int64)
    cells[:, Entry.EVENT] = NEVER
    return cells


def _find_run(row: NDArray[np.int32], slots: Ints) -> tuple[int, int] | None:
    """Where ``row`` holds ``slots`` as a run: (first position, slot before it or -1)."""
    for start in np.flatnonzero(row == slots[0]).tolist():
        if start + len(slots) <= len(row) and np.array_equal(
            row[start : start + len(slots)], slots
        ):
            return start, int(row[start - 1]) if start else -1
    return None
