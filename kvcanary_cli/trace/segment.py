"""A segment: a run of events as flat arrays, and events as views made on demand.

Every event kind has a table with one column per field; ``Segment.kind`` and ``Segment.row`` say
for the k-th event which table and which row of it. Strings are interned per segment.

| column | arrays |
|---|---|
| INT | ``values`` [m] int64 |
| INTS | ``offsets`` [m + 1] int64, ``values`` [offsets[m]] int64 |
| STR, JSON | ``values`` [m] int32 codes into ``Segment.strings``; -1 = null (JSON: its text) |
| STRS | ``offsets`` [m + 1] int64, ``values`` codes, -1 = null |
| BOOL | ``values`` [m] int8 |

An optional field that some event lacks has ``present`` [m] bool; None means that all have it.
Fields that the schema does not know are one JSON object per event in the column ``EXTRA``.
"""

from __future__ import annotations

import json
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from kvcanary_cli.trace.schema import COMMON_FIELDS, KINDS, Field, FieldType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

EXTRA = "*"
NULL_CODE = -1
_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1


@dataclass(slots=True)
class Column:
    """One field of one kind's table; see the module for the arrays of each type."""

    type: FieldType
    values: NDArray[Any]
    offsets: NDArray[np.int64] | None = None
    present: NDArray[np.bool_] | None = None

    def has(self, row: int) -> bool:
        return self.present is None or bool(self.present[row])

    def span(self, row: int) -> NDArray[Any]:
        """The values of a list field's row, without copying."""
        assert self.offsets is not None
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    def slice(self, start: int, stop: int) -> Column:
        present = None if self.present is None else self.present[start:stop]
        if self.offsets is None:
            return Column(self.type, self.values[start:stop], None, present)
        offsets = self.offsets[start : stop + 1]
        first, last = (int(offsets[0]), int(offsets[-1])) if len(offsets) else (0, 0)
        return Column(self.type, self.values[first:last], offsets - first, present)


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


@dataclass(slots=True)
class Segment:
    """A run of events in trace order.

    Attributes:
        strings: Interned strings; codes index it.
        kind_names: Names that ``kind`` indexes.
        kind: [n] int16.
        index: [n] int64, the events' ``i``.
        row: [n] int32, row in ``tables[kind_names[kind]]``; grows with n for each kind.
        tables: Kind name to table.
    """

    strings: list[str]
    kind_names: list[str]
    kind: NDArray[np.int16]
    index: NDArray[np.int64]
    row: NDArray[np.int32]
    tables: dict[str, Table]

    def __len__(self) -> int:
        return len(self.kind)

    def kind_of(self, k: int) -> str:
        return self.kind_names[int(self.kind[k])]

    def text(self, kind: str, name: str, row: int) -> str | None:
        """STR field as text, or None if absent or null."""
        code = self.tables[kind].get_code(name, row)
        return None if code is None else self.strings[code]

    def json(self, kind: str, name: str, row: int) -> Any:
        """JSON field as Python value, or None if absent."""
        code = self.tables[kind].get_code(name, row)
        return None if code is None else json.loads(self.strings[code])

    def event(self, k: int) -> dict[str, Any]:
        """The k-th event as the dictionary that a JSONL line holds."""
        kind = self.kind_of(k)
        row = int(self.row[k])
        table = self.tables[kind]
        out: dict[str, Any] = {"kind": kind, "i": int(self.index[k])}
        for name, column in table.columns.items():
            if not column.has(row):
                continue
            if name == EXTRA:
                out.update(json.loads(self.strings[int(column.values[row])]))
            else:
                out[name] = self._value(column, row)
        return out

    def _value(self, column: Column, row: int) -> Any:
        match column.type:
            case FieldType.INT:
                return int(column.values[row])
            case FieldType.BOOL:
                return bool(column.values[row])
            case FieldType.INTS:
                return column.span(row).tolist()
            case FieldType.STRS:
                return [self._string(code) for code in column.span(row).tolist()]
            case FieldType.STR:
                return self._string(int(column.values[row]))
            case FieldType.JSON:
                return json.loads(self.strings[int(column.values[row])])

    def _string(self, code: int) -> str | None:
        return None if code == NULL_CODE else self.strings[code]

    def events(self) -> Iterator[dict[str, Any]]:
        for k in range(len(self)):
            yield self.event(k)

    def slice(self, start: int, stop: int) -> Segment:
        """Events [start, stop) as a segment over the same strings; arrays are views."""
        kind, row = self.kind[start:stop], self.row[start:stop].copy()
        tables = {}
        for code, name in enumerate(self.kind_names):
            mine = kind == code
            count = int(mine.sum())
            if not count:
                continue
            first = int(row[mine][0])
            tables[name] = Table(
                count,
                {
                    field_name: column.slice(first, first + count)
                    for field_name, column in self.tables[name].columns.items()
                },
            )
            row[mine] -= first
        return Segment(self.strings, self.kind_names, kind, self.index[start:stop], row, tables)


class FieldError(ValueError):
    """A field of an event does not fit the schema; ``args[0]`` says which and how."""


@dataclass(slots=True)
class _ColumnBuilder:
    type: FieldType
    values: array[int]
    offsets: array[int] | None
    present: array[int] = field(default_factory=lambda: array("b"))
    any_absent: bool = False

    @classmethod
    def new(cls, field_type: FieldType, absent_rows: int) -> _ColumnBuilder:
        code = {FieldType.INT: "q", FieldType.INTS: "q", FieldType.BOOL: "b"}.get(field_type, "i")
        is_list = field_type in (FieldType.INTS, FieldType.STRS)
        builder = cls(field_type, array(code), array("q", [0]) if is_list else None)
        for _ in range(absent_rows):
            builder.skip()
        return builder

    def skip(self) -> None:
        self.any_absent = True
        self.present.append(0)
        if self.offsets is not None:
            self.offsets.append(self.offsets[-1])
        else:
            self.values.append(0)

    def finish(self) -> Column:
        dtype: dict[str, Any] = {"q": np.int64, "i": np.int32, "b": np.int8}
        values = np.array(self.values, dtype=dtype[self.values.typecode])
        offsets = None if self.offsets is None else np.array(self.offsets, dtype=np.int64)
        present = np.array(self.present, dtype=np.bool_) if self.any_absent else None
        return Column(self.type, values, offsets, present)


def _describe(value: Any) -> str:
    text: str = json.dumps(value, default=str)
    return text if len(text) <= 40 else text[:37] + "..."


class SegmentBuilder:
    """Collects events into the columns of one segment.

    Types are checked here (``FieldError``); ranges and order are the validator's.
    """

    def __init__(self) -> None:
        self._strings: list[str] = []
        self._codes: dict[str, int] = {}
        self._kind_names: list[str] = []
        self._kind_codes: dict[str, int] = {}
        self._kind = array("h")
        self._index = array("q")
        self._row = array("i")
        self._rows: dict[str, int] = {}
        self._columns: dict[str, dict[str, _ColumnBuilder]] = {}
        self._put: dict[FieldType, Callable[[_ColumnBuilder, str, Any], None]] = {
            FieldType.INT: self._put_int,
            FieldType.INTS: self._put_ints,
            FieldType.STR: self._put_str,
            FieldType.STRS: self._put_strs,
            FieldType.BOOL: self._put_bool,
            FieldType.JSON: self._put_json,
        }
        self.value_count = 0

    def __len__(self) -> int:
        return len(self._kind)

    def intern(self, text: str) -> int:
        code = self._codes.get(text)
        if code is None:
            code = self._codes[text] = len(self._strings)
            self._strings.append(text)
        return code

    def append(self, event: dict[str, Any], *, tokens_absent: bool = False) -> None:
        """Add one event, given as the dictionary of its JSONL line.

        Args:
            event: ``kind``, ``i`` and the kind's fields.
            tokens_absent: Whether the header says that no tokens were recorded, in which case
                ``input_ids`` may be missing.

        Raises:
            FieldError: A field is missing or of the wrong type. Nothing was added then.
        """
        kind = event.get("kind")
        if not isinstance(kind, str):
            raise FieldError(f"'kind' must be a string, found {_describe(kind)}")
        index = event.get("i")
        if type(index) is not int or not _INT64_MIN <= index <= _INT64_MAX:
            raise FieldError(f"'i' must be an integer, found {_describe(index)}")
        spec = KINDS.get(kind)
        known: dict[str, Field] = {f.name: f for f in COMMON_FIELDS}
        if spec is not None:
            known = {f.name: f for f in (*COMMON_FIELDS, *spec.fields)}
        extra = {k: v for k, v in event.items() if k not in known and k not in ("kind", "i")}
        for f in known.values():
            if f.name in event:
                _check(f, event[f.name])
            elif f.required and not (tokens_absent and f.name == "input_ids"):
                raise FieldError(f"'{kind}' lacks the field '{f.name}' ({f.type.value})")

        rows = self._rows.get(kind, 0)
        columns = self._columns.setdefault(kind, {})
        for f in known.values():
            if f.name in event:
                self._cell(columns, f.name, f.type, rows, event[f.name])
        if extra:
            self._cell(columns, EXTRA, FieldType.JSON, rows, extra)
        for column in columns.values():
            if len(column.present) == rows:
                column.skip()
        if kind not in self._kind_codes:
            self._kind_codes[kind] = len(self._kind_names)
            self._kind_names.append(kind)
        self._kind.append(self._kind_codes[kind])
        self._index.append(index)
        self._row.append(rows)
        self._rows[kind] = rows + 1

    def _cell(
        self, columns: dict[str, _ColumnBuilder], name: str, type_: FieldType, rows: int, value: Any
    ) -> None:
        column = columns.get(name)
        if column is None:
            column = columns[name] = _ColumnBuilder.new(type_, rows)
        self._put[type_](column, name, value)
        column.present.append(1)

    def _put_int(self, column: _ColumnBuilder, name: str, value: Any) -> None:
        column.values.append(value)
        self.value_count += 1

    def _put_ints(self, column: _ColumnBuilder, name: str, value: Any) -> None:
        column.values.extend(value)
        assert column.offsets is not None
        column.offsets.append(len(column.values))
        self.value_count += len(value)

    def _put_str(self, column: _ColumnBuilder, name: str, value: Any) -> None:
        column.values.append(NULL_CODE if value is None else self.intern(value))
        self.value_count += 1

    def _put_strs(self, column: _ColumnBuilder, name: str, value: Any) -> None:
        column.values.extend([NULL_CODE if v is None else self.intern(v) for v in value])
        assert column.offsets is not None
        column.offsets.append(len(column.values))
        self.value_count += len(value)

    def _put_bool(self, column: _ColumnBuilder, name: str, value: Any) -> None:
        column.values.append(int(value))
        self.value_count += 1

    def _put_json(self, column: _ColumnBuilder, name: str, value: Any) -> None:
        column.values.append(self.intern(json.dumps(value, ensure_ascii=False)))
        self.value_count += 1

    def finish(self) -> Segment:
        """The collected events as a segment; the builder is empty afterwards."""
        order = [EXTRA]
        tables = {}
        for kind, columns in self._columns.items():
            spec = KINDS.get(kind)
            names = [f.name for f in COMMON_FIELDS]
            names += [f.name for f in spec.fields] if spec is not None else []
            tables[kind] = Table(
                self._rows[kind],
                {name: columns[name].finish() for name in (*names, *order) if name in columns},
            )
        segment = Segment(
            self._strings,
            self._kind_names,
            np.array(self._kind, dtype=np.int16),
            np.array(self._index, dtype=np.int64),
            np.array(self._row, dtype=np.int32),
            tables,
        )
        self.__init__()  # type: ignore[misc]
        return segment


def _is_int64(value: Any) -> bool:
    return type(value) is int and _INT64_MIN <= value <= _INT64_MAX


def _check(f: Field, value: Any) -> None:
    """Check that ``value`` has the type of field ``f``.

    Raises:
        FieldError: It has not.
    """
    match f.type:
        case FieldType.INT:
            good = _is_int64(value)
        case FieldType.BOOL:
            good = isinstance(value, bool)
        case FieldType.STR:
            good = isinstance(value, str)
        case FieldType.STRS:
            good = isinstance(value, list) and all(v is None or isinstance(v, str) for v in value)
        case FieldType.INTS:
            good = isinstance(value, list)
            if good:
                for k, item in enumerate(value):
                    if not _is_int64(item):
                        raise FieldError(
                            f"'{f.name}'[{k}] must be a 64-bit integer, found {_describe(item)}"
                        )
        case FieldType.JSON:
            good = True
    if not good:
        raise FieldError(f"'{f.name}' must be {f.type.value}, found {_describe(value)}")
