"""What the trace has said about tables and histories, so that only changes are told.

The comparison runs where the tables are (``diffs``), and only what changed comes to the host.
``show`` waits for it. ``tell`` does not, in a session whose copies are asynchronous: the events are
made when their copies are there, in the place where they belong.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from kvcanary_cli.record.diffs import RowDiff, to_cells
from kvcanary_cli.record.session import StepIncompleteError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kvcanary_cli.record.diffs import Rows
    from kvcanary_cli.record.session import Session
    from kvcanary_cli.record.tokens import TokenCoder

    Ints = NDArray[np.int64]
    Event = dict[str, Any]

to_host = to_cells


class TableShadow:
    """The request table, [rows, row_len]."""

    def __init__(self, table: Any) -> None:
        """Nothing has been told.

        Args:
            table: The engine's live table, a tensor or array.
        """
        self._table = table
        self._diff = RowDiff(table)
        self._forget = False

    def show(self, rows: Rows, lengths: Rows) -> list[Event]:
        """The ``map`` events after which the trace knows the first cells of ``rows``; waits."""
        if not len(rows):
            return []
        self._forget_if_due()
        return _map_events(self._diff.changes(rows, lengths))

    def tell(self, session: Session, rows: Rows, lengths: Rows, longest: int | None = None) -> None:
        """Emit what ``show`` gives, without waiting for the device if ``session`` need not.

        Args:
            session: Takes the events.
            rows, lengths: On the host, or tensors that nobody looks at here.
            longest: See ``RowDiff.launch``.
        """
        if not session.asynchronous or not self._diff.can_launch:
            session.emit_all(self.show(rows, lengths))
        elif len(rows):
            self._forget_if_due()
            launched = self._diff.launch(rows, lengths, longest)
            session.defer(self._events_of, *launched, fresh=True)

    def _events_of(self, entries: Ints, count: Ints) -> list[Event]:
        found = int(count[0])
        if found > len(entries):
            # A launch that is under way already may fall short once more, and is dropped as well.
            self._diff.grow(found)
            raise StepIncompleteError(f"{found} table cells changed, expected {len(entries)}")
        return _map_events(entries[:found])

    def _forget_if_due(self) -> None:
        if self._forget:
            self._forget = False
            self._diff.forget()

    def cells(self, row: int, start: int, stop: int) -> Any:
        """Some cells of a row: the engine's own memory, to be given to ``Session.defer``."""
        return self._table[row, start:stop]

    def retell(self, *, gap: bool) -> list[Event]:
        """See ``State``: rows are told again when they are next shown.

        The shadow is changed only by who launches the diffs, for it may be on a device.
        """
        self._forget = True
        return []


class LutShadow:
    """The full-to-SWA table; a trace begins with zeros."""

    def __init__(self, slots: int) -> None:
        self._told = np.zeros(slots, dtype=np.int64)
        self._diff: tuple[Any, RowDiff] | None = None
        self._forget = False

    def watch(self, lut: Any) -> None:
        """``lut`` is the live table from now on: what ``tell`` needs is made ready."""
        row = lut[: len(self._told)].reshape(1, -1)
        self._diff = lut, RowDiff(row, capacity=len(self._told))

    def show(self, lut: Any) -> list[Event]:
        """The ``lut`` event after which the trace knows ``lut``, if it changed."""
        now = to_host(lut[: len(self._told)])
        full = np.flatnonzero(now != self._told)
        return self._event(full, now[full])

    def tell(self, session: Session, lut: Any) -> None:
        """Emit what ``show`` gives, without waiting for the device if ``session`` need not."""
        if not session.asynchronous:
            session.emit_all(self.show(lut))
            return
        if self._diff is None or self._diff[0] is not lut:
            self.watch(lut)
        assert self._diff is not None
        if self._forget:
            self._forget = False
            # No slot has this number: all cells are told.
            self._diff[1].forget(-1)
        launched = self._diff[1].launch([0], [len(self._told)])
        session.defer(self._events_of, *launched, fresh=True)

    def _events_of(self, entries: Ints, count: Ints) -> list[Event]:
        changed = entries[: int(count[0])]
        return self._event(changed[:, 1].copy(), changed[:, 2].copy())

    def _event(self, full: Ints, swa: Ints) -> list[Event]:
        if not len(full):
            return []
        self._told[full] = swa
        return [{"kind": "lut", "full": full, "swa": swa}]

    def lost(self) -> None:
        """See ``State``: changes were missed, so that the whole table is told anew."""
        self._forget = True

    def retell(self, *, gap: bool) -> list[Event]:
        """See ``State``."""
        told = self._told
        full = np.arange(len(told)) if gap else np.flatnonzero(told)
        return [{"kind": "lut", "full": full, "swa": told[full].copy()}] if len(full) else []


class HistoryShadow:
    """How many true tokens of each request the trace has told."""

    def __init__(self, tokens: TokenCoder) -> None:
        self._tokens = tokens
        self._told: dict[str, int] = {}
        self._forget = False

    def show(self, req: str, prompt: Sequence[int], output: Sequence[int]) -> list[Event]:
        """The ``history`` event after which all tokens of ``req`` are told, if there are new."""
        if self._forget:
            self._forget = False
            self._told.clear()
        told = self._told.get(req, 0)
        total = len(prompt) + len(output)
        if total <= told or self._tokens.mode == "absent":
            return []
        self._told[req] = total
        fresh = [*prompt[told:], *output[max(0, told - len(prompt)) :]]
        ids = self._tokens.encode(np.array(fresh, dtype=np.int64))
        return [{"kind": "history", "req": req, "start": told, "ids": ids}]

    def forget(self, req: str) -> None:
        self._told.pop(req, None)

    def retell(self, *, gap: bool) -> list[Event]:
        """See ``State``: histories are told again when they are next shown.

        By whoever shows them: the session's thread may have found the gap.
        """
        self._forget = True
        return []


def _map_events(changes: Ints) -> list[Event]:
    """``map`` events of [n, 3] changes, one for each run of cells."""
    if not len(changes):
        return []
    row, cell, value = changes[:, 0], changes[:, 1], changes[:, 2]
    edges = np.flatnonzero((np.diff(row) != 0) | (np.diff(cell) != 1)) + 1
    bounds = [0, *edges.tolist(), len(changes)]
    return [
        {
            "kind": "map",
            "row": int(row[first]),
            "start": int(cell[first]),
            "slots": value[first:stop].copy(),
        }
        for first, stop in pairwise(bounds)
    ]
