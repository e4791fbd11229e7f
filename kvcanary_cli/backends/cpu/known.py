"""Kernels of incremental verification (``replay.known``): what is left to check, and what changed.

A row's leading cells, up to ``checked[row]``, are *known*: their verdict cannot differ from the
one last found. ``refs[slot]`` counts the known cells that hold a slot, ``mapper[slot]`` is the
newest of them (row * row_len + position); both are fields of the lane's ``records``. All arguments
are addresses and sizes; the table is int32, everything else int64.
"""

from __future__ import annotations

from kvcanary_cli.backends.cpu.event_records import LANE, LINE, place
from kvcanary_cli.backends.cpu.jit import helper, kernel
from kvcanary_cli.backends.cpu.memory import (
    load_i32,
    load_i64,
    load_u8,
    prefetch,
    store_i32,
    store_i64,
    store_u8,
)

_REFS, _MAPPER, _READ = place(LANE, "refs"), place(LANE, "mapper"), place(LANE, "read")
# Cells that a slot is asked for before its turn.
_AHEAD = 12


@helper
def expected_token(pool, pool_width, row, limit, index):  # type: ignore[no-untyped-def]
    """Expected token of history position ``index``, -1 = not compared."""
    if pool_width > 0 and 0 <= index < min(limit, pool_width):
        return load_i64(pool, row * pool_width + index)
    return -1


@helper
def forget_cells(  # type: ignore[no-untyped-def]
    row,
    start,
    table,
    row_len,
    records,
    checked,
    tokens_known,
    limits,
    pool,
    pool_width,
    token_offset,
    keeps_reads,
    row_read,
    read_len,
):
    """Cells of ``row`` from ``start`` on are not known any more."""
    stop = load_i64(checked, row)
    if start >= stop:
        return
    limit = load_i64(limits, row)
    read, read_stop = load_i64(row_read, row), load_i64(read_len, row)
    line = table + row * row_len * 4
    dropped = 0
    for position in range(start, stop):
        ahead = load_i32(line, min(position + _AHEAD, stop - 1))
        prefetch(records + ahead * LINE)
        slot = load_i32(line, position)
        if slot > 0:
            record = records + slot * LINE
            store_i32(record, _REFS, load_i32(record, _REFS) - 1)
            if keeps_reads != 0 and position < read_stop:
                store_i64(record, _READ, max(load_i64(record, _READ), read))
        if (
            start > 0
            and expected_token(pool, pool_width, row, limit, position + token_offset) != -1
        ):
            dropped += 1
    # The pool's row may be another request's by now; then nothing of it is left.
    if start == 0:
        dropped = load_i64(tokens_known, row)
    store_i64(tokens_known, row, load_i64(tokens_known, row) - dropped)
    store_i64(checked, row, start)
    store_i64(read_len, row, min(read_stop, start))


@kernel
def forget_from(  # type: ignore[no-untyped-def]
    row,
    start,
    table,
    row_len,
    records,
    checked,
    tokens_known,
    limits,
    pool,
    pool_width,
    token_offset,
    keeps_reads,
    row_read,
    read_len,
):
    """See ``forget_cells``.

    Args:
        keeps_reads: Whether the records say which event last read each slot; then that is caught up
            for the dropped cells.
        row_read, read_len: [rows] last event that read the leading cells, and how many of them.
    """
    forget_cells(
        row,
        start,
        table,
        row_len,
        records,
        checked,
        tokens_known,
        limits,
        pool,
        pool_width,
        token_offset,
        keeps_reads,
        row_read,
        read_len,
    )
    return 0


@kernel
def forget_slots(  # type: ignore[no-untyped-def]
    count,
    slots,
    num_slots,
    num_rows,
    marks,
    table,
    row_len,
    records,
    checked,
    tokens_known,
    limits,
    pool,
    pool_width,
    token_offset,
    keeps_reads,
    row_read,
    read_len,
):
    """Whatever is known of cells that hold one of ``slots`` [count] is not known any more.

    Args:
        marks: Address of [num_slots] zero bytes, left zero.

    Returns:
        Slots that some known cell held.
    """
    shared = 0
    found = 0
    for k in range(count):
        slot = load_i64(slots, k)
        if slot <= 0 or slot >= num_slots:
            continue
        held = load_i32(records + slot * LINE, _REFS)
        if held == 0:
            continue
        found += 1
        cell = load_i64(records + slot * LINE, _MAPPER)
        row = cell // row_len
        position = cell - row * row_len
        is_newest = position < load_i64(checked, row) and load_i32(table, cell) == slot
        if held == 1 and is_newest:
            forget_cells(
                row,
                position,
                table,
                row_len,
                records,
                checked,
                tokens_known,
                limits,
                pool,
                pool_width,
                token_offset,
                keeps_reads,
                row_read,
                read_len,
            )
        else:
            store_u8(marks, slot, 1)
            shared += 1
    if shared == 0:
        return found
    for row in range(num_rows):
        for position in range(load_i64(checked, row)):
            slot = load_i32(table, row * row_len + position)
            if slot > 0 and load_u8(marks, slot) != 0:
                # The whole row: a prefix that goes slot by slot is then looked for only once.
                forget_cells(
                    row,
                    0,
                    table,
                    row_len,
                    records,
                    checked,
                    tokens_known,
                    limits,
                    pool,
                    pool_width,
                    token_offset,
                    keeps_reads,
                    row_read,
                    read_len,
                )
                break
    for k in range(count):
        slot = load_i64(slots, k)
        if 0 < slot < num_slots:
            store_u8(marks, slot, 0)
    return found


@kernel
def plan_unknown(  # type: ignore[no-untyped-def]
    bs,
    req,
    prefixes,
    num_rows,
    checked,
    table,
    row_len,
    pool,
    pool_width,
    valid_lens,
    token_offset,
    again_offsets,
    again,
    slots,
    tokens,
    positions,
    prevs,
    batch_rows,
    index,
    skipped,
):
    """Entries of a batch that are to be checked: known cells to look at again, then the rest.

    Args:
        valid_lens: [bs], 0 = no token is compared.
        again_offsets: [bs + 1] into ``again``, or 0: none.
        again: Positions of known cells, ascending in each row.
        slots, tokens, positions, prevs: As of a verify plan; ``batch_rows`` and ``index`` say for
            each entry its batch row and its number in the plan of all entries.
        skipped: [3] known cells that are left out, those of them with a token to compare, entries
            of the plan of all entries.

    Returns:
        Entries.
    """
    n = 0
    first = 0
    left_out = 0
    tokens_left_out = 0
    for r in range(bs):
        row = load_i64(req, r)
        prefix = load_i64(prefixes, r)
        if row <= 0 or row >= num_rows or prefix < 0 or prefix > row_len:
            continue
        line = table + row * row_len * 4
        limit = 0
        if valid_lens != 0:
            limit = load_i64(valid_lens, r)
        start = min(load_i64(checked, row), prefix)
        repeats = 0
        at = 0
        if again_offsets != 0:
            at = load_i64(again_offsets, r)
            repeats = load_i64(again_offsets, r + 1) - at
        left_out += start - repeats
        for k in range(repeats + prefix - start):
            position = start + k - repeats
            if k < repeats:
                position = load_i64(again, at + k)
            token = expected_token(pool, pool_width, row, limit, position + token_offset)
            if k < repeats and token != -1:
                tokens_left_out -= 1
            store_i64(slots, n, load_i32(line, position))
            store_i64(tokens, n, token)
            store_i64(positions, n, position)
            prev = -1
            if position > 0:
                prev = load_i32(line, position - 1)
            store_i64(prevs, n, prev)
            store_i64(batch_rows, n, r)
            store_i64(index, n, first + position)
            n += 1
        first += prefix
    store_i64(skipped, 0, left_out)
    store_i64(skipped, 1, tokens_left_out)
    store_i64(skipped, 2, first)
    return n


@kernel
def learn(  # type: ignore[no-untyped-def]
    count,
    req,
    batch_rows,
    slots,
    tokens,
    positions,
    row_len,
    records,
    checked,
    tokens_known,
):
    """Entries of ``plan_unknown`` have been checked: what stands at the end of the known is known.

    Args:
        tokens: Expected tokens as planned.
    """
    for n in range(count):
        row = load_i64(req, load_i64(batch_rows, n))
        position = load_i64(positions, n)
        # Cells that changed since the plan left a gap before this one.
        if position != load_i64(checked, row):
            continue
        slot = load_i64(slots, n)
        if slot > 0:
            line = records + slot * LINE
            store_i32(line, _REFS, load_i32(line, _REFS) + 1)
            store_i64(line, _MAPPER, row * row_len + position)
        if load_i64(tokens, n) != -1:
            store_i64(tokens_known, row, load_i64(tokens_known, row) + 1)
        store_i64(checked, row, position + 1)
    return 0
