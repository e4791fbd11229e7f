"""Segments put together from arrays, many events at a time; no dictionary is made for an event."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from kvcanary_cli.trace.columns import Column, Table
from kvcanary_cli.trace.schema import KINDS, FieldType
from kvcanary_cli.trace.segment import Segment

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

#: Kinds that the traces here have; their order gives the codes.
NAMES = (
    *("alloc", "match", "history", "map", "forward", "own"),
    *("finish", "row_release", "free", "unpublish"),
)
CODE = {name: code for code, name in enumerate(NAMES)}
_LISTS = (FieldType.INTS, FieldType.STRS)
_DTYPES: dict[FieldType, Any] = {
    FieldType.STR: np.int32,
    FieldType.STRS: np.int32,
    FieldType.INT: np.int64,
    FieldType.INTS: np.int64,
}


@dataclass(frozen=True, slots=True)
class Lists:
    """A list field of some events: all items in a row, and how many each event has."""

    values: NDArray[Any]
    lengths: NDArray[Any]

    @classmethod
    def of(cls, values: NDArray[Any], events: int) -> Lists:
        """Equally long lists: ``values`` cut into ``events`` parts."""
        return cls(values.reshape(-1), np.full(events, values.size // max(1, events)))


Field = Lists | np.ndarray


@dataclass(slots=True)
class _Part:
    rows: int
    fields: Mapping[str, Field]


@dataclass(slots=True)
class SegmentAssembler:
    """Collects runs of events; ``finish`` makes them one segment.

    Attributes:
        events: Events so far.
        first_i: ``i`` of the first one.
    """

    first_i: int = 0
    events: int = 0
    _strings: dict[str, int] = field(default_factory=dict)
    _kinds: list[NDArray[np.int16]] = field(default_factory=list)
    _parts: dict[str, list[_Part]] = field(default_factory=dict)

    def code(self, text: str) -> int:
        """The segment's code of a string."""
        return self._strings.setdefault(text, len(self._strings))

    def codes(self, texts: Sequence[str]) -> NDArray[np.int32]:
        return np.array([self.code(text) for text in texts], dtype=np.int32)

    def add(
        self, order: Sequence[int] | NDArray[Any], **tables: tuple[int, dict[str, Field]]
    ) -> None:
        """Append events.

        Args:
            order: Kind code of each event.
            tables: Kind to how many of its events come, and their fields: an array with one number
                or string code for each event, or ``Lists``.
        """
        kinds = np.asarray(order, dtype=np.int16)
        assert len(kinds) == sum(rows for rows, _ in tables.values())
        self._kinds.append(kinds)
        self.events += len(kinds)
        for name, (rows, fields) in tables.items():
            self._parts.setdefault(name, []).append(_Part(rows, fields))

    def finish(self) -> Segment:
        """The events as one segment; the next one begins behind them."""
        kind = np.concatenate(self._kinds)
        row = np.zeros(len(kind), dtype=np.int32)
        tables = {}
        for name, parts in self._parts.items():
            mine = kind == CODE[name]
            total = int(mine.sum())
            row[mine] = np.arange(total, dtype=np.int32)
            tables[name] = Table(total, _columns(name, parts))
        index = np.arange(self.first_i, self.first_i + len(kind), dtype=np.int64)
        segment = Segment(list(self._strings), list(NAMES), kind, index, row, tables)
        self.__init__(self.first_i + len(kind))  # type: ignore[misc]
        return segment


def _columns(kind: str, parts: list[_Part]) -> dict[str, Column]:
    columns = {}
    for spec in KINDS[kind].fields:
        have = [spec.name in part.fields for part in parts]
        if not any(have):
            continue
        dtype = _DTYPES[spec.type]
        present = None
        if not all(have):
            present = np.repeat(np.array(have), [part.rows for part in parts])
        values, lengths = [], []
        for part in parts:
            given = part.fields.get(spec.name)
            if spec.type in _LISTS:
                if given is None:
                    given = Lists(np.zeros(0, dtype), np.zeros(part.rows, np.int64))
                assert isinstance(given, Lists)
                lengths.append(given.lengths)
                given = given.values
            elif given is None:
                given = np.zeros(part.rows, dtype)
            values.append(np.asarray(given, dtype=dtype))
        offsets = None
        if spec.type in _LISTS:
            offsets = np.zeros(1 + sum(map(len, lengths)), dtype=np.int64)
            np.cumsum(np.concatenate(lengths), out=offsets[1:])
        columns[spec.name] = Column(spec.type, np.concatenate(values), offsets, present)
    return columns
