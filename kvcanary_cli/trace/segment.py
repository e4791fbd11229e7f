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

from kvcanary_cli.trace.columns import NULL_CODE, Column, Table
from kvcanary_cli.trace.fields import FieldError, check_value, describe
from kvcanary_cli.trace.schema import COMMON_FIELDS, KINDS, MAX_KINDS, Field, FieldType

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

__all__ = [
    "EXTRA",
    "NULL_CODE",
    "Column",
    "FieldError",
    "Segment",
    "SegmentBuilder",
    "Table",
]

EXTRA = "*"
#: A segment ends at either bound: about 8 MiB of values, or this many events.
MAX_SEGMENT_VALUES = 1 << 20
MAX_SEGMENT_EVENTS = 200_000


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
        prepared: What ``TraceReader.prepare`` made of it.
    """

    strings: list[str]
    kind_names: list[str]
    kind: NDArray[np.int16]
    index: NDArray[np.int64]
    row: NDArray[np.int32]
    tables: dict[str, Table]
    prepared: object = None

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
                out[name] = self.value(column, row)
        return out

    def value(self, column: Column, row: int) -> Any:
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
        # A view of the builder's own memory: the builder drops its arrays right after.
        values = np.frombuffer(self.values, dtype=dtype[self.values.typecode])
        offsets = None if self.offsets is None else np.frombuffer(self.offsets, dtype=np.int64)
        present = np.frombuffer(self.present, dtype=np.bool_) if self.any_absent else None
        return Column(self.type, values, offsets, present)


@dataclass(slots=True)
class _KindBuilder:
    """The growing table of one kind."""

    code: int
    known: dict[str, Field]
    required: frozenset[str]
    rows: int = 0
    columns: dict[str, _ColumnBuilder] = field(default_factory=dict)

    @classmethod
    def new(cls, name: str, code: int) -> _KindBuilder:
        spec = KINDS.get(name)
        fields = [*COMMON_FIELDS, *(spec.fields if spec is not None else ())]
        return cls(
            code, {f.name: f for f in fields}, frozenset(f.name for f in fields if f.required)
        )

    def column(self, name: str, field_type: FieldType) -> _ColumnBuilder:
        column = self.columns.get(name)
        if column is None:
            column = self.columns[name] = _ColumnBuilder.new(field_type, self.rows)
        column.present.append(1)
        return column


def _check_required(
    name: str, kind: _KindBuilder, event: dict[str, Any], *, tokens_absent: bool
) -> None:
    for f in kind.known.values():
        excused = tokens_absent and f.name == "input_ids"
        if f.required and f.name not in event and not excused:
            raise FieldError(f"'{name}' lacks the field '{f.name}' ({f.type.value})", f.name)


class SegmentBuilder:
    """Collects events into the columns of one segment.

    Types are checked here (``FieldError``); ranges and order are the validator's.
    """

    def __init__(self) -> None:
        self._strings: list[str] = []
        self._codes: dict[str, int] = {}
        self._kinds: dict[str, _KindBuilder] = {}
        self._kind = array("h")
        self._index = array("q")
        self._row = array("i")
        #: Values held so far, list items counted one by one: what callers bound a segment by.
        self.value_count = 0

    def __len__(self) -> int:
        return len(self._kind)

    @property
    def full(self) -> bool:
        """Whether it has reached the size of a segment and should be finished."""
        return (
            len(self._kind) >= MAX_SEGMENT_EVENTS
            or self.value_count >= MAX_SEGMENT_VALUES
            or len(self._kinds) >= MAX_KINDS
        )

    def intern(self, text: str) -> int:
        code = self._codes.get(text)
        if code is None:
            code = self._codes[text] = len(self._strings)
            self._strings.append(text)
        return code

    def append(self, event: dict[str, Any], *, tokens_absent: bool = False) -> None:
        """Add one event, given as the dictionary of its JSONL line.

        Args:
            event: ``kind``, ``i`` and the kind's fields. A list of integers may also be an
                ``array("q")`` or a one-dimensional integer numpy array.
            tokens_absent: Whether the header says that no tokens were recorded, in which case
                ``input_ids`` may be missing.

        Raises:
            FieldError: A field is missing or of the wrong type. Nothing was added then.
        """
        name, index = event.get("kind"), event.get("i")
        if not isinstance(name, str):
            raise FieldError(f"'kind' must be a string, found {describe(name)}", "kind")
        if type(index) is not int or not -(1 << 63) <= index < 1 << 63:
            raise FieldError(f"'i' must be a 64-bit integer, found {describe(index)}", "i")
        kind = self._kinds.get(name) or _KindBuilder.new(name, len(self._kinds))
        if not kind.required <= event.keys():
            _check_required(name, kind, event, tokens_absent=tokens_absent)
        checked = []
        extra = {}
        for key, value in event.items():
            known = kind.known.get(key)
            if known is not None:
                checked.append((known, check_value(known, value)))
            elif key not in ("kind", "i"):
                extra[key] = value

        self._kinds[name] = kind
        for f, value in checked:
            self._put(kind.column(f.name, f.type), value)
        if extra:
            self._put(kind.column(EXTRA, FieldType.JSON), extra)
        kind.rows += 1
        if len(checked) + bool(extra) < len(kind.columns):
            for column in kind.columns.values():
                if len(column.present) < kind.rows:
                    column.skip()
        self._kind.append(kind.code)
        self._index.append(index)
        self._row.append(kind.rows - 1)

    def _put(self, column: _ColumnBuilder, value: Any) -> None:
        kind, values, offsets = column.type, column.values, column.offsets
        if offsets is None:
            if kind is FieldType.STR:
                value = self.intern(value)
            elif kind is FieldType.JSON:
                value = self.intern(json.dumps(value, ensure_ascii=False))
            values.append(value)
            self.value_count += 1
            return
        if kind is FieldType.STRS:
            value = [NULL_CODE if v is None else self.intern(v) for v in value]
        values.extend(value)
        offsets.append(len(values))
        self.value_count += len(value)

    def finish(self) -> Segment:
        """The collected events as a segment; the builder is empty afterwards."""
        tables = {}
        for name, kind in self._kinds.items():
            order = [key for key in (*kind.known, EXTRA) if key in kind.columns]
            tables[name] = Table(kind.rows, {key: kind.columns[key].finish() for key in order})
        segment = Segment(
            self._strings,
            list(self._kinds),
            np.frombuffer(self._kind, dtype=np.int16),
            np.frombuffer(self._index, dtype=np.int64),
            np.frombuffer(self._row, dtype=np.int32),
            tables,
        )
        self.__init__()  # type: ignore[misc]
        return segment
