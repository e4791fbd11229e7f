"""Tenants and map events of the request table's rows, as arrays that compiled code keeps, too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvcanary_cli.attribution.ledger import NEVER, NOBODY
from kvcanary_cli.backends.cpu.event_state import NO_ROW, RAN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

#: No node of a list follows.
END = -1
_START, _STOP, _OWNER, _NEXT = range(4)
#: Fewer nodes are not worth looking through.
_MANY = 1 << 14


class RowTable:
    """For each row who last ran in it, and a list of its map events, newest first.

    Attributes:
        tenants: [rows] request, -1 = none, ``NO_ROW`` = the row was never named.
        heads: [rows] newest node of each row's list.
        events: [nodes] event of each.
        cells: [nodes, 4] int32: first cell, one behind the last, owner of the last slot, next node.
        free: First node that is not in use.
        ran: [rows, RAN, 2] the last changes of tenant, (request, event of its forward), each in the
            place of its number modulo ``RAN``.
        ran_count: [rows] changes of tenant.
        released: [rows, 2] event of the last row_release, and who gave the row back.
    """

    def __init__(self) -> None:
        self.tenants: Ints = np.full(8, NO_ROW, dtype=np.int64)
        self.heads: Ints = np.full(8, END, dtype=np.int64)
        self.events: Ints = np.zeros(0, dtype=np.int64)
        self.cells: NDArray[np.int32] = np.zeros((0, 4), dtype=np.int32)
        self.free = END
        self.ran, self.ran_count, self.released = _tenancies(8)
        self.grow(64)

    def has_rows(self, rows: int) -> None:
        """Make room for rows up to ``rows``."""
        more = max(rows, 2 * len(self.heads)) - len(self.heads)
        if rows > len(self.heads):
            self.tenants = np.append(self.tenants, np.full(more, NO_ROW, dtype=np.int64))
            self.heads = np.append(self.heads, np.full(more, END, dtype=np.int64))
            ran, ran_count, released = _tenancies(more)
            self.ran = np.append(self.ran, ran, axis=0)
            self.ran_count = np.append(self.ran_count, ran_count)
            self.released = np.append(self.released, released, axis=0)

    def run(self, row: int, req: int, event: int) -> None:
        """Another request than before runs in a row."""
        count = int(self.ran_count[row])
        self.tenants[row], self.ran_count[row] = req, count + 1
        self.ran[row, count % RAN] = req, event

    def last_tenants(self, row: int) -> list[tuple[int, int]]:
        """The last changes of tenant, oldest first: (request, event of its forward)."""
        count = int(self.ran_count[row])
        each = [self.ran[row, k % RAN].tolist() for k in range(max(0, count - RAN), count)]
        return [(req, event) for req, event in each]

    def make_room(self, drop_covered: Callable[[RowTable], int] | None = None) -> None:
        """Have a free node when there is none.

        Each cell is mapped anew in every request that a row serves, one by one, so without this the
        lists would be as long as the trace.

        Args:
            drop_covered: Does what ``drop_covered`` does, faster.
        """
        dropped = 0
        if len(self.events) >= _MANY:
            dropped = drop_covered(self) if drop_covered else self.drop_covered()
        if 2 * dropped < len(self.events):
            self.grow(len(self.events))

    def drop_covered(self) -> int:
        """Drop the map events that newer ones cover wholly, together; how many."""
        dropped = 0
        for row in np.flatnonzero(self.heads != END).tolist():
            seen: set[int] = set()
            last = END
            node = int(self.heads[row])
            while node != END:
                start, stop, _owner, below = self.cells[node].tolist()
                if seen.issuperset(range(start, stop)):
                    self.cells[node, _NEXT], self.free = self.free, node
                    dropped += 1
                else:
                    seen.update(range(start, stop))
                    self._link(row, last, node)
                    last = node
                node = below
            self._link(row, last, END)
        return dropped

    def _link(self, row: int, last: int, node: int) -> None:
        """Let ``node`` follow ``last`` in the row's list, or begin it."""
        if last == END:
            self.heads[row] = node
        else:
            self.cells[last, _NEXT] = node

    def grow(self, count: int) -> None:
        """Add ``count`` free nodes."""
        first = len(self.events)
        self.events = np.append(self.events, np.zeros(count, dtype=np.int64))
        self.cells = np.append(self.cells, np.zeros((count, 4), dtype=np.int32), axis=0)
        self.cells[first:, _NEXT] = np.arange(first + 1, first + count + 1)
        self.cells[-1, _NEXT] = self.free
        self.free = first

    def map(self, row: int, event: int, start: int, stop: int, owner: int) -> None:
        """Enter a map event; those that it covers are dropped as far as they are the newest."""
        cells, node = self.cells, int(self.heads[row])
        while node != END and start <= cells[node, _START] and stop >= cells[node, _STOP]:
            below = int(cells[node, _NEXT])
            cells[node, _NEXT] = self.free
            self.free, node = node, below
        if self.free == END:
            # The list's own beginning first: what is dropped or kept depends on it.
            self.heads[row] = node
            self.make_room()
            cells, node = self.cells, int(self.heads[row])
        new, self.free = self.free, int(cells[self.free, _NEXT])
        self.events[new], cells[new], self.heads[row] = event, (start, stop, owner, node), new

    def newest_first(self, row: int) -> Iterator[tuple[int, int, int, int]]:
        """(event, start, stop, owner) of the row's map events."""
        node = int(self.heads[row])
        while node != END:
            start, stop, owner, below = self.cells[node].tolist()
            yield int(self.events[node]), start, stop, owner
            node = below


def _tenancies(rows: int) -> tuple[Ints, Ints, Ints]:
    """``ran``, ``ran_count`` and ``released`` of rows that nobody ran in."""
    released = np.full((rows, 2), NEVER, dtype=np.int64)
    released[:, 1] = NOBODY
    return np.zeros((rows, RAN, 2), dtype=np.int64), np.zeros(rows, dtype=np.int64), released
