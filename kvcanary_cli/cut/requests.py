"""Which requests a cut for some requests must keep: theirs, and whoever writes what they read.

A request belongs to the cut if, within the cut's steps, it writes a slot that a kept request
reads or writes, and so on; copies pass the question on from their destination to their source.
The answer errs on the large side: it does not ask which write came first.
"""

from __future__ import annotations

import difflib
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from kvcanary_cli.abi.constants import PoolKind
from kvcanary_cli.errors import NothingCheckedError
from kvcanary_cli.replay.copies import is_device_pool
from kvcanary_cli.replay.driver import UNSUPPORTED_MODES
from kvcanary_cli.replay.forwards import Forward, read_forward

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from kvcanary_cli.cut.window import Window
    from kvcanary_cli.trace.header import PoolInfo
    from kvcanary_cli.trace.reader import TraceReader
    from kvcanary_cli.trace.segment import Segment

    Ints = NDArray[np.int64]

_ACTIVE_BYTES = 128 << 20
_SHOWN_NAMES = 3


@dataclass(slots=True)
class _Copy:
    """One ``copy`` of the window: cells (see ``_Cells``), or a request, to cells."""

    src: Ints
    dst: Ints
    src_req: str | None


@dataclass(slots=True)
class Selection:
    """What a cut for some requests keeps.

    Attributes:
        reqs: Requests whose batch rows are kept.
        rows: Table rows that they use within the cut.
        full: [slots] bool: slots of the full pool (and the draft's) that they touch.
        swa: [slots] bool: the same for the sliding-window pool.
        elsewhere: (pool, slot) off the device that they need.
        gaps: (i before, i after) of the gaps that the trace itself has within the cut.
    """

    reqs: set[str]
    rows: set[int]
    full: NDArray[np.bool_]
    swa: NDArray[np.bool_]
    elsewhere: set[tuple[str, int]]
    gaps: list[tuple[int, int]] = field(default_factory=list)

    def keeps(self, req: Any) -> bool:
        """Whether an event that names ``req`` (None = none) is kept."""
        return req is None or req in self.reqs

    def slots_of(self, kind: PoolKind) -> NDArray[np.bool_]:
        return self.swa if kind is PoolKind.SWA else self.full

    def needs(self, pool: str | None, slots: Ints) -> NDArray[np.bool_]:
        """Which of ``slots`` of a named pool are needed."""
        if pool is not None and not is_device_pool(pool):
            return np.array([(pool, s) in self.elsewhere for s in slots.tolist()], dtype=np.bool_)
        needed: NDArray[np.bool_] = (self.swa if pool == "swa" else self.full)[slots]
        return needed


class _Cells:
    """Numbers every place that can hold KV: full slots, then SWA slots, then those elsewhere."""

    def __init__(self, pool: PoolInfo) -> None:
        self.full = pool.max_slot + 1
        self.swa = pool.swa_max_slot + 1 if pool.swa_slots else 0
        self.device = self.full + self.swa
        self.elsewhere: dict[tuple[str, int], int] = {}

    def of(self, pool: str | None, slots: Ints) -> Ints:
        if pool is None or is_device_pool(pool):
            if pool != "swa":
                return slots
            return slots + self.full if self.swa else slots[:0]
        get = self.elsewhere.setdefault
        return np.array(
            [get((pool, slot), self.device + len(self.elsewhere)) for slot in slots.tolist()],
            dtype=np.int64,
        )


class _Touched:
    """Cells that each request reads and writes; only the latest requests' are held as bitmaps."""

    def __init__(self, cells: int) -> None:
        self._cells = cells
        self._limit = max(1, _ACTIVE_BYTES // (2 * cells))
        self._active: OrderedDict[str, NDArray[np.bool_]] = OrderedDict()
        self._idle: dict[str, tuple[NDArray[np.int32], NDArray[np.int32]]] = {}

    def add(self, req: str, read: Ints, written: Ints) -> None:
        marks = self._active.get(req)
        if marks is None:
            marks = self._active[req] = np.zeros((2, self._cells), dtype=np.bool_)
            for kind, cells in enumerate(self._idle.pop(req, ())):
                marks[kind, cells] = True
        self._active.move_to_end(req)
        marks[0, read] = True
        marks[1, written] = True
        if len(self._active) > self._limit:
            oldest, idle = self._active.popitem(last=False)
            self._idle[oldest] = self._packed(idle)

    @staticmethod
    def _packed(marks: NDArray[np.bool_]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        read, written = (np.flatnonzero(kind).astype(np.int32) for kind in marks)
        return read, written

    def requests(self) -> list[str]:
        return [*self._idle, *self._active]

    def cells(self, req: str) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Cells that ``req`` reads, and those that it writes."""
        marks = self._active.get(req)
        return self._idle[req] if marks is None else self._packed(marks)


@dataclass(slots=True)
class _Scan:
    """What the first pass collects."""

    pool: PoolInfo
    cells: _Cells
    touched: _Touched
    table: NDArray[np.int32]
    lut: Ints | None
    names: set[str] = field(default_factory=set)
    rows: dict[str, set[int]] = field(default_factory=dict)
    copies: list[_Copy] = field(default_factory=list)

    @classmethod
    def of(cls, pool: PoolInfo) -> _Scan:
        cells = _Cells(pool)
        return cls(
            pool,
            cells,
            _Touched(cells.device),
            np.zeros((pool.rows, pool.row_len), dtype=np.int32),
            np.zeros(cells.full, dtype=np.int64) if cells.swa else None,
        )

    def feed(self, segment: Segment, start: int, stop: int) -> None:
        """Take a segment, of which the events [start, stop) lie in the window."""
        for k, (code, row) in enumerate(
            zip(segment.kind.tolist(), segment.row.tolist(), strict=True)
        ):
            if k >= stop:
                return
            kind = segment.kind_names[code]
            table = segment.tables[kind]
            if kind == "map":
                slots, first = table.get_ints("slots", row), table.get_int("start", row)
                assert slots is not None
                assert first is not None
                self.table[table.get_int("row", row), first : first + len(slots)] = slots
            elif kind == "lut" and self.lut is not None:
                full, swa = table.get_ints("full", row), table.get_ints("swa", row)
                assert full is not None
                assert swa is not None
                self.lut[full] = swa
            elif kind == "forward":
                codes = table.columns["reqs"].span(row).tolist()
                self.names.update(segment.strings[code] for code in codes if code >= 0)
                mode = segment.text("forward", "forward_mode", row)
                if k >= start and mode not in UNSUPPORTED_MODES:
                    self._forward(read_forward(segment, k))
            elif kind == "copy" and k >= start:
                self._copy(segment, row)

    def _forward(self, forward: Forward) -> None:
        locs = forward.batch.out_cache_loc.numpy()[: len(forward.token_row)]
        landed = [
            (kind, slots.numpy()[: len(forward.token_row)])
            for kind, slots in forward.batch.landed.items()
        ]
        for b, (row, req) in enumerate(zip(forward.rows.tolist(), forward.reqs, strict=True)):
            if req is None or not row:
                continue
            prefix = int(forward.prefix[b])
            cells = self.table[row, :prefix].astype(np.int64)
            as_read = forward.row_as_read.get(row)
            if as_read is not None:
                shown = min(prefix, len(as_read))
                cells[:shown] = as_read[:shown]
            mine = forward.token_row == b
            written = [self._both_pools(locs[mine][locs[mine] >= 0])]
            for kind, slots in landed:
                pool = "swa" if kind is PoolKind.SWA else None
                written.append(self.cells.of(pool, slots[mine][slots[mine] >= 0]))
            self.touched.add(req, self._both_pools(cells), np.concatenate(written))
            self.rows.setdefault(req, set()).add(row)

    def _both_pools(self, slots: Ints) -> Ints:
        if self.lut is None:
            return slots
        return np.concatenate([slots, self.cells.of("swa", self.lut[slots])])

    def _copy(self, segment: Segment, row: int) -> None:
        dst = segment.tables["copy"].get_ints("dst", row)
        assert dst is not None
        to = self.cells.of(segment.text("copy", "dst_pool", row), dst)
        source = segment.json("copy", "src", row)
        if isinstance(source, dict):
            self.copies.append(_Copy(dst[:0], to, source["req"]))
            return
        src = self.cells.of(segment.text("copy", "src_pool", row), np.array(source, dtype=np.int64))
        self.copies.append(_Copy(src, to, None))

    def closure(self, reqs: Iterable[str]) -> Selection:
        """Requests and cells that ``reqs`` depend on."""
        kept: set[str] = set(reqs)
        needed = np.zeros(self.cells.device + len(self.cells.elsewhere), dtype=np.bool_)
        fresh = set(kept)
        writes = {req: self.touched.cells(req)[1] for req in self.touched.requests()}
        while fresh:
            for req in fresh & writes.keys():
                needed[self.touched.cells(req)[0]] = True
                needed[writes[req]] = True
            fresh = self._pass_back(needed)
            fresh |= {req for req, cells in writes.items() if needed[cells].any()}
            fresh -= kept
            kept |= fresh
        full, swa = self.cells.full, self.cells.device
        return Selection(
            kept,
            {row for req in kept for row in self.rows.get(req, ())},
            needed[:full],
            needed[full:swa],
            {place for place, cell in self.cells.elsewhere.items() if needed[cell]},
        )

    def _pass_back(self, needed: NDArray[np.bool_]) -> set[str]:
        """Sources of copies into needed cells are needed; the requests that are sources."""
        reqs = set()
        changed = True
        while changed:
            changed = False
            for copy in reversed(self.copies):
                if not needed[copy.dst].any():
                    continue
                if copy.src_req is not None:
                    reqs.add(copy.src_req)
                elif not needed[copy.src].all():
                    needed[copy.src] = True
                    changed = True
        return reqs


def select_requests(
    reader: TraceReader,
    window: Window,
    reqs: tuple[str, ...],
    progress: Callable[[TraceReader], None] | None = None,
) -> Selection:
    """Read the trace once to find what ``reqs`` depend on within ``window``.

    Raises:
        NothingCheckedError: One of them has no forward in the window.
        TraceError: The trace cannot be used.
    """
    scan = _Scan.of(reader.header.pool)
    for segment in reader.segments():
        start, stop = window.take(segment)
        scan.feed(segment, start, stop)
        if progress is not None:
            progress(reader)
        if window.ended:
            break
    for req in reqs:
        if req not in scan.rows:
            raise _unknown(req, scan, window)
    selection = scan.closure(reqs)
    first_i = window.first_i
    selection.gaps = [
        (gap.after_i, gap.before_i)
        for gap in reader.notes.gaps
        if first_i is not None and gap.after_i >= first_i
    ]
    return selection


def _unknown(req: str, scan: _Scan, window: Window) -> NothingCheckedError:
    if req in scan.names:
        return NothingCheckedError(
            f"request {req!r} has no forward in {window.text()}: nothing to cut",
            hint="its forwards stand before; give an earlier range of --steps",
        )
    close = difflib.get_close_matches(req, sorted(scan.names), n=_SHOWN_NAMES, cutoff=0.6)
    known = ", ".join(repr(name) for name in close or sorted(scan.names)[:_SHOWN_NAMES])
    hint = f"did you mean {known}?" if close else f"it has {known or 'no request'}, for example"
    return NothingCheckedError(f"the trace has no request {req!r} up to there", hint=hint)
