"""Cut segments off a stored trace: wide columns, and a string table for each segment."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from kvcanary_cli.trace.columns import Column, Table
from kvcanary_cli.trace.errors import TraceError
from kvcanary_cli.trace.pt_strings import (
    CODED,
    HINT,
    SegmentStrings,
    check_json,
    column_name,
)
from kvcanary_cli.trace.schema import COMMON_FIELDS, KINDS, FieldType
from kvcanary_cli.trace.segment import EXTRA, Segment

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvcanary_cli.trace.pt_reader import StoredTrace

WIDE: dict[FieldType, Any] = {
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


class Cutter:
    """Cuts the segments of a stored trace off, one after another.

    Args:
        trace: The stored trace.
    """

    def __init__(self, trace: StoredTrace) -> None:
        self._trace = trace
        self._strings = SegmentStrings(trace.strings, trace.string_offsets)
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
                count, known_columns(name, columns, count, self._strings, trace.name)
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
                raise too_many_rows(self._trace, name)
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
                    hint=HINT,
                )


def too_many_rows(trace: StoredTrace, kind: str) -> TraceError:
    """The error for events of a kind that its table lacks."""
    return TraceError(
        f"{trace.name}, column kind",
        f"names more events of kind '{kind}' than its table has ({trace.tables[kind].rows})",
        hint=HINT,
    )


def check_items(column: Column, where: str) -> None:
    """Check that events that lack a list field have no items in it.

    Raises:
        TraceError: One has.
    """
    if column.offsets is None or column.present is None:
        return
    if bool(np.diff(column.offsets)[~column.present].any()):
        raise TraceError(where, "has items for an event that lacks it", hint=HINT)


def check_flags(low: int, high: int, where: str) -> None:
    """Check the smallest and the largest value of a BOOL column.

    Raises:
        TraceError: One is neither 0 nor 1.
    """
    if low < 0 or high > 1:
        raise TraceError(where, "holds a number other than 0 and 1", hint=HINT)


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
    strings: SegmentStrings,
) -> Column:
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
    column = Column(stored.type, values, offsets, present)
    if present is not None:
        check_items(column, column_name(file, kind, name))
    if stored.type in CODED:
        _translate(column, strings, column_name(file, kind, name))
    elif len(values):
        # Narrow values are looked at faster than wide ones.
        column.limits = low, high = int(values.min()), int(values.max())
        if stored.type is FieldType.BOOL:
            check_flags(low, high, column_name(file, kind, name))
        column.values = values.astype(WIDE[stored.type])
    else:
        column.values = values.astype(WIDE[stored.type])
    return column


def _translate(column: Column, strings: SegmentStrings, where: str) -> None:
    """Give a column codes of its segment."""
    codes, nulls = column.values, column.type is FieldType.STRS
    if column.offsets is None and column.present is not None:
        column.values = np.zeros(len(codes), dtype=np.int32)
        column.values[column.present] = strings.translate(codes[column.present], where, nulls=nulls)
    else:
        column.values = strings.translate(codes, where, nulls=nulls)
    if column.type is FieldType.JSON:
        check_json(column, strings.texts, where)


@lru_cache(maxsize=256)
def _known_fields(kind: str) -> tuple[str, ...]:
    """Names of the schema's fields of a kind, in its order."""
    spec = KINDS.get(kind)
    return tuple(f.name for f in (*COMMON_FIELDS, *(spec.fields if spec is not None else ())))


def known_columns(
    kind: str, columns: dict[str, Column], rows: int, strings: SegmentStrings, file: str
) -> dict[str, Column]:
    """Put columns that the schema lacks into ``EXTRA``, and the others into its order.

    A newer recorder may have given a field a column of its own that this version does not know.
    """
    known = _known_fields(kind)
    unknown = [name for name in columns if name not in known and name != EXTRA]
    extra = columns.get(EXTRA)
    if extra is not None:
        _check_extra(extra, {"kind", "i", *known}, strings, column_name(file, kind, EXTRA))
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


def _check_extra(extra: Column, known: set[str], strings: SegmentStrings, where: str) -> None:
    used = extra.values if extra.present is None else extra.values[extra.present]
    for code in np.unique(used).tolist():
        fields = json.loads(strings.texts[code])
        if not isinstance(fields, dict) or not known.isdisjoint(fields):
            raise TraceError(where, "expected an object of fields outside the schema", hint=HINT)
