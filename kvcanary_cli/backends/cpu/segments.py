"""Kernels that cut a segment off a stored trace: which events fit, and their columns made wide.

One call finds the end of a segment, one more makes all of its columns, both with the interpreter
lock released: a reader's thread then hardly disturbs the replay beside it. ``trace.pt_compiled``
fills the blocks; ``trace.pt_slices`` does the same in NumPy.

Arguments are addresses and sizes. Arrays must be aligned and contiguous.
"""

from __future__ import annotations

from enum import IntEnum, auto
from typing import Any

import numpy as np
from numba import carray, types
from numba.core import cgutils
from numba.extending import intrinsic

from kvcanary_cli.backends.cpu.jit import constants, helper, kernel

UNSEEN, NULL_CODE = -2, -1
_BLOCK_EVENTS = 512


class TableCell(IntEnum):
    """Columns of the block of tables: int64, one row a kind."""

    CURSOR = 0  # rows that earlier segments took
    ROWS = auto()  # rows of the whole table
    SINGLES = auto()  # values that each event has at least, itself counted as one
    FIRST_LIST = auto()  # its lists in the block of lists
    LAST_LIST = auto()  # one behind
    COUNT = auto()  # rows that this segment takes
    BEFORE = auto()


class ListCell(IntEnum):
    """Columns of the block of lists: int64, one row a list field of the trace."""

    OFFSETS = 0  # address, of all rows of the table
    WIDTH = auto()  # bytes of an offset, -1 = one byte without sign
    START = auto()  # items that this segment takes
    STOP = auto()


class Job(IntEnum):
    """Columns of the block of jobs: int64, one row for each array that is made."""

    SOURCE = 0  # address of its first item
    WIDTH = auto()  # as above
    COUNT = auto()
    TARGET = auto()
    WORK = auto()
    PRESENT = auto()  # CODES: address of [count] bool, 0 = all; an absent one becomes 0
    LOW = auto()  # out: the smallest, or of none 0; CODES: in, the smallest that is allowed
    HIGH = auto()  # out: the largest, or of none -1; CODES: in, the largest that is allowed
    TEXTS = auto()  # CODES, out: strings that the segment names by then


class Work(IntEnum):
    """What a job makes."""

    WIDE = 0  # int64
    OFFSETS = auto()  # int64, less the first
    BYTES = auto()  # int8, without its upper bits
    CODES = auto()  # int32, codes of the segment for those of the file


_CURSOR, _ROWS, _SINGLES = constants(TableCell.CURSOR, TableCell.ROWS, TableCell.SINGLES)
_FIRST_LIST, _LAST_LIST = int(TableCell.FIRST_LIST), int(TableCell.LAST_LIST)
_COUNT, _BEFORE = int(TableCell.COUNT), int(TableCell.BEFORE)
_TABLE_CELLS, _LIST_CELLS, _JOB_CELLS = len(TableCell), len(ListCell), len(Job)
_L_OFFSETS, _L_WIDTH = int(ListCell.OFFSETS), int(ListCell.WIDTH)
_L_START, _L_STOP = int(ListCell.START), int(ListCell.STOP)
_J_SOURCE, _J_WIDTH, _J_COUNT, _J_TARGET = constants(Job.SOURCE, Job.WIDTH, Job.COUNT, Job.TARGET)
_J_WORK, _J_PRESENT, _J_LOW, _J_HIGH, _J_TEXTS = constants(
    Job.WORK, Job.PRESENT, Job.LOW, Job.HIGH, Job.TEXTS
)
_WIDE, _OFFSETS, _BYTES = int(Work.WIDE), int(Work.OFFSETS), int(Work.BYTES)


@intrinsic
def _pointer(typingctx: Any, address: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), codegen


@helper
def _item(address, width, k):  # type: ignore[no-untyped-def]
    if width == 4:
        return np.int64(carray(_pointer(address), k + 1, np.int32)[k])
    if width == 2:
        return np.int64(carray(_pointer(address), k + 1, np.int16)[k])
    if width == 8:
        return carray(_pointer(address), k + 1, np.int64)[k]
    if width == 1:
        return np.int64(carray(_pointer(address), k + 1, np.int8)[k])
    return np.int64(carray(_pointer(address), k + 1, np.uint8)[k])


@helper
def _values(table, lists, first, count):  # type: ignore[no-untyped-def]
    """Values of ``count`` rows of a table."""
    values = table[_SINGLES] * count
    for k in range(table[_FIRST_LIST], table[_LAST_LIST]):
        offsets, width = lists[k, _L_OFFSETS], lists[k, _L_WIDTH]
        values += _item(offsets, width, first + count) - _item(offsets, width, first)
    return values


@helper
def _fit(kinds, max_values, tables, lists, rows, out):  # type: ignore[no-untyped-def]
    """See ``fit``; here on arrays."""
    at = stop = values = 0
    while at < len(kinds):
        stop = min(at + _BLOCK_EVENTS, len(kinds))
        for t in range(len(tables)):
            tables[t, _BEFORE] = tables[t, _COUNT]
        begin = at
        while begin < stop:
            # Events of one kind often stand in a row.
            code, end = kinds[begin], begin
            row = tables[code, _COUNT]
            while end < stop and kinds[end] == code:
                rows[end] = row + end - begin
                end += 1
            tables[code, _COUNT] = row + end - begin
            begin = end
        total = 0
        for t in range(len(tables)):
            table = tables[t]
            if table[_CURSOR] + table[_COUNT] > table[_ROWS]:
                return -1 - t
            total += _values(table, lists, table[_CURSOR], table[_COUNT])
        if total >= max_values:
            # One event of these is the first that does not fit.
            for t in range(len(tables)):
                tables[t, _COUNT] = tables[t, _BEFORE]
            break
        at, values = stop, total
    for k in range(at, stop):
        table = tables[kinds[k]]
        row = table[_COUNT]
        size = _values(table, lists, table[_CURSOR] + row, 1)
        if k > 0 and values + size >= max_values:
            break
        values += size
        rows[k] = row
        table[_COUNT] = row + 1
        at = k + 1
    out[0] = values
    return at


@kernel
def fit(kinds, events, max_values, tables, table_count, lists, list_count, rows, out):  # type: ignore[no-untyped-def]
    """Take as many events as have fewer than ``max_values`` values together, one at least.

    Args:
        kinds: [events] int16, codes below ``table_count``.
        events: How many there are to choose from.
        max_values: The bound.
        tables: [table_count] of ``TableCell``; COUNT is 0 before, and the rows taken behind.
        table_count: Kinds.
        lists: [list_count] of ``ListCell``; START and STOP are set.
        list_count: List fields of all kinds.
        rows: [events] int32, gets the row of each event taken, counted from the segment's first.
        out: int64, gets the values of the events taken.

    Returns:
        Events taken; -1 - t where table t has fewer rows than events name.
    """
    table_array = carray(_pointer(tables), (table_count, _TABLE_CELLS), np.int64)
    list_array = carray(_pointer(lists), (list_count, _LIST_CELLS), np.int64)
    taken = _fit(
        carray(_pointer(kinds), events, np.int16),
        max_values,
        table_array,
        list_array,
        carray(_pointer(rows), events, np.int32),
        carray(_pointer(out), 1, np.int64),
    )
    if taken < 0:
        return taken
    for t in range(table_count):
        first = table_array[t, _CURSOR]
        for k in range(table_array[t, _FIRST_LIST], table_array[t, _LAST_LIST]):
            offsets, width = list_array[k, _L_OFFSETS], list_array[k, _L_WIDTH]
            list_array[k, _L_START] = _item(offsets, width, first)
            list_array[k, _L_STOP] = _item(offsets, width, first + table_array[t, _COUNT])
    return taken


@helper
def _widen(source, target, less):  # type: ignore[no-untyped-def]
    """Copy, less a number; returns the smallest and the largest of the source."""
    if len(source) == 0:
        return np.int64(0), np.int64(-1)
    low = high = np.int64(source[0])
    for k in range(len(source)):
        value = np.int64(source[k])
        target[k] = value - less
        low, high = min(low, value), max(high, value)
    return low, high


@helper
def _limits(source):  # type: ignore[no-untyped-def]
    """The smallest and the largest."""
    if len(source) == 0:
        return np.int64(0), np.int64(-1)
    low = high = np.int64(source[0])
    for k in range(len(source)):
        value = np.int64(source[k])
        low, high = min(low, value), max(high, value)
    return low, high


@helper
def _limits_of_some(source, has):  # type: ignore[no-untyped-def]
    """The same of those that ``has`` marks."""
    low, high = np.int64(0), np.int64(-1)
    for k in range(len(source)):
        if has[k] != 0:
            value = np.int64(source[k])
            if low > high:
                low = high = value
            low, high = min(low, value), max(high, value)
    return low, high


@helper
def _translate(source, job, mine, named, texts):  # type: ignore[no-untyped-def]
    """Codes of the segment; returns how many strings it names by now."""
    count = len(source)
    target = carray(_pointer(job[_J_TARGET]), count, np.int32)
    has = carray(_pointer(job[_J_PRESENT]), count if job[_J_PRESENT] != 0 else 0, np.uint8)
    if len(has) == 0:
        low, high = _limits(source)
    else:
        low, high = _limits_of_some(source, has)
    # Where all are absent there is no smallest one, and zeros to write.
    if low > high or (low >= job[_J_LOW] and high <= job[_J_HIGH]):
        null = len(mine) - 1
        for k in range(count):
            if len(has) != 0 and has[k] == 0:
                target[k] = 0
                continue
            # The last cell stands for null.
            stored = np.int64(source[k])
            at = null if stored < 0 else stored
            code = mine[at]
            if code == UNSEEN:
                code = texts
                mine[at] = texts
                named[texts] = at
                texts += 1
            target[k] = code
    job[_J_LOW], job[_J_HIGH], job[_J_TEXTS] = low, high, texts
    return texts


@helper
def _do(source, job, mine, named, texts):  # type: ignore[no-untyped-def]
    """Do one job; returns how many strings the segment names by now."""
    work, count = job[_J_WORK], job[_J_COUNT]
    if work in (_WIDE, _OFFSETS):
        less = np.int64(source[0]) if work == _OFFSETS and count > 0 else np.int64(0)
        target = carray(_pointer(job[_J_TARGET]), count, np.int64)
        job[_J_LOW], job[_J_HIGH] = _widen(source, target, less)
        return texts
    if work == _BYTES:
        small = carray(_pointer(job[_J_TARGET]), count, np.int8)
        job[_J_LOW], job[_J_HIGH] = _widen(source, small, np.int64(0))
        return texts
    return _translate(source, job, mine, named, texts)


@kernel
def fill(jobs, job_count, mine, mine_count, named, had):  # type: ignore[no-untyped-def]
    """Make the arrays of a segment, and its table of strings.

    Args:
        jobs: [job_count] of ``Job``.
        job_count: Arrays to make.
        mine: [mine_count] int32: by code of the file, that of the segment, or UNSEEN; the last
            one is NULL_CODE.
        mine_count: Strings of the file, and one.
        named: [strings] int64: codes of the file that the last segment named; gets those that
            this one names, in the order of their codes in it.
        had: How many the last segment named.

    Returns:
        How many this one names.
    """
    job_array = carray(_pointer(jobs), (job_count, _JOB_CELLS), np.int64)
    codes = carray(_pointer(mine), mine_count, np.int32)
    names = carray(_pointer(named), mine_count, np.int64)
    for k in range(had):
        codes[names[k]] = UNSEEN
    texts = 0
    for number in range(job_count):
        job = job_array[number]
        source, width, count = job[_J_SOURCE], job[_J_WIDTH], job[_J_COUNT]
        if width == 4:
            texts = _do(carray(_pointer(source), count, np.int32), job, codes, names, texts)
        elif width == 2:
            texts = _do(carray(_pointer(source), count, np.int16), job, codes, names, texts)
        elif width == 8:
            texts = _do(carray(_pointer(source), count, np.int64), job, codes, names, texts)
        elif width == 1:
            texts = _do(carray(_pointer(source), count, np.int8), job, codes, names, texts)
        else:
            texts = _do(carray(_pointer(source), count, np.uint8), job, codes, names, texts)
    return texts
