"""Reads that broke a rule, by what led there: a cell that was set too late, or a free behind it.

Where a cell was set to a slot which was free, or another's, already, the row is at fault.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kvcanary_cli.attribution.ledger import FREE, NEVER, TREE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvcanary_cli.attribution.follow import Follower
    from kvcanary_cli.attribution.snapshot import Snapshots
    from kvcanary_cli.replay.forwards import Forward
    from kvcanary_cli.replay.watcher import Reads

    Ints = NDArray[np.int64]


class Cell(NamedTuple):
    """What led a read to a slot: the map event, the table row, and whether it was free then."""

    set_at: int
    row: int
    was_free: bool


class LateCells:
    """Looks at reads that broke a rule, while the table still says what led there.

    Args:
        follower: The ledger.
        snapshots: Keeps the scene.
    """

    def __init__(self, follower: Follower, snapshots: Snapshots) -> None:
        self._follower, self._snapshots = follower, snapshots
        self._cells: dict[tuple[int, int, int], Cell] = {}
        self._seen: set[tuple[int, int, int]] = set()

    def note(self, forward: Forward, reads: Reads, entries: Ints, codes: NDArray[np.int32]) -> None:
        """Look at those ``entries`` [n] of ``reads`` that broke a rule.

        Args:
            forward: The forward that reads.
            reads: What its rows read.
            entries: Indices into it.
            codes: [bs] request of each batch row.
        """
        state = self._follower.rules.state
        owners = state.owner[reads.slots[entries]]
        for b in np.unique(reads.batch_rows[entries]).tolist():
            row, code = int(forward.rows[b]), int(codes[b])
            of_row = reads.batch_rows[entries] == b
            others = of_row & ((owners == FREE) | ((owners > TREE) & (owners != code)))
            at = entries[others]
            slots = reads.slots[at]
            new = np.array([self._is_new(code, slot) for slot in slots.tolist()], dtype=np.bool_)
            if row in forward.row_as_read or not new.any():
                continue
            set_at = self._follower.context.row(row).mapped_at_each(reads.positions[at])
            since, freed = state.since[slots], state.free_event[slots]
            # Free when the cell was set, and given to somebody since.
            early = (freed > NEVER) & (freed < set_at) & (set_at < state.alloc_event[slots])
            late = new & (((since > NEVER) & (since < set_at)) | early)
            was_free = early | (owners[others] == FREE)
            for k in np.flatnonzero(late).tolist():
                cell = Cell(int(set_at[k]), row, was_free=bool(was_free[k]))
                self._cells[forward.event, code, int(slots[k])] = cell
            for k in np.flatnonzero(new).tolist():
                self._note_taken(forward.event, code, int(slots[k]), int(set_at[k]))
            for event in np.unique(set_at[late]).tolist():
                name = self._follower.names.name(code)
                self._snapshots.note_read(event, slots[late & (set_at == event)], name, forward)

    def _note_taken(self, event: int, reader: int, slot: int, set_at: int) -> None:
        """Note which free took ``slot`` from the reader, or from the entry that served it."""
        follower = self._follower
        match, last = follower.context.matched(reader, slot), follower.frees.last(slot)
        taken = None if match is None else follower.frees.of_match(match, slot)
        held = set_at if match is None else min(set_at, match.event)
        if taken is None and NEVER not in (set_at, last.event) and held < last.event:
            taken = follower.frees.since(slot, held, event)
        if taken is not None:
            follower.context.taken[event, reader, slot] = taken

    def _is_new(self, code: int, slot: int) -> bool:
        """Whether a broken rule is reported now: it is once for each tenancy of the slot."""
        key = code, slot, int(self._follower.rules.state.since[slot])
        if key in self._seen:
            return False
        self._seen.add(key)
        return True

    def cell(self, event: int, reader: int, slot: int) -> Cell | None:
        """What led ``reader`` to ``slot`` at ``event``, if that was set too late."""
        return self._cells.get((event, reader, slot))
