"""Frees before the last one: the ledger keeps only that for each slot.

A slot that is freed while a row names it may pass through many hands before that row is read, and
its last free is then the blameless end of a later tenancy. Frees are kept as the trace holds them,
a segment's at a time; nobody sorts them before a damage asks.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from sys import intern
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kvcanary_cli.backends.cpu.event_records import NEVER
from kvcanary_cli.trace.schema import GAP_OWNER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from kvcanary_cli.trace.columns import Column
    from kvcanary_cli.trace.segment import Segment

    Ints = NDArray[np.int64]

# Frees of so many slots are kept, or of as many as the pool has.
_LEAST_KEPT = 1 << 20


class Free(NamedTuple):
    """A free of a slot: its event, who gave the slot back, and why (empty: not told)."""

    event: int
    by: str
    reason: str


@dataclass(slots=True)
class _Page:
    """The frees of a segment.

    Attributes:
        slots: [n] what they name, in order.
        ends: [frees] where each one's slots end.
        events: [frees] their ``i``, or [n] those of ``slots`` if it is told ``by_slot``: so does a
            page with a cut's state in it.
        owners, reasons: [frees] places in ``names``, -1 = none.
        last: The last one's ``i``.
        names: Of the segment's strings those; all pages hold the same object for a name.
        order: [n] places in ``slots``, by slot and then in order; None until asked for.
    """

    slots: NDArray[np.int32]
    ends: NDArray[np.int32]
    events: Ints
    last: int
    by_slot: bool
    owners: NDArray[np.int32]
    reasons: NDArray[np.int32] | None
    names: list[str]
    order: NDArray[np.int32] | None = None

    def of(self, slot: int) -> Iterator[Free]:
        """What is told of ``slot``, in order."""
        if self.order is None:
            self.order = np.argsort(self.slots, kind="stable").astype(np.int32)
        first, stop = np.searchsorted(self.slots, [slot, slot + 1], sorter=self.order).tolist()
        for at in self.order[first:stop].tolist():
            k = int(np.searchsorted(self.ends, at, side="right"))
            event = int(self.events[at if self.by_slot else k])
            reason = -1 if self.reasons is None else int(self.reasons[k])
            by, why = self.names[self.owners[k]], self.names[reason] if reason >= 0 else ""
            if by != GAP_OWNER:
                yield Free(event, by, why)


class PastFrees:
    """Frees of the trace so far, as far back as the pool's size allows.

    Args:
        num_slots: Slots of the pool.
    """

    def __init__(self, num_slots: int) -> None:
        self._most = max(_LEAST_KEPT, num_slots)
        self._pages: deque[_Page] = deque()
        self._kept = 0
        self._noted: Segment | None = None
        # Frees up to this event have been dropped.
        self._dropped = NEVER

    def note(self, segment: Segment) -> None:
        """Keep what a segment tells; one call for each of its events does no harm."""
        if segment is self._noted:
            return
        self._noted = segment
        page = _page(segment)
        if page is None:
            return
        self._pages.append(page)
        self._kept += len(page.slots)
        while self._kept > self._most and len(self._pages) > 1:
            page = self._pages.popleft()
            self._kept -= len(page.slots)
            self._dropped = max(self._dropped, page.last)

    def first(self, slot: int, since: int, before: int) -> Free | None:
        """The first free of ``slot`` at an event within (``since``, ``before``).

        Returns:
            None if there is none, or if not all frees since then are kept.
        """
        if since < self._dropped:
            return None
        found = (
            free
            for page in self._pages
            if page.last > since
            for free in page.of(slot)
            if since < free.event < before
        )
        return min(found, default=None)


def _page(segment: Segment) -> _Page | None:
    table = segment.tables.get("free")
    if table is None or not table.rows:
        return None
    slots, reasons = table.columns["slots"], table.columns.get("reason")
    assert slots.offsets is not None
    first, stop = int(slots.offsets[0]), int(slots.offsets[-1])
    # They are few among many events.
    mine = np.flatnonzero(segment.kind == segment.kind_names.index("free"))
    events = segment.index[mine].astype(np.int64)
    at = table.columns.get("at")
    if at is not None:
        events = _by_slot(at, events, slots.offsets)
    by, why = table.columns["owner"].values, None
    # The last one stands for no string.
    is_named = np.zeros(len(segment.strings) + 1, dtype=np.bool_)
    is_named[by] = True
    if reasons is not None:
        told = True if reasons.present is None else reasons.present
        why = np.where(told, reasons.values, -1)
        is_named[why] = True
    is_named[-1] = False
    places = np.cumsum(is_named, dtype=np.int32) - 1
    places[-1] = -1
    return _Page(
        slots=slots.values[first:stop].astype(np.int32),
        ends=(slots.offsets[1:] - first).astype(np.int32),
        events=events,
        last=int(events.max(initial=NEVER)),
        by_slot=at is not None,
        owners=places[by],
        reasons=None if why is None else places[why],
        names=[intern(segment.strings[code]) for code in np.flatnonzero(is_named).tolist()],
    )


def _by_slot(at: Column, events: Ints, offsets: Ints) -> Ints:
    """[n] event of each slot: a cut tells by slot which event did what it restores."""
    by_slot = np.repeat(events, np.diff(offsets))
    for k in range(len(events)):
        if at.has(k):
            first, stop = (offsets[k : k + 2] - offsets[0]).tolist()
            by_slot[first:stop] = at.span(k)
    return by_slot
