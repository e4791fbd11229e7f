"""Events of one kind that follow one another, applied together.

A decode step allocates a slot and sets a cell for each of its requests, one event each; event by
event the ledger would take longer than the replay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from kvcanary_cli.attribution.context import Context
    from kvcanary_cli.attribution.ownership import OwnershipRules
    from kvcanary_cli.trace.columns import Table
    from kvcanary_cli.trace.segment import Segment

    Ints = NDArray[np.int64]

# A run of so many events is worth being applied at once.
_LEAST_RUN = 4


class EventRuns:
    """Applies runs of allocs and of maps to the ledger.

    Args:
        rules: Owners.
        context: Rows.
        begin_again: Told of each owner and the event of its alloc.
    """

    def __init__(
        self, rules: OwnershipRules, context: Context, begin_again: Callable[[str, int], None]
    ) -> None:
        self._rules = rules
        self._context = context
        self._begin_again = begin_again
        self._handlers: dict[str, Callable[[Segment, int, Ints], bool]] = {
            "alloc": self._allocs,
            "map": self._maps,
        }
        self._segment: Segment | None = None
        # [runs] where each run of one kind ends in the segment.
        self._ends: Ints = np.empty(0, dtype=np.int64)
        # Up to here the events of the segment have been looked at, and whether they were applied.
        self._stop, self._applied = 0, False

    def covers(self, segment: Segment, k: int, kind: str, row: int) -> bool:
        """Whether the ``k``-th event has been applied with its run; its first one applies it.

        Args:
            segment, k: Where it stands; a segment's events must come in order.
            kind: Its kind.
            row: Its row in the kind's table.
        """
        run = self._handlers.get(kind)
        if run is None:
            return False
        if segment is not self._segment:
            self._segment, self._stop = segment, 0
            self._ends = np.append(np.flatnonzero(np.diff(segment.kind)) + 1, len(segment))
        if k >= self._stop:
            self._stop = int(self._ends[np.searchsorted(self._ends, k, side="right")])
            events = segment.index[k : self._stop]
            self._applied = len(events) >= _LEAST_RUN and run(segment, row, events)
        return self._applied

    def applied_to(self, segment: Segment) -> int:
        """Events of ``segment`` before this one have been applied."""
        return self._stop if self._applied and segment is self._segment else 0

    def _allocs(self, segment: Segment, row: int, events: Ints) -> bool:
        """Apply the allocs from table row ``row`` on.

        Args:
            events: [n] their ``i``.

        Returns:
            Whether that was done; allocs that break a rule must go one by one.
        """
        table, stop = segment.tables["alloc"], row + len(events)
        if not _have(table, ("slots", "owner"), ("at", "shared"), row, stop):
            return False
        slots, counts = _lists(table, "slots", row, stop)
        if not self._rules.are_free(slots):
            # Before anybody begins again: whether he does may hang on who loses slots here.
            return False
        owners = table.columns["owner"].values[row:stop].tolist()
        names = [segment.strings[code] for code in owners]
        for name, event in zip(names, events.tolist(), strict=True):
            self._begin_again(name, event)
        codes = np.array([self._rules.names.code(name) for name in names], dtype=np.int32)
        self._rules.alloc_free(np.repeat(codes, counts), slots, np.repeat(events, counts))
        self._rules.last_alloc.update(zip(codes.tolist(), events.tolist(), strict=True))
        return True

    def _maps(self, segment: Segment, row: int, events: Ints) -> bool:
        """Apply map events, as ``_allocs`` does."""
        table, stop = segment.tables["map"], row + len(events)
        if not _have(table, ("slots", "row", "start"), ("at",), row, stop):
            return False
        slots, counts = _lists(table, "slots", row, stop)
        if not counts.all():
            return False
        owners = self._rules.state.owner[slots[np.cumsum(counts) - 1]]
        starts = table.columns["start"].values[row:stop].astype(np.int64)
        for target, event, start, end, owner in zip(
            table.columns["row"].values[row:stop].tolist(),
            events.tolist(),
            starts.tolist(),
            (starts + counts).tolist(),
            owners.tolist(),
            strict=True,
        ):
            self._context.row(target).map(event, start, end, owner)
        return True


def _have(
    table: Table, needed: tuple[str, ...], absent: tuple[str, ...], row: int, stop: int
) -> bool:
    """Whether all events of table rows [row, stop) have the fields ``needed``, none ``absent``."""
    for name in needed:
        present = table.columns[name].present
        if present is not None and not present[row:stop].all():
            return False
    for name in absent:
        column = table.columns.get(name)
        if column is not None and (column.present is None or column.present[row:stop].any()):
            return False
    return True


def _lists(table: Table, name: str, row: int, stop: int) -> tuple[Ints, Ints]:
    """The lists of a field in table rows [row, stop): their values in a row, and their lengths."""
    column = table.columns[name]
    assert column.offsets is not None
    offsets = column.offsets[row : stop + 1]
    values: Ints = column.values[offsets[0] : offsets[-1]].astype(np.int64, copy=False)
    return values, np.diff(offsets)
