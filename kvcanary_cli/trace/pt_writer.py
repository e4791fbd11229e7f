"""Write a ``.pt`` trace: one dictionary of flat tensors, saved once.

Everything is held until the end, in the narrowest integer type that fits; a recording that
outgrows memory belongs in a ``.kvtrace`` folder, which is a row of such files.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from kvcanary_cli.trace import pt_layout as layout
from kvcanary_cli.trace.columns import NULL_CODE
from kvcanary_cli.trace.schema import COMMON_FIELDS, FORMAT, KINDS, VERSIONS, FieldType
from kvcanary_cli.trace.segment import EXTRA
from kvcanary_cli.trace.writer import TraceWriter, move_into_place, remove, temporary_name

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from kvcanary_cli.trace.columns import Column, Table
    from kvcanary_cli.trace.header import TraceHeader
    from kvcanary_cli.trace.segment import Segment

_CODED = (FieldType.STR, FieldType.STRS, FieldType.JSON)
_NARROW = (np.int8, np.int16, np.int32, np.int64)


def narrow(values: NDArray[Any]) -> NDArray[Any]:
    """A copy in the smallest signed integer type that holds all values."""
    low, high = (int(values.min()), int(values.max())) if len(values) else (0, 0)
    for dtype in _NARROW:
        info = np.iinfo(dtype)
        if info.min <= low and high <= info.max:
            return values.astype(dtype)
    raise AssertionError("int64 holds every value")


@dataclass(slots=True)
class _Column:
    type: FieldType
    values: list[NDArray[Any]] = field(default_factory=list)
    lengths: list[NDArray[Any]] = field(default_factory=list)
    present: list[NDArray[np.bool_]] = field(default_factory=list)
    rows: int = 0

    def append(self, column: Column, rows: int, codes: NDArray[np.int32]) -> None:
        values = column.values
        if self.type in _CODED:
            # codes[-1] is the null code, so -1 maps to itself.
            values = codes[values]
        self.values.append(narrow(values))
        if column.offsets is not None:
            self.lengths.append(narrow(np.diff(column.offsets)))
        have = np.ones(rows, dtype=np.bool_) if column.present is None else column.present
        self.present.append(have)
        self.rows += rows

    def skip(self, rows: int) -> None:
        if rows:
            if self.type in (FieldType.INTS, FieldType.STRS):
                self.lengths.append(np.zeros(rows, dtype=np.int8))
            else:
                self.values.append(np.zeros(rows, dtype=np.int8))
            self.present.append(np.zeros(rows, dtype=np.bool_))
            self.rows += rows


class PtPacker:
    """Gathers segments into the dictionary of a ``.pt`` trace."""

    def __init__(self, header: TraceHeader) -> None:
        self._header = header
        self._strings: dict[str, int] = {}
        self._kinds: dict[str, int] = {}
        self._rows: dict[str, int] = {}
        self._columns: dict[str, dict[str, _Column]] = {}
        self._kind: list[NDArray[Any]] = []
        self._index: list[NDArray[Any]] = []
        self.events = 0
        #: Values held so far, list items counted one by one.
        self.value_count = 0

    def append(self, segment: Segment) -> None:
        codes = np.full(len(segment.strings) + 1, NULL_CODE, dtype=np.int32)
        for code, text in enumerate(segment.strings):
            codes[code] = self._strings.setdefault(text, len(self._strings))
        kinds = np.zeros(len(segment.kind_names), dtype=np.int32)
        # A segment may name kinds that none of its events has: they get no table.
        for code in np.unique(segment.kind).tolist():
            name = segment.kind_names[code]
            kinds[code] = self._kinds.setdefault(name, len(self._kinds))
        self._kind.append(narrow(kinds[segment.kind]))
        self._index.append(narrow(segment.index))
        for name, table in segment.tables.items():
            if table.rows:
                self._append_table(name, table, codes)
        self.events += len(segment)

    def _append_table(self, name: str, table: Table, codes: NDArray[np.int32]) -> None:
        rows = self._rows.get(name, 0)
        columns = self._columns.setdefault(name, {})
        for field_name, column in table.columns.items():
            mine = columns.get(field_name)
            if mine is None:
                mine = columns[field_name] = _Column(column.type)
                mine.skip(rows)
            mine.append(column, table.rows, codes)
            self.value_count += len(column.values)
        self._rows[name] = rows + table.rows
        for mine in columns.values():
            mine.skip(rows + table.rows - mine.rows)

    def arrays(self) -> dict[str, Any]:
        """The dictionary, tensors as numpy arrays."""
        texts = [text.encode("utf-8", "surrogatepass") for text in self._strings]
        ends = np.cumsum([0, *map(len, texts)], dtype=np.int64)
        out: dict[str, Any] = {
            layout.FORMAT_KEY: FORMAT,
            layout.VERSION_KEY: VERSIONS[-1],
            layout.LAYOUT_KEY: layout.LAYOUT,
            layout.EVENTS_KEY: self.events,
            layout.HEADER_KEY: json.dumps(self._header.raw),
            layout.TABLES_KEY: json.dumps(self._tables()),
            layout.STRINGS_KEY: np.frombuffer(b"".join(texts), dtype=np.uint8),
            layout.STRING_OFFSETS_KEY: narrow(ends),
            layout.KIND_KEY: _join(self._kind),
            layout.INDEX_KEY: _join(self._index),
        }
        for name, columns in self._columns.items():
            for field_name in self._order(name):
                column = columns[field_name]
                out[layout.column_key(name, field_name)] = _join(column.values)
                if column.lengths:
                    lengths = np.concatenate([np.zeros(1, np.int64), *column.lengths])
                    out[layout.offsets_key(name, field_name)] = narrow(np.cumsum(lengths))
                present = np.concatenate(column.present)
                if not present.all():
                    out[layout.present_key(name, field_name)] = present
        return out

    def _order(self, name: str) -> list[str]:
        spec = KINDS.get(name)
        known = [f.name for f in (*COMMON_FIELDS, *(spec.fields if spec is not None else ()))]
        return [f for f in (*known, EXTRA) if f in self._columns[name]]

    def _tables(self) -> list[dict[str, Any]]:
        return [
            {
                "kind": name,
                "rows": self._rows[name],
                "columns": {f: self._columns[name][f].type.name for f in self._order(name)},
            }
            for name in self._kinds
        ]


def _join(parts: list[NDArray[Any]]) -> NDArray[Any]:
    """Concatenate narrow arrays; the result has the widest of their types."""
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int8)


def save(arrays: dict[str, Any], path: Path) -> None:
    """``torch.save`` the dictionary and make it durable."""
    import torch

    # torch.from_numpy wants writable memory; frombuffer views are not.
    state = {
        key: torch.from_numpy(value if value.flags.writeable else value.copy())
        if isinstance(value, np.ndarray)
        else value
        for key, value in arrays.items()
    }
    with path.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())


class PtWriter(TraceWriter):
    """Writes one ``.pt`` file at the end."""

    def __init__(self, target: Path, header: TraceHeader) -> None:
        super().__init__(header)
        self._target = target
        self._temporary = temporary_name(target)
        self._packer = PtPacker(header)

    def _write(self, segment: Segment) -> None:
        self._packer.append(segment)

    def _finish(self) -> None:
        save(self._packer.arrays(), self._temporary)
        move_into_place(self._temporary, self._target)

    def _abandon(self) -> None:
        remove(self._temporary)
