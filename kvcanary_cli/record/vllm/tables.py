"""The requests' block tables as the trace has told them, so that only changes are written.

A request has a table row of its own from its first forward to its end, whatever place it has in
the engine's batch meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Event = dict[str, Any]

_UNTOLD = -1
#: In the place of a block that was given back: the padding slot, in all its cells.
_GONE = -2


class BlockTableShadow:
    """Block tables by request row, [rows, blocks of a row]."""

    def __init__(self, rows: int, blocks_per_row: int, block_size: int) -> None:
        """Nothing has been told.

        Args:
            rows: Rows, the padding row included.
            blocks_per_row: Blocks that a row has room for.
            block_size: Slots of a block.
        """
        self._size = block_size
        self._told = np.full((rows, blocks_per_row), _UNTOLD, dtype=np.int64)

    def show(self, row: int, blocks: Ints, gone: int = 0) -> list[Event]:
        """The ``map`` events after which the trace knows that ``row`` begins with ``blocks``.

        Args:
            row: The row.
            blocks: Its blocks.
            gone: How many of the first ones were given back, and are read by nobody any more.
        """
        if gone:
            blocks = blocks.copy()
            blocks[:gone] = _GONE
        told = self._told[row, : len(blocks)]
        changed = np.flatnonzero(told != blocks)
        if not len(changed):
            return []
        told[changed] = blocks[changed]
        events: list[Event] = []
        for run in np.split(changed, np.flatnonzero(np.diff(changed) != 1) + 1):
            slots = blocks[run][:, None] * self._size + np.arange(self._size)
            slots[blocks[run] == _GONE] = 0
            events.append(
                {
                    "kind": "map",
                    "row": row,
                    "start": int(run[0]) * self._size,
                    "slots": slots.reshape(-1),
                }
            )
        return events

    def forget(self, row: int) -> None:
        """``row`` goes to another request, to whom all its cells are told."""
        self._told[row] = _UNTOLD

    def retell(self, *, gap: bool) -> list[Event]:
        """See ``State``: rows are told again when they are next shown."""
        self._told[:] = _UNTOLD
        return []
