"""What a trace holds, in one streaming pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvcanary_cli.trace.columns import NULL_CODE
from kvcanary_cli.trace.pool_use import PoolUse, PoolUseCounter
from kvcanary_cli.trace.schema import KINDS

if TYPE_CHECKING:
    from kvcanary_cli.trace.columns import Table
    from kvcanary_cli.trace.header import TraceHeader
    from kvcanary_cli.trace.notes import TraceNotes
    from kvcanary_cli.trace.reader import TraceReader
    from kvcanary_cli.trace.segment import Segment

#: Kinds that name a request in a field of their own.
_REQUEST_FIELDS = {
    "history": ("req",),
    "finish": ("req",),
    "retract": ("req",),
    "abort": ("req",),
    "match": ("req",),
    "fork": ("parent", "child"),
}
UNKNOWN_FAMILY = "(unknown)"


@dataclass(slots=True)
class FamilySize:
    """Size of a family's events in memory.

    Attributes:
        events: Events.
        values: Items of their columns.
        size_bytes: Bytes of their columns, before any narrowing.
    """

    events: int = 0
    values: int = 0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceInfo:
    """A summary of a trace.

    Attributes:
        path: What was read.
        sha256: Digest of its bytes.
        size_bytes: Its size, or None for stdin.
        header: Its header.
        events: Events by kind, most frequent first.
        families: Size by family.
        first_step, last_step: Smallest and largest step of a forward, or None.
        steps: Distinct steps, counted where the step changes from one forward to the next.
        forwards: Forwards by worker and mode.
        tokens: Tokens that they wrote or would have written.
        requests: Distinct requests.
        finished, retracted, aborted: Events of that kind.
        pool_use: Owned slots over the forwards; None if the trace has no alloc events or forwards.
        first_t, last_t: Smallest and largest time in nanoseconds, or None.
        notes: What is odd about it.
    """

    path: str
    sha256: str
    size_bytes: int | None
    header: TraceHeader
    events: dict[str, int]
    families: dict[str, FamilySize]
    first_step: int | None
    last_step: int | None
    steps: int
    forwards: dict[tuple[str, str], int]
    tokens: int
    requests: int
    finished: int
    retracted: int
    aborted: int
    pool_use: PoolUse | None
    first_t: int | None
    last_t: int | None
    notes: TraceNotes


class _Extremes:
    """Smallest and largest number seen."""

    def __init__(self) -> None:
        self.low: int | None = None
        self.high: int | None = None

    def add(self, low: int, high: int) -> None:
        self.low = low if self.low is None else min(self.low, low)
        self.high = high if self.high is None else max(self.high, high)


class _Collector:
    def __init__(self, header: TraceHeader) -> None:
        self.events: dict[str, int] = {}
        self.families: dict[str, FamilySize] = {}
        self.steps = _Extremes()
        self.step_count = 0
        self._last_step: int | None = None
        self.times = _Extremes()
        self.forwards: dict[tuple[str, str], int] = {}
        self.requests: set[str] = set()
        self.pool_use = PoolUseCounter(header.pool.max_slot)

    def add(self, segment: Segment) -> None:
        for name, table in segment.tables.items():
            self.events[name] = self.events.get(name, 0) + table.rows
            self._add_size(name, table)
            self._add_times(table)
            for field in _REQUEST_FIELDS.get(name, ()):
                self._add_requests(segment, table, field)
        if "forward" in segment.tables:
            self._add_forwards(segment, segment.tables["forward"])
        self.pool_use.add(segment)

    def _add_size(self, name: str, table: Table) -> None:
        spec = KINDS.get(name)
        family = UNKNOWN_FAMILY if spec is None else spec.family
        size = self.families.setdefault(family, FamilySize())
        size.events += table.rows
        for column in table.columns.values():
            size.values += len(column.values)
            for array in (column.values, column.offsets, column.present):
                size.size_bytes += 0 if array is None else array.nbytes

    def _add_times(self, table: Table) -> None:
        column = table.columns.get("t")
        if column is not None:
            times = column.values if column.present is None else column.values[column.present]
            if len(times):
                self.times.add(int(times.min()), int(times.max()))

    def _add_requests(self, segment: Segment, table: Table, field: str) -> None:
        column = table.columns[field]
        for code in np.unique(column.values).tolist():
            if code != NULL_CODE:
                self.requests.add(segment.strings[code])

    def _add_forwards(self, segment: Segment, table: Table) -> None:
        self._add_requests(segment, table, "reqs")
        steps = table.columns["step"].values
        self.steps.add(int(steps.min()), int(steps.max()))
        self.step_count += int((steps[1:] != steps[:-1]).sum())
        self.step_count += self._last_step != int(steps[0])
        self._last_step = int(steps[-1])
        modes = table.columns["forward_mode"].values
        worker = table.columns.get("worker")
        workers = np.full(table.rows, NULL_CODE)
        if worker is not None:
            given = np.ones(table.rows, np.bool_) if worker.present is None else worker.present
            workers = np.where(given, worker.values, NULL_CODE)
        pairs, counts = np.unique(np.stack([workers, modes]), axis=1, return_counts=True)
        for (who, mode), count in zip(pairs.T.tolist(), counts.tolist(), strict=True):
            name = "target" if who == NULL_CODE else segment.strings[who]
            key = (name, segment.strings[mode])
            self.forwards[key] = self.forwards.get(key, 0) + count


def collect_info(reader: TraceReader) -> TraceInfo:
    """Read a trace once and summarise it.

    Memory is one segment, one byte and one counter a slot, and the names of all requests.

    Raises:
        TraceError: The trace cannot be used.
    """
    collector = _Collector(reader.header)
    for segment in reader.segments():
        collector.add(segment)
    by_count = sorted(collector.events.items(), key=lambda item: (-item[1], item[0]))
    by_size = sorted(collector.families.items(), key=lambda item: (-item[1].size_bytes, item[0]))
    return TraceInfo(
        path=reader.name,
        sha256=reader.sha256(),
        size_bytes=reader.bytes_total,
        header=reader.header,
        events=dict(by_count),
        families=dict(by_size),
        first_step=collector.steps.low,
        last_step=collector.steps.high,
        steps=collector.step_count,
        forwards=dict(sorted(collector.forwards.items())),
        tokens=reader.checked.tokens,
        requests=len(collector.requests),
        finished=collector.events.get("finish", 0),
        retracted=collector.events.get("retract", 0),
        aborted=collector.events.get("abort", 0),
        pool_use=collector.pool_use.result() if "alloc" in collector.events else None,
        first_t=collector.times.low,
        last_t=collector.times.high,
        notes=reader.notes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """A trace that passed.

    Attributes:
        path: What was read.
        sha256: Digest of its bytes.
        events, forwards, tokens: What was checked.
        notes: What is odd but not refused, one sentence each.
    """

    path: str
    sha256: str
    events: int
    forwards: int
    tokens: int
    notes: tuple[str, ...]


def validate(reader: TraceReader) -> Validation:
    """Read a trace to its end.

    Raises:
        TraceError: It must be refused.
    """
    for _ in reader.segments():
        pass
    return Validation(
        path=reader.name,
        sha256=reader.sha256(),
        events=reader.checked.events,
        forwards=reader.checked.forwards,
        tokens=reader.checked.tokens,
        notes=tuple(reader.notes.messages()),
    )
