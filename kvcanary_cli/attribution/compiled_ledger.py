"""The ledger as compiled code keeps it (``replay.watched_ledger.Ledger``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvcanary_cli.attribution.ledger import TREE
from kvcanary_cli.backends.cpu.event_state import LIST_ROOM, Request, State

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvcanary_cli.attribution.diagnoser import Diagnoser
    from kvcanary_cli.attribution.row_table import RowTable
    from kvcanary_cli.replay.requests import Requests
    from kvcanary_cli.trace.segment import Segment

    Ints = NDArray[np.int64]

# The first code that names anybody.
_FIRST_NAME = TREE


class CompiledLedger:
    """Hands the ledger's arrays to the event kernel, and takes back what it keeps in lists.

    Args:
        diagnoser: Whose ledger it is.
    """

    def __init__(self, diagnoser: Diagnoser) -> None:
        self._diagnoser = diagnoser
        self._follower = follower = diagnoser.follower
        rows = follower.header.pool.rows
        follower.context.table.has_rows(rows)
        for column in (
            follower.context.batch_row_slot.slots,
            follower.context.batch_row_slot.steps,
        ):
            column.has_room(rows)
        self._writes = follower.lane("target", "FULL")
        # What the kernel lists: requests that it named, that ended, that were served.
        self._named: Ints = np.zeros(LIST_ROOM, dtype=np.int64)
        self._ended: Ints = np.zeros((LIST_ROOM, 3), dtype=np.int64)
        self._matched: Ints = np.zeros((LIST_ROOM, 3), dtype=np.int64)
        self._fixed = self._addresses()
        # Arrays that are replaced when they grow, and where they are.
        self._growing: tuple[NDArray[Any], ...] = (self._fixed,) * 3
        self._growing_at = self._fixed[:3]
        # Names and requests that know of each other.
        self._told = _FIRST_NAME, 0

    def block(self, cells: Ints, requests: Requests) -> None:
        """See ``Ledger``."""
        follower, table = self._follower, self._follower.context.table
        cells[State.HAS_LEDGER : State.HAS_LEDGER + len(self._fixed)] = self._fixed
        cells[State.LEDGER_STEP], cells[State.STEPS_SEEN] = follower.steps_seen()
        self._tell_codes(requests)
        self._put_growing(cells)
        cells[State.MAP_FREE] = table.free
        cells[State.NEXT_CODE] = len(follower.names)
        for cell, listed in (
            (State.NAMED, self._named),
            (State.ENDED, self._ended),
            (State.MATCHED, self._matched),
        ):
            cells[cell] = listed.ctypes.data
        for cell in (State.NAMED_COUNT, State.ENDED_COUNT, State.MATCHED_COUNT):
            cells[cell] = 0
        context = follower.context
        cells[State.WATCHES_MATCHES] = self._diagnoser.watches_matches or bool(context.unlisted)
        cells[State.WATCHES_ENTRIES] = bool(context.entries) or bool(context.unlisted)

    def _tell_codes(self, requests: Requests) -> None:
        """Requests get the codes of their names, whichever of both came first."""
        names = self._follower.names
        told_names, told_requests = self._told
        for code in range(told_names, len(names)):
            number = requests.find(names.name(code) or "")
            if number is not None:
                requests.cells[number, Request.LEDGER_CODE] = code
        for number in range(told_requests, len(requests)):
            found = names.find(requests.names[number])
            if found is not None:
                requests.cells[number, Request.LEDGER_CODE] = found
        self._told = len(names), len(requests)

    def _put_growing(self, cells: Ints) -> None:
        """Put the addresses of what may have grown into the block."""
        follower, table = self._follower, self._follower.context.table
        steps, allocs = follower.context.last_step_of, follower.rules.last_alloc
        for numbers in (steps, allocs):
            numbers.has_room(len(follower.names) + LIST_ROOM)
        arrays = (steps.values, allocs.values, table.runs)
        if any(a is not b for a, b in zip(arrays, self._growing, strict=True)):
            self._growing = arrays
            self._growing_at = np.array([a.ctypes.data for a in arrays], dtype=np.int64)
        cells[State.LAST_STEPS : State.MAP_FREE] = self._growing_at

    def _addresses(self) -> Ints:
        """Addresses that stay, from the cell HAS_LEDGER on."""
        context = self._follower.context
        state, writes = self._follower.rules.state, self._writes
        arrays: dict[State, NDArray[Any]] = {
            State.PAST: state.past,
            State.WRITES: writes.records,
            State.BATCH_SLOTS: context.batch_row_slot.slots.values,
            State.BATCH_STEPS: context.batch_row_slot.steps.values,
            State.LEDGER_TENANTS: context.table.tenants,
            State.MAP_HEADS: context.table.heads,
            State.RELEASED: context.table.released,
            State.RAN: context.table.ran,
            State.RAN_COUNT: context.table.ran_count,
        }
        fixed = np.zeros(len(arrays) + 1, dtype=np.int64)
        fixed[0] = 1
        for cell, array in arrays.items():
            fixed[cell - State.HAS_LEDGER] = array.ctypes.data
        return fixed

    def take_back(
        self, cells: Ints, requests: Requests, segment: Segment, last_event: int | None
    ) -> None:
        """See ``Ledger``."""
        follower = self._follower
        follower.rules.state.past_frees.note(segment)
        follower.context.table.free = int(cells[State.MAP_FREE])
        follower.go_on_from(int(cells[State.LEDGER_STEP]), int(cells[State.STEPS_SEEN]))
        for number in self._named[: cells[State.NAMED_COUNT]].tolist():
            follower.names.code(requests.names[number])
        for code, event, steps_seen in self._ended[: cells[State.ENDED_COUNT]].tolist():
            follower.note_end(code, event, steps_seen)
        for code, event, row in self._matched[: cells[State.MATCHED_COUNT]].tolist():
            follower.context.note_match(code, segment, row, event)
        if last_event is not None:
            self._diagnoser.book.event_now = last_event

    def tenant(self, row: int, req: str, event: int) -> None:
        self._follower.context.row(row).run(self._follower.names.code(req), event)

    def make_room(self) -> None:
        self._follower.context.table.make_room(_drop_covered)

    def reason(self, text: str) -> int:
        return self._follower.rules.state.reason_code(text)

    def applied_to(self, segment: Segment) -> int:
        return self._follower.applied_to(segment)


def _drop_covered(table: RowTable) -> int:
    """``RowTable.drop_covered``, compiled."""
    from kvcanary_cli.backends.cpu.map_events import drop_covered

    width = int(table.runs["stops"].max(initial=0))
    seen, out = np.zeros(width + 1, dtype=np.uint8), np.array([table.free, 0])
    arrays = (table.heads, table.runs, seen, out)
    drop_covered(len(table.heads), *(array.ctypes.data for array in arrays))
    table.free = int(out[0])
    return int(out[1])
