"""Requests as small integers, and what compiled code needs to know of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvcanary_cli.backends.cpu.event_state import Request

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

FIELDS = len(Request)
NONE = -1
_FIRST_ROOM = 64


class Requests:
    """All names that the trace used for requests and other owners.

    Attributes:
        cells: [room, fields] int64, columns as in ``Request``; it is replaced when it grows.
    """

    def __init__(self) -> None:
        self.cells = _room(_FIRST_ROOM)
        self._codes: dict[str, int] = {}
        self.names: list[str] = []

    def code(self, name: str) -> int:
        """Number of ``name``, given out when it is first met."""
        code = self._codes.get(name)
        if code is None:
            code = self._codes[name] = len(self.names)
            self.names.append(name)
            if code == len(self.cells):
                self.cells = np.concatenate([self.cells, _room(len(self.cells))])
        return code

    def end(self, name: str) -> None:
        """The request ended."""
        code = self.code(name)
        self.cells[code, Request.GONE] = 1

    def begin_again(self, name: str) -> None:
        """It gets slots: if it ended, this is another one of that name."""
        code = self.code(name)
        self.cells[code, Request.GONE] = 0

    def find(self, name: str) -> int | None:
        return self._codes.get(name)

    def __len__(self) -> int:
        return len(self.names)


class RowOf:
    """Request to the table row that it last ran in."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        # Requests that have one, in the order in which they got it.
        self._known: dict[int, None] = {}

    def __setitem__(self, req: str, row: int) -> None:
        code = self._requests.code(req)
        self._requests.cells[code, Request.TABLE_ROW] = row
        self._known[code] = None

    def get(self, req: str) -> int | None:
        code = self._requests.find(req)
        if code is None:
            return None
        row = int(self._requests.cells[code, Request.TABLE_ROW])
        return None if row == NONE else row

    def items(self) -> Iterator[tuple[str, int]]:
        for code in self._known:
            yield self._requests.names[code], int(self._requests.cells[code, Request.TABLE_ROW])


def _room(rows: int) -> NDArray[np.int64]:
    cells = np.zeros((rows, FIELDS), dtype=np.int64)
    cells[:, [Request.HISTORY_ROW, Request.TABLE_ROW, Request.LEDGER_CODE, Request.STORE_AT]] = NONE
    return cells
