"""Collects what is wrong with a segment and keeps the earliest event's first problem.

Checks run column by column over the whole segment; people want the first bad event of the file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kvcanary_cli.trace.fields import describe, printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from kvcanary_cli.trace.columns import Column, Table
    from kvcanary_cli.trace.segment import Segment


@dataclass(frozen=True, slots=True)
class Range:
    """Inclusive bounds of a number, and how messages call it."""

    low: int
    high: int
    noun: str

    def __str__(self) -> str:
        if self.high >= (1 << 62):
            return f"{self.noun} >= {self.low}"
        return f"{self.noun} from {self.low} to {self.high}"


@dataclass(frozen=True, slots=True)
class OutOfRange:
    """A number that its event cannot have: which field, which item of a list, and its bounds."""

    field: str
    item: int | None
    value: int
    expected: str


class Problems:
    """The earliest problem found so far in one segment.

    Attributes:
        event: Which event of the segment, None = nothing is wrong.
        what: What is wrong with it.
        out_of_range: The number that is out of its range; None where that is not what is wrong.
        counts_up: Whether the events' numbers go up by one; whatever else may be wrong with them
            depends on what came before.
    """

    def __init__(self) -> None:
        self.counts_up = False
        self.event: int | None = None
        self.what = ""
        self.out_of_range: OutOfRange | None = None

    def add(self, event: int, what: str, out_of_range: OutOfRange | None = None) -> None:
        if self.event is None or event < self.event:
            self.event, self.what, self.out_of_range = int(event), what, out_of_range

    def merge(self, other: Problems) -> None:
        """Take the other's problem if it is at an earlier event."""
        if other.event is not None:
            self.add(other.event, other.what, other.out_of_range)


class KindView:
    """One kind's table, and a way to report its rows as events."""

    def __init__(self, segment: Segment, kind: str, problems: Problems) -> None:
        self.segment = segment
        self.kind = kind
        self.table: Table = segment.tables[kind]
        self._problems = problems
        self._lengths: dict[str, NDArray[np.int64]] = {}

    def column(self, name: str) -> Column | None:
        return self.table.columns.get(name)

    def fail(self, row: int, what: str, out_of_range: OutOfRange | None = None) -> None:
        events = np.flatnonzero(self.segment.kind == self.segment.kind_names.index(self.kind))
        self._problems.add(int(events[row]), f"'{self.kind}' {what}", out_of_range)

    def fail_first(
        self,
        bad: NDArray[np.bool_],
        what: Callable[[int], str],
        out_of_range: Callable[[int], OutOfRange] | None = None,
    ) -> int | None:
        """Report the first row of ``bad`` ([rows] or shorter); the others get that row.

        Returns:
            The row, or None if none is bad.
        """
        if not bad.any():
            return None
        row = int(bad.argmax())
        self.fail(row, what(row), None if out_of_range is None else out_of_range(row))
        return row

    def lengths(self, name: str) -> NDArray[np.int64]:
        """[rows] items of list field ``name``; 0 where an event lacks it."""
        known = self._lengths.get(name)
        if known is None or len(known) != self.table.rows:
            known = self._lengths[name] = self._count_items(name)
        return known

    def _count_items(self, name: str) -> NDArray[np.int64]:
        column = self.column(name)
        if column is None:
            return np.zeros(self.table.rows, dtype=np.int64)
        assert column.offsets is not None
        return column.offsets[1:] - column.offsets[:-1]

    def present(self, name: str) -> NDArray[np.bool_]:
        """[rows] whether the event has field ``name``."""
        column = self.column(name)
        if column is None:
            return np.zeros(self.table.rows, dtype=np.bool_)
        if column.present is None:
            return np.ones(self.table.rows, dtype=np.bool_)
        return column.present

    def check_range(
        self, name: str, bounds: Range, *, ignore: NDArray[np.bool_] | None = None
    ) -> None:
        """Check every value of an integer or integer-list field.

        Args:
            name: The field; nothing happens if no event has it.
            bounds: What its values must lie in.
            ignore: [values] values that may be anything, or None.
        """
        column = self.column(name)
        if column is None or not len(column.values):
            return
        low, high = column.limits or (int(column.values.min()), int(column.values.max()))
        if low >= bounds.low and high <= bounds.high:
            return
        bad = (column.values < bounds.low) | (column.values > bounds.high)
        if column.offsets is None and column.present is not None:
            bad &= column.present
        if ignore is not None:
            bad &= ~ignore
        if bad.any():
            self.fail_value(name, int(bad.argmax()), str(bounds))

    def fail_value(self, name: str, at: int, expected: str) -> None:
        """Report value number ``at`` of a field's column."""
        column = self.table.columns[name]
        found = int(column.values[at])
        if column.offsets is None:
            one = OutOfRange(name, None, found, expected)
            self.fail(at, f"field '{name}' is {found}, expected {expected}", one)
            return
        row = int(np.searchsorted(column.offsets, at, side="right")) - 1
        item = at - int(column.offsets[row])
        one = OutOfRange(name, item, found, expected)
        self.fail(row, f"field '{name}'[{item}] is {found}, expected {expected}", one)

    def check_same_length(self, first: str, *others: str) -> int | None:
        """Check that list fields have as many items as ``first`` in every event that has them.

        Returns:
            The first row where they differ, or None.
        """
        rows = []
        for name in others:
            column = self.column(name)
            if column is None:
                continue
            want, have = self.lengths(first), self.lengths(name)
            bad = have != want
            if column.present is not None:
                bad &= column.present
            row = self.fail_first(bad, _length_text(first, want, name, have))
            if row is not None:
                rows.append(row)
        return min(rows, default=None)

    def check_names(self, name: str, known: tuple[str, ...]) -> None:
        """Check that a string field is one of ``known``."""
        column = self.column(name)
        if column is None:
            return
        strings = self.segment.strings
        have = self.present(name)
        codes = column.values
        wrong = [int(c) for c in np.unique(codes[have]) if strings[int(c)] not in known]
        bad = np.isin(codes, wrong) & have if wrong else np.zeros(len(codes), dtype=np.bool_)
        self.fail_first(
            bad,
            lambda row: (
                f"field '{name}' is '{printable(strings[int(codes[row])], 40)}', expected "
                + ", ".join(known)
            ),
        )

    def json_rows(self, name: str) -> list[tuple[int, Any]]:
        """(row, value) of each event that has JSON field ``name``."""
        if self.column(name) is None:
            return []
        json_of = self.segment.json
        return [
            (int(r), json_of(self.kind, name, int(r))) for r in np.flatnonzero(self.present(name))
        ]


def _length_text(
    first: str, want: NDArray[np.int64], name: str, have: NDArray[np.int64]
) -> Callable[[int], str]:
    return lambda row: (
        f"fields '{first}' and '{name}' have {want[row]} and {have[row]} items, expected as many"
    )


def check_int_list(value: Any, bounds: Range | None) -> str | None:
    """What is wrong with a JSON value that must be a list of integers within ``bounds``."""
    if not isinstance(value, list):
        return "must be a list of integers"
    if value and set(map(type, value)) != {int}:
        at = next(k for k, item in enumerate(value) if type(item) is not int)
        return f"item {at} is {describe(value[at])}, expected an integer"
    if bounds is not None and value and (min(value) < bounds.low or max(value) > bounds.high):
        at = next(k for k, v in enumerate(value) if not bounds.low <= v <= bounds.high)
        return f"item {at} is {value[at]}, expected {bounds}"
    return None
