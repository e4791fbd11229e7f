"""Columns and tables: the events of one kind in a segment, one flat array per field.

The arrays of each field type are listed in kvcanary_cli.trace.segment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvcanary_cli.trace.schema import FieldType

NULL_CODE = -1


@dataclass(slots=True)
class Column:
    """One field of one kind's table; see the module for the arrays of each type.

    ``limits`` are numbers that all ``values`` are known to lie between, None = nobody has looked.
    """

    type: FieldType
    values: NDArray[Any]
    offsets: NDArray[np.int64] | None = None
    present: NDArray[np.bool_] | None = None
    limits: tuple[int, int] | None = None

    def has(self, row: int) -> bool:
        return self.present is None or bool(self.present[row])

    def span(self, row: int) -> NDArray[Any]:
        """The values of a list field's row, without copying."""
        assert self.offsets is not None
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    def slice(self, start: int, stop: int) -> Column:
        present = None if self.present is None else self.present[start:stop]
        if self.offsets is None:
            return Column(self.type, self.values[start:stop], None, present, self.limits)
        offsets = self.offsets[start : stop + 1]
        first, last = (int(offsets[0]), int(offsets[-1])) if len(offsets) else (0, 0)
        return Column(self.type, self.values[first:last], offsets - first, present, self.limits)


@dataclass(slots=True)
class Table:
    """All events of one kind in a segment, column by column."""

    rows: int
    columns: dict[str, Column]

    def get_ints(self, name: str, row: int) -> NDArray[np.int64] | None:
        """List field ``name`` of ``row`` as int64, or None if that event lacks it."""
        column = self.columns.get(name)
        if column is None or not column.has(row):
            return None
        return column.span(row).astype(np.int64, copy=False)

    def get_int(self, name: str, row: int) -> int | None:
        column = self.columns.get(name)
        if column is None or not column.has(row):
            return None
        return int(column.values[row])

    def get_bool(self, name: str, row: int) -> bool | None:
        column = self.columns.get(name)
        if column is None or not column.has(row):
            return None
        return bool(column.values[row])

    def get_code(self, name: str, row: int) -> int | None:
        """String code of a STR or JSON field, or None if that event lacks it or it is null."""
        column = self.columns.get(name)
        if column is None or not column.has(row):
            return None
        code = int(column.values[row])
        return None if code == NULL_CODE else code
