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

    def show(self, rows: Sequence[int], lengths: Sequence[int]) -> list[Event]:
        """The ``map`` events after which the trace knows the first cells of ``rows``."""
        if not len(rows):
            return []
        self._forget_if_due()
        return _map_events(self._diff.changes(rows, lengths))

    def tell(self, session: Session, rows: Sequence[int], lengths: Sequence[int]) -> None:
        """Emit what ``show`` gives, without waiting for the device if ``session`` need not."""
        if not session.asynchronous:
            session.emit_all(self.show(rows, lengths))
        elif len(rows):
            self._forget_if_due()
            session.defer(self._events_of, *self._diff.launch(rows, lengths), fresh=True)

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

    def row(self, row: int, length: int) -> Ints:
        """The first cells of a row as they are now; waits for the device."""
        return to_host(self._table[row, :length])

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
        self._diffs: dict[int, RowDiff] = {}

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
        diff = self._diffs.get(id(lut))
        if diff is None:
            self._diffs.clear()
            row = lut[: len(self._told)].reshape(1, -1)
            diff = self._diffs[id(lut)] = RowDiff(row, capacity=len(self._told))
        session.defer(self._events_of, *diff.launch([0], [len(self._told)]), fresh=True)

    def _events_of(self, entries: Ints, count: Ints) -> list[Event]:
        changed = entries[: int(count[0])]
        return self._event(changed[:, 1].copy(), changed[:, 2].copy())

    def _event(self, full: Ints, swa: Ints) -> list[Event]:
        if not len(full):
            return []
        self._told[full] = swa
        return [{"kind": "lut", "full": full, "swa": swa}]

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

    def show(self, req: str, prompt: Sequence[int], output: Sequence[int]) -> list[Event]:
        """The ``history`` event after which all tokens of ``req`` are told, if there are new."""
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
        """See ``State``: histories are told again when they are next shown."""
        self._told.clear()
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
