"""Tenants and map events of the request table's rows, as arrays that compiled code keeps, too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvcanary_cli.attribution.ledger import NEVER, NOBODY
from kvcanary_cli.backends.cpu.event_records import MAP_RUN, RUN_EVENTS, make_records
from kvcanary_cli.backends.cpu.event_state import NO_ROW, RAN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

#: No run of a list follows.
END = -1
#: Fewer runs are not worth looking through.
_MANY = 1 << 10


class RowTable:
    """For each row who last ran in it, and a list of its map events, newest first.

    A decoding request sets one cell after another, so events whose cells follow upon each other
    stand together, in runs.

    Attributes:
        tenants: [rows] request, -1 = none, ``NO_ROW`` = the row was never named.
        heads: [rows] newest run of each row's list.
        runs: ``MAP_RUN`` records; replaced when there are more.
        free: First run that is not in use.
        ran: [rows, RAN, 2] the last changes of tenant, (request, event of its forward), each in the
            place of its number modulo ``RAN``.
        ran_count: [rows] changes of tenant.
        released: [rows, 2] event of the last row_release, and who gave the row back.
    """

    def __init__(self) -> None:
        self.tenants: Ints = np.full(8, NO_ROW, dtype=np.int64)
        self.heads: Ints = np.full(8, END, dtype=np.int64)
        self.runs: NDArray[Any] = make_records(0, MAP_RUN)
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

    def released_since(self, req: int, event: int) -> bool:
        """Whether ``req`` gave a row back after ``event``."""
        return bool(((self.released[:, 1] == req) & (self.released[:, 0] > event)).any())

    def last_tenants(self, row: int) -> list[tuple[int, int]]:
        """The last changes of tenant, oldest first: (request, event of its forward)."""
        count = int(self.ran_count[row])
        each = [self.ran[row, k % RAN].tolist() for k in range(max(0, count - RAN), count)]
        return [(req, event) for req, event in each]

    def make_room(self, drop_covered: Callable[[RowTable], int] | None = None) -> None:
        """Have a free run when there is none.

        Each cell is mapped anew in every request that a row serves, one by one, so without this the
        lists would be as long as the trace.

        Args:
            drop_covered: Does what ``drop_covered`` does, faster.
        """
        dropped = 0
        if len(self.runs) >= _MANY:
            dropped = drop_covered(self) if drop_covered else self.drop_covered()
        if 2 * dropped < len(self.runs):
            self.grow(len(self.runs))

    def drop_covered(self) -> int:
        """Drop the runs all of whose events newer ones cover wholly, together; how many."""
        dropped = 0
        for row in np.flatnonzero(self.heads != END).tolist():
            seen: set[int] = set()
            last = END
            node = int(self.heads[row])
            while node != END:
                run = self.runs[node]
                cells = range(int(run["start"]), int(run["stops"][run["count"] - 1]))
                below = int(run["below"])
                if seen.issuperset(cells):
                    self._give_back(node)
                    dropped += 1
                else:
                    seen.update(cells)
                    self._link(row, last, node)
                    last = node
                node = below
            self._link(row, last, END)
        return dropped

    def _give_back(self, node: int) -> None:
        self.runs["below"][node], self.free = self.free, node

    def _link(self, row: int, last: int, node: int) -> None:
        """Let ``node`` follow ``last`` in the row's list, or begin it."""
        if last == END:
            self.heads[row] = node
        else:
            self.runs["below"][last] = node

    def grow(self, count: int) -> None:
        """Add ``count`` free runs."""
        first = len(self.runs)
        runs = make_records(first + count, MAP_RUN)
        runs[:first] = self.runs
        runs["below"][first:] = np.arange(first + 1, first + count + 1)
        runs["below"][-1] = self.free
        self.runs, self.free = runs, first

    def map(self, row: int, event: int, start: int, stop: int, owner: int) -> None:
        """Enter a map event; those that it covers are dropped as far as they are the newest."""
        self._drop_newest(row, start, stop)
        node = int(self.heads[row])
        if node == END or not _goes_on(self.runs[node], start):
            if self.free == END:
                self.make_room()
            new = self.free
            self.free = int(self.runs["below"][new])
            run = self.runs[new]
            run["start"], run["count"], run["below"] = start, 0, self.heads[row]
            self.heads[row] = node = new
        run = self.runs[node]
        count = int(run["count"])
        run["events"][count], run["stops"][count], run["owners"][count] = event, stop, owner
        run["count"] = count + 1

    def _drop_newest(self, row: int, start: int, stop: int) -> None:
        """Drop the newest events of a row as far as cells [start, stop) cover them."""
        while (node := int(self.heads[row])) != END:
            run = self.runs[node]
            count = int(run["count"])
            while (
                count and start <= _first_cell(run, count - 1) and stop >= run["stops"][count - 1]
            ):
                count -= 1
            if count:
                run["count"] = count
                return
            self.heads[row] = run["below"]
            self._give_back(node)

    def newest_first(self, row: int) -> Iterator[tuple[int, int, int, int]]:
        """(event, start, stop, owner) of the row's map events."""
        node = int(self.heads[row])
        while node != END:
            run = self.runs[node]
            stops, owners = run["stops"].tolist(), run["owners"].tolist()
            events = run["events"].tolist()
            for k in reversed(range(int(run["count"]))):
                yield events[k], _first_cell(run, k), stops[k], owners[k]
            node = int(run["below"])


def _first_cell(run: Any, k: int) -> int:
    """First cell of event number ``k`` of a run."""
    return int(run["stops"][k - 1] if k else run["start"])


def _goes_on(run: Any, start: int) -> bool:
    """Whether a run has room for an event that begins at cell ``start``."""
    count = int(run["count"])
    return count < RUN_EVENTS and int(run["stops"][count - 1]) == start


def _tenancies(rows: int) -> tuple[Ints, Ints, Ints]:
    """``ran``, ``ran_count`` and ``released`` of rows that nobody ran in."""
    released = np.full((rows, 2), NEVER, dtype=np.int64)
    released[:, 1] = NOBODY
    return np.zeros((rows, RAN, 2), dtype=np.int64), np.zeros(rows, dtype=np.int64), released
