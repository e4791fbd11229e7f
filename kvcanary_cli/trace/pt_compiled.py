"""Cut segments off a large stored trace in compiled code: what ``pt_slices`` does in NumPy."""

from __future__ import annotations

import logging
import sys
from array import array
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from kvcanary_cli.backends.cpu.cache import is_complete, mark_complete
from kvcanary_cli.trace.columns import NULL_CODE, Column, Table
from kvcanary_cli.trace.pt_slices import (
    WIDE,
    Cutter,
    StoredColumn,
    check_flags,
    check_items,
    known_columns,
    too_many_rows,
)
from kvcanary_cli.trace.pt_strings import CODED, check_json, column_name, string_error
from kvcanary_cli.trace.schema import FieldType
from kvcanary_cli.trace.segment import Segment

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvcanary_cli.trace.pt_reader import StoredTrace

_KERNELS = "complete-reading"
#: So many bytes of a trace repay the loading of the kernels, and that of Numba as well.
_WORTH_LOADING, _WORTH_NUMBA = 32 << 20, 512 << 20

log = logging.getLogger("kvcanary.trace")


def pays(size_bytes: int) -> bool:
    """Whether a trace of so many bytes is read faster in compiled code, its loading included."""
    if sys.byteorder != "little":
        return False
    return size_bytes >= (_WORTH_LOADING if "numba" in sys.modules else _WORTH_NUMBA)


@cache
def load_kernels() -> Any:
    """The module of the kernels, compiled or loaded; says so before it compiles."""
    if not is_complete(_KERNELS):
        log.info("compiling kernels that read large traces (first such run only) ...")
    from kvcanary_cli.backends.cpu import segments

    for kernel in (segments.fit, segments.fill):
        count = kernel.py_func.__code__.co_argcount
        kernel.compile(f"({', '.join(['int64'] * count)})")
    mark_complete(_KERNELS)
    return segments


@dataclass(frozen=True, slots=True)
class _Plan:
    """How one column is made.

    Attributes:
        name: The field.
        where: How messages call it.
        stored: The column in the file.
        address, width: Of its values, as the kernels take them.
        offsets, offsets_width: Of its offsets; 0 if it is no list.
        number: Its row in the block of lists.
        wide: Type of an item of the segment's column.
        work: What is to be done with the values.
        limits: For codes, the smallest and the largest that are allowed.
    """

    name: str
    where: str
    stored: StoredColumn
    address: int
    width: int
    offsets: int
    offsets_width: int
    number: int
    wide: Any
    work: int
    limits: tuple[int, int]


def _address(values: NDArray[Any]) -> int:
    address: int = values.__array_interface__["data"][0]
    return address


def _width(values: NDArray[Any]) -> int:
    return -1 if values.dtype == np.uint8 else values.dtype.itemsize


def _is_plain(values: NDArray[Any] | None) -> bool:
    return values is None or (values.flags.aligned and values.flags.c_contiguous)


def fits(trace: StoredTrace) -> bool:
    """Whether all arrays of a trace lie as the kernels need them, as ``torch.save`` puts them."""
    return all(
        _is_plain(values)
        for table in trace.tables.values()
        for column in table.columns.values()
        for values in (column.values, column.offsets, column.present)
    )


class CompiledCutter(Cutter):
    """A cutter whose segments hold the same events; only the order of their strings differs."""

    def __init__(self, trace: StoredTrace) -> None:
        super().__init__(trace)
        self._kernels = load_kernels()
        self._named = np.empty(len(trace.string_offsets), dtype=np.int64)
        self._had = 0
        self._out = np.zeros(1, dtype=np.int64)
        self._offsets_work = int(self._kernels.Work.OFFSETS)
        cells, list_cells = self._kernels.TableCell, self._kernels.ListCell
        self._block = np.zeros((len(trace.tables), len(cells)), dtype=np.int64)
        lists: list[tuple[int, int, int, int]] = []
        self._plans: list[list[_Plan]] = []
        for number, (kind, table) in enumerate(trace.tables.items()):
            begun = len(lists)
            self._plans.append([])
            for name, stored in table.columns.items():
                plan = self._plan(kind, name, stored, len(lists))
                self._plans[-1].append(plan)
                if stored.offsets is not None:
                    lists.append((plan.offsets, plan.offsets_width, 0, 0))
            singles = 1 + len(table.columns) - (len(lists) - begun)
            self._block[number] = (0, table.rows, singles, begun, len(lists), 0, 0)
        self._lists = np.array(lists, dtype=np.int64).reshape(len(lists), len(list_cells))

    def _plan(self, kind: str, name: str, stored: StoredColumn, number: int) -> _Plan:
        work = self._kernels.Work
        limits = (0, 0)
        if stored.type in CODED:
            wide, what = np.int32, work.CODES
            least = NULL_CODE if stored.type is FieldType.STRS else 0
            limits = least, len(self._trace.string_offsets) - 2
        else:
            wide = WIDE[stored.type]
            what = work.BYTES if stored.type is FieldType.BOOL else work.WIDE
        values, offsets = stored.values, stored.offsets
        at, width = (0, 0) if offsets is None else (_address(offsets), _width(offsets))
        return _Plan(
            name=name,
            where=column_name(self._trace.name, kind, name),
            stored=stored,
            address=_address(values),
            width=_width(values),
            offsets=at,
            offsets_width=width,
            number=number,
            wide=wide,
            work=int(what),
            limits=limits,
        )

    def cut(self, max_events: int, max_values: int) -> tuple[Segment, int]:
        """Cut off one segment, as ``Cutter.cut`` does."""
        trace, block = self._trace, self._block
        kind = trace.kind[self._start : self._start + max_events].astype(np.int16)
        row = np.empty(len(kind), dtype=np.int32)
        count_cell = self._kernels.TableCell.COUNT
        block[:, count_cell] = 0
        taken = self._kernels.fit(
            *(_address(kind), len(kind), max_values, _address(block), len(block)),
            *(_address(self._lists), len(self._lists), _address(row), _address(self._out)),
        )
        if taken < 0:
            raise too_many_rows(trace, list(trace.tables)[-1 - taken])
        counts = block[:, count_cell].tolist()
        tables = self._tables(counts)
        for name, count in zip(trace.tables, counts, strict=True):
            self._cursor[name] += count
        block[:, self._kernels.TableCell.CURSOR] += block[:, count_cell]
        stop = self._start + taken
        index = trace.index[self._start : stop].astype(np.int64)
        self._start = stop
        segment = Segment(
            *(self._strings.texts, list(trace.tables), kind[:taken], index, row[:taken], tables)
        )
        return segment, int(self._out[0])

    def _tables(self, counts: list[int]) -> dict[str, Table]:
        """All columns of the events that were taken."""
        jobs: list[int] = []
        made: list[tuple[_Plan, int, Column]] = []
        tables = {}
        cells = len(self._kernels.Job)
        spans = self._lists[:, self._kernels.ListCell.START :].tolist()
        for name, plans, count in zip(self._trace.tables, self._plans, counts, strict=True):
            if count:
                first, columns = self._cursor[name], {}
                for plan in plans:
                    column = columns[plan.name] = self._column(plan, first, count, spans, jobs)
                    made.append((plan, len(jobs) // cells - 1, column))
                tables[name] = Table(count, columns)
        self._fill(jobs, made)
        file, strings = self._trace.name, self._strings
        for name, table in tables.items():
            table.columns = known_columns(name, table.columns, table.rows, strings, file)
        return tables

    def _column(
        self,
        plan: _Plan,
        first: int,
        count: int,
        spans: list[list[int]],
        jobs: list[int],
    ) -> Column:
        """A column that the jobs will fill; the last of them makes its values."""
        stored, offsets, present = plan.stored, None, None
        if stored.present is not None:
            present = np.array(stored.present[first : first + count])
            if present.all():
                present = None
        start, stop, has = first, first + count, 0
        if plan.offsets:
            start, stop = spans[plan.number]
            offsets = np.empty(count + 1, dtype=np.int64)
            width, to = plan.offsets_width, _address(offsets)
            at = plan.offsets + first * abs(width)
            jobs += (at, width, count + 1, to, self._offsets_work, 0, 0, 0, 0)
        elif present is not None:
            has = _address(present)
        values = np.empty(stop - start, dtype=plan.wide)
        at, to = plan.address + start * abs(plan.width), _address(values)
        jobs += (at, plan.width, stop - start, to, plan.work, has, *plan.limits, 0)
        return Column(stored.type, values, offsets, present)

    def _fill(self, jobs: list[int], made: list[tuple[_Plan, int, Column]]) -> None:
        """Do the jobs, and check what was made."""
        strings, job = self._strings, self._kernels.Job
        block = np.array(array("q", jobs)).reshape(-1, len(job))
        self._had = self._kernels.fill(
            *(_address(block), len(block), _address(strings.mine), len(strings.mine)),
            *(_address(self._named), self._had),
        )
        done = block[:, job.LOW :].tolist()
        ends, texts = [], []
        for plan, number, column in made:
            low, high, named = done[number]
            _check(plan, column, low, high)
            if plan.stored.type in CODED:
                ends.append((named, plan.where))
                if plan.stored.type is FieldType.JSON:
                    texts.append((plan, column))
        strings.name_all(self._named[: self._had], ends)
        for plan, column in texts:
            check_json(column, strings.texts, plan.where)


def _check(plan: _Plan, column: Column, low: int, high: int) -> None:
    """Check a column by the smallest and the largest of its values, which are kept."""
    if column.present is not None:
        check_items(column, plan.where)
    if not len(column.values):
        return
    if plan.stored.type in CODED:
        lowest, highest = plan.limits
        if low <= high and not (lowest <= low and high <= highest):
            raise string_error(plan.where, low if low < lowest else high, lowest, highest)
        # Whatever the codes of the segment are: below 0 are the nulls alone.
        column.limits = min(low, 0), highest
    elif plan.stored.type is FieldType.BOOL:
        check_flags(low, high, plan.where)
    else:
        column.limits = low, high
