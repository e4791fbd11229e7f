"""Cut one segment out of a stored trace: wide columns, and a string table of its own."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kvcanary_cli.trace.columns import NULL_CODE, Column, Table
from kvcanary_cli.trace.errors import TraceError
from kvcanary_cli.trace.fields import printable
from kvcanary_cli.trace.jsonl import parse_text
from kvcanary_cli.trace.schema import COMMON_FIELDS, KINDS, FieldType
from kvcanary_cli.trace.segment import EXTRA, Segment

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvcanary_cli.trace.pt_reader import StoredTrace

_HINT = "write the trace again with `kvcanary trace convert`"
_CODED = (FieldType.STR, FieldType.STRS, FieldType.JSON)
_WIDE: dict[FieldType, Any] = {
    FieldType.INT: np.int64,
    FieldType.INTS: np.int64,
    FieldType.BOOL: np.int8,
}


@dataclass(slots=True)
class StoredColumn:
    """A column as it lies in the file: any integer width, codes into the file's strings."""

    type: FieldType
    values: NDArray[Any]
    offsets: NDArray[Any] | None
    present: NDArray[np.bool_] | None


@dataclass(slots=True)
class StoredTable:
    """All events of one kind in the file."""

    rows: int
    columns: dict[str, StoredColumn]


class _Strings:
    """The string table of one segment, filled with what its columns name."""

    def __init__(self, trace: StoredTrace) -> None:
        self._trace = trace
        self._codes: dict[int, int] = {NULL_CODE: NULL_CODE}
        self.texts: list[str] = []

    def add(self, text: str) -> int:
        self.texts.append(text)
        return len(self.texts) - 1

    def translate(
        self, codes: NDArray[Any], where: str, *, nulls: bool, as_json: bool
    ) -> NDArray[np.int32]:
        """Codes of the file as codes of the segment.

        Raises:
            TraceError: A code is out of range, or its text is not UTF-8 or not JSON.
        """
        unique, inverse = np.unique(codes, return_inverse=True)
        offsets = self._trace.string_offsets
        low, high = NULL_CODE if nulls else 0, len(offsets) - 2
        if len(unique) and not (low <= int(unique[0]) and int(unique[-1]) <= high):
            wrong = int(unique[0]) if int(unique[0]) < low else int(unique[-1])
            raise TraceError(
                where, f"names string {wrong}, expected {low} to {high} (its strings)", hint=_HINT
            )
        mine = np.array([self._code(c, where) for c in unique.tolist()], dtype=np.int32)
        if as_json:
            for code in mine.tolist():
                parse_text(self.texts[code], where)
        translated: NDArray[np.int32] = mine[inverse.reshape(-1)] if len(mine) else mine
        return translated

    def _code(self, code: int, where: str) -> int:
        known = self._codes.get(code)
        if known is None:
            start, end = (int(x) for x in self._trace.string_offsets[code : code + 2])
            try:
                text = bytes(self._trace.strings[start:end]).decode("utf-8", "surrogatepass")
            except UnicodeDecodeError:
                raise TraceError(where, f"string {code} is not UTF-8", hint=_HINT) from None
            known = self._codes[code] = self.add(text)
        return known


def cut_segment(trace: StoredTrace, start: int, stop: int, cursor: dict[str, int]) -> Segment:
    """Cut events [start, stop) out of a trace.

    Args:
        trace: The stored trace.
        start: First event.
        stop: Behind the last one.
        cursor: Kind to its first row not yet cut; moved on.

    Raises:
        TraceError: A column of these events is inconsistent.
    """
    kind = trace.kind[start:stop].astype(np.int16)
    row = np.zeros(stop - start, dtype=np.int32)
    strings = _Strings(trace)
    tables = {}
    for code, (name, stored) in enumerate(trace.tables.items()):
        mine = kind == code
        count = int(mine.sum())
        if not count:
            continue
        row[mine] = np.arange(count, dtype=np.int32)
        first = cursor[name]
        columns = {
            field_name: _cut_column(trace.name, name, field_name, column, first, count, strings)
            for field_name, column in stored.columns.items()
        }
        tables[name] = Table(count, _known_columns(name, columns, count, strings, trace.name))
        cursor[name] = first + count
    index = trace.index[start:stop].astype(np.int64)
    return Segment(strings.texts, list(trace.tables), kind, index, row, tables)


def _cut_column(
    file: str,
    kind: str,
    name: str,
    stored: StoredColumn,
    first: int,
    count: int,
    strings: _Strings,
) -> Column:
    where = f"{file}, column {printable(kind)}.{printable(name)}"
    present = None
    if stored.present is not None:
        present = np.array(stored.present[first : first + count])
        if present.all():
            present = None
    offsets = None
    if stored.offsets is None:
        values = stored.values[first : first + count]
    else:
        offsets = stored.offsets[first : first + count + 1].astype(np.int64)
        values = stored.values[int(offsets[0]) : int(offsets[-1])]
        offsets -= offsets[0]
        if present is not None and bool(np.diff(offsets)[~present].any()):
            raise TraceError(where, "has items for an event that lacks it", hint=_HINT)
    if stored.type in _CODED:
        if offsets is None and present is not None:
            translated = np.zeros(count, dtype=np.int32)
            translated[present] = _translate(stored.type, values[present], where, strings)
        else:
            translated = _translate(stored.type, values, where, strings)
        return Column(stored.type, translated, offsets, present)
    wide = values.astype(_WIDE[stored.type])
    if stored.type is FieldType.BOOL and bool(((wide != 0) & (wide != 1)).any()):
        raise TraceError(where, "holds a number other than 0 and 1", hint=_HINT)
    return Column(stored.type, wide, offsets, present)


def _translate(
    field_type: FieldType, codes: NDArray[Any], where: str, strings: _Strings
) -> NDArray[np.int32]:
    return strings.translate(
        codes, where, nulls=field_type is FieldType.STRS, as_json=field_type is FieldType.JSON
    )


def _known_columns(
    kind: str, columns: dict[str, Column], rows: int, strings: _Strings, file: str
) -> dict[str, Column]:
    """Put columns that the schema lacks into ``EXTRA``, and the others into its order.

    A newer recorder may have given a field a column of its own that this version does not know.
    """
    spec = KINDS.get(kind)
    known = [f.name for f in (*COMMON_FIELDS, *(spec.fields if spec is not None else ()))]
    unknown = [name for name in columns if name not in known and name != EXTRA]
    extra = columns.get(EXTRA)
    if extra is not None:
        _check_extra(extra, {"kind", "i", *known}, strings, f"{file}, column {kind}.{EXTRA}")
    if unknown:
        whole = Segment(strings.texts, [], *_NO_EVENTS, {})
        codes = np.zeros(rows, dtype=np.int32)
        present = np.zeros(rows, dtype=np.bool_)
        for row in range(rows):
            fields = {n: whole.value(columns[n], row) for n in unknown if columns[n].has(row)}
            if extra is not None and extra.has(row):
                fields |= whole.value(extra, row)
            if fields:
                codes[row] = strings.add(json.dumps(fields, ensure_ascii=False))
                present[row] = True
        extra = Column(FieldType.JSON, codes, None, None if present.all() else present)
    ordered = {name: columns[name] for name in known if name in columns}
    if extra is not None:
        ordered[EXTRA] = extra
    return ordered


_NO_EVENTS = (
    np.zeros(0, dtype=np.int16),
    np.zeros(0, dtype=np.int64),
    np.zeros(0, dtype=np.int32),
)


def _check_extra(extra: Column, known: set[str], strings: _Strings, where: str) -> None:
    used = extra.values if extra.present is None else extra.values[extra.present]
    for code in np.unique(used).tolist():
        fields = json.loads(strings.texts[code])
        if not isinstance(fields, dict) or not known.isdisjoint(fields):
            raise TraceError(where, "expected an object of fields outside the schema", hint=_HINT)
