"""Cut segments off a stored trace: wide columns, and a string table for each segment."""

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
_UNSEEN = -2
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
    """The string table of each segment in turn, filled with what its columns name."""

    def __init__(self, trace: StoredTrace) -> None:
        self._bytes = memoryview(trace.strings.data)
        self._offsets = trace.string_offsets
        # By code of the file: code in this segment. One more cell, at -1, stands for null.
        self._mine = np.full(max(1, len(self._offsets)), _UNSEEN, dtype=np.int32)
        self._mine[NULL_CODE] = NULL_CODE
        self._named: list[NDArray[np.int64]] = []
        # Neighbouring segments name the same requests, so the last one's texts are kept.
        self._texts: dict[int, str] = {}
        self._last_texts: dict[int, str] = {}
        self.texts: list[str] = []

    def begin(self) -> None:
        """Start the table of the next segment."""
        for codes in self._named:
            self._mine[codes] = _UNSEEN
        self._named = []
        self._last_texts, self._texts = self._texts, {}
        self.texts = []

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
        if not len(codes):
            return np.zeros(0, dtype=np.int32)
        smallest, largest = int(codes.min()), int(codes.max())
        low, high = NULL_CODE if nulls else 0, len(self._offsets) - 2
        if not (low <= smallest and largest <= high):
            wrong = smallest if smallest < low else largest
            raise TraceError(
                where, f"names string {wrong}, expected {low} to {high} (its strings)", hint=_HINT
            )
        translated: NDArray[np.int32] = self._mine.take(codes)
        unseen = translated == _UNSEEN
        if unseen.any():
            self._name(_distinct(codes[unseen], smallest, largest), where)
            translated = self._mine.take(codes)
        if as_json:
            for code in np.unique(translated).tolist():
                parse_text(self.texts[code], where)
        return translated

    def _name(self, codes: NDArray[np.int64], where: str) -> None:
        """Give codes that are new in this segment a place in its table."""
        first = len(self.texts)
        starts, ends = self._offsets[codes].tolist(), self._offsets[codes + 1].tolist()
        for code, start, end in zip(codes.tolist(), starts, ends, strict=True):
            text = self._last_texts.get(code)
            if text is None:
                try:
                    text = str(self._bytes[start:end], "utf-8", "surrogatepass")
                except UnicodeDecodeError:
                    raise TraceError(where, f"string {code} is not UTF-8", hint=_HINT) from None
            self._texts[code] = text
            self.texts.append(text)
        self._mine[codes] = np.arange(first, len(self.texts), dtype=np.int32)
        self._named.append(codes)


def _distinct(codes: NDArray[Any], low: int, high: int) -> NDArray[np.int64]:
    """The distinct ones of ``codes``, which lie in [low, high], sorted."""
    if high - low > 8 * len(codes):
        return np.unique(codes).astype(np.int64)
    is_there = np.zeros(high - low + 1, dtype=np.bool_)
    is_there[codes.astype(np.int64) - low] = True
    return np.flatnonzero(is_there) + low


class Cutter:
    """Cuts the segments of a stored trace off, one after another.

    Args:
        trace: The stored trace.
    """

    def __init__(self, trace: StoredTrace) -> None:
        self._trace = trace
        self._strings = _Strings(trace)
        self._cursor = dict.fromkeys(trace.tables, 0)
        # By kind: how many fields are one value an event, and the offsets of those that are lists.
        self._sizes = {name: _field_sizes(table) for name, table in trace.tables.items()}
        self._start = 0
        self._last = 0

    def cut(self, max_events: int, max_values: int) -> tuple[Segment, int]:
        """Cut off as many events as make one segment of bounded size, one at least.

        Args:
            max_events: Events of a segment.
            max_values: Values of a segment, list items counted one by one.

        Returns:
            The segment, widened, and about how many values it has.

        Raises:
            TraceError: A column of these events is inconsistent.
        """
        trace = self._trace
        kind, mine, values = self._fitting(max_events, max_values)
        row = np.empty(len(kind), dtype=np.int32)
        self._strings.begin()
        tables = {}
        for name, events in mine.items():
            count, first, stored = len(events), self._cursor[name], trace.tables[name]
            row[events] = np.arange(count, dtype=np.int32)
            columns = {
                field_name: _cut_column(
                    trace.name, name, field_name, column, first, count, self._strings
                )
                for field_name, column in stored.columns.items()
            }
            tables[name] = Table(
                count, _known_columns(name, columns, count, self._strings, trace.name)
            )
            self._cursor[name] = first + count
        stop = self._start + len(kind)
        index = trace.index[self._start : stop].astype(np.int64)
        self._start, self._last = stop, len(kind)
        texts = self._strings.texts
        return Segment(texts, list(trace.tables), kind.astype(np.int16), index, row, tables), values

    def _fitting(
        self, max_events: int, max_values: int
    ) -> tuple[NDArray[Any], dict[str, NDArray[np.int64]], int]:
        """The events that the next segment takes.

        Returns:
            Their kinds; kind to where its events stand among them; their values.
        """
        # Events are as large as their neighbours, mostly, so few more are looked at than fit.
        for window in sorted({min(max_events, 2 * self._last + 64), max_events}):
            kind = self._trace.kind[self._start : self._start + window]
            mine = self._by_kind(kind)
            values = self._value_count(mine, len(kind))
            if values >= max_values:
                break
        fits, too_many = 1, len(kind) + 1
        if values < max_values:
            fits = len(kind)
        while too_many - fits > 1 and fits < len(kind):
            middle = (fits + too_many) // 2
            if self._value_count(mine, middle) < max_values:
                fits = middle
            else:
                too_many = middle
        if fits < len(kind):
            mine = {name: at[: int(at.searchsorted(fits))] for name, at in mine.items()}
            mine = {name: at for name, at in mine.items() if len(at)}
        return kind[:fits], mine, self._value_count(mine, fits)

    def _by_kind(self, kind: NDArray[Any]) -> dict[str, NDArray[np.int64]]:
        mine = {}
        for code, (name, table) in enumerate(self._trace.tables.items()):
            events = np.flatnonzero(kind == code)
            if self._cursor[name] + len(events) > table.rows:
                raise TraceError(
                    f"{self._trace.name}, column kind",
                    f"names more events of kind '{name}' than its table has ({table.rows})",
                    hint=_HINT,
                )
            if len(events):
                mine[name] = events
        return mine

    def _value_count(self, mine: dict[str, NDArray[np.int64]], events: int) -> int:
        """Values of the first ``events`` events, each itself counted as one."""
        values = events
        for name, at in mine.items():
            first, count = self._cursor[name], int(at.searchsorted(events))
            single, lists = self._sizes[name]
            values += single * count
            for offsets in lists:
                values += int(offsets[first + count]) - int(offsets[first])
        return values

    def check_end(self) -> None:
        """Check that every table was used up.

        Raises:
            TraceError: One has rows that no event names.
        """
        for kind, table in self._trace.tables.items():
            if self._cursor[kind] != table.rows:
                raise TraceError(
                    f"{self._trace.name}, column kind",
                    f"names {self._cursor[kind]} events of kind '{kind}', its table has "
                    f"{table.rows}",
                    hint=_HINT,
                )


def _field_sizes(table: StoredTable) -> tuple[int, list[NDArray[Any]]]:
    lists = [c.offsets for c in table.columns.values() if c.offsets is not None]
    return len(table.columns) - len(lists), lists


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
