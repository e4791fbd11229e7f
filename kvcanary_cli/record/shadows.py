"""What the trace has said about tables and histories, so that only changes are told.

The comparison runs where the tables are. For tables on a GPU it is done with torch there and waits
for the device; a kernel that gathers the changes without waiting is not part of this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kvcanary_cli.record.tokens import TokenCoder

    Ints = NDArray[np.int64]
    Event = dict[str, Any]

_UNTOLD = -(1 << 31)


def to_host(values: Any) -> Ints:
    """Integers of a tensor, array or sequence as a one-dimensional int64 copy."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    return np.array(values, dtype=np.int64).reshape(-1)


class TableShadow:
    """The request table, [rows, row_len]."""

    def __init__(self, table: Any) -> None:
        """Nothing has been told.

        Args:
            table: The engine's live table, a tensor or array.
        """
        self._table = table
        self._told = np.full(tuple(table.shape), _UNTOLD, dtype=np.int32)

    def show(self, rows: Sequence[int], lengths: Sequence[int]) -> list[Event]:
        """The ``map`` events after which the trace knows the first cells of ``rows``."""
        if not len(rows):
            return []
        width = min(max(lengths), self._told.shape[1])
        index = np.asarray(rows, dtype=np.int64)
        now = self._cells(index, width)
        told = self._told[index, :width]
        wanted = np.arange(width) < np.asarray(lengths)[:, None]
        changed = (now != told) & wanted
        if not changed.any():
            return []
        events: list[Event] = []
        at_row, at_cell = np.nonzero(changed)
        starts = np.flatnonzero(
            (np.diff(at_row, prepend=-1) != 0) | (np.diff(at_cell, prepend=-2) != 1)
        )
        for first, stop in zip(starts.tolist(), [*starts[1:].tolist(), len(at_row)], strict=True):
            b, cell = int(at_row[first]), int(at_cell[first])
            slots = now[b, cell : cell + stop - first].astype(np.int64)
            events.append({"kind": "map", "row": int(index[b]), "start": cell, "slots": slots})
            self._told[index[b], cell : cell + len(slots)] = slots
        return events

    def _cells(self, rows: Ints, width: int) -> NDArray[np.int32]:
        table = self._table
        if hasattr(table, "detach"):
            if table.device.type == "cpu":
                table = table.numpy()
            else:
                import torch

                index = torch.from_numpy(rows).to(table.device)
                on_host: NDArray[np.int32] = table[index, :width].cpu().numpy()
                return on_host
        cells: NDArray[np.int32] = table[rows, :width]
        return cells

    def row(self, row: int, length: int) -> Ints:
        """The first cells of a row as they are now."""
        cells: Ints = self._cells(np.array([row]), length)[0].astype(np.int64)
        return cells

    def retell(self, *, gap: bool) -> list[Event]:
        """See ``State``: rows are told again when they are next shown."""
        self._told[:] = _UNTOLD
        return []


class LutShadow:
    """The full-to-SWA table; a trace begins with zeros."""

    def __init__(self, slots: int) -> None:
        self._told = np.zeros(slots, dtype=np.int64)

    def show(self, lut: Any) -> list[Event]:
        """The ``lut`` event after which the trace knows ``lut``, if it changed."""
        on_host = lut.detach().cpu().numpy() if hasattr(lut, "detach") else np.asarray(lut)
        now = on_host[: len(self._told)]
        full = np.flatnonzero(now != self._told)
        if not len(full):
            return []
        swa = now[full].astype(np.int64)
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
