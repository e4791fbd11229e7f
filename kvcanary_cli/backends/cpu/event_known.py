"""Helpers of the event kernel: what is known of cells (``replay.known``)."""

from __future__ import annotations

from kvcanary_cli.abi.constants import NO_EXPECTED_TOKEN
from kvcanary_cli.backends.cpu.event_records import LANE, LINE, place
from kvcanary_cli.backends.cpu.event_state import State
from kvcanary_cli.backends.cpu.jit import helper, inlined
from kvcanary_cli.backends.cpu.known import expected_token, forget_cells
from kvcanary_cli.backends.cpu.memory import load_i32, load_i64, store_i32, store_i64

_TABLE, _ROW_LEN = int(State.TABLE), int(State.ROW_LEN)
_RECORDS, _CHECKED = int(State.RECORDS), int(State.CHECKED)
_REFS, _MAPPER = place(LANE, "refs"), place(LANE, "mapper")
_TOKENS_KNOWN, _LIMITS = int(State.TOKENS_KNOWN), int(State.LIMITS)
_POOL, _POOL_WIDTH = int(State.POOL), int(State.POOL_WIDTH)
_KEEPS_READS, _ROW_READ = int(State.KEEPS_READS), int(State.ROW_READ)
_READ_LEN = int(State.READ_LEN)


@helper
def forget_row(state, row, position):  # type: ignore[no-untyped-def]
    """Cells of ``row`` from ``position`` on must be checked again."""
    if position < load_i64(load_i64(state, _CHECKED), row):
        forget_cells(
            row,
            position,
            load_i64(state, _TABLE),
            load_i64(state, _ROW_LEN),
            load_i64(state, _RECORDS),
            load_i64(state, _CHECKED),
            load_i64(state, _TOKENS_KNOWN),
            load_i64(state, _LIMITS),
            load_i64(state, _POOL),
            load_i64(state, _POOL_WIDTH),
            0,
            load_i64(state, _KEEPS_READS),
            load_i64(state, _ROW_READ),
            load_i64(state, _READ_LEN),
        )


@helper
def forget_slot(state, slot):  # type: ignore[no-untyped-def]
    """The known cell that holds ``slot`` must be checked again; False if there are several."""
    record = load_i64(state, _RECORDS) + slot * LINE
    if load_i32(record, _REFS) != 1:
        return False
    row_len = load_i64(state, _ROW_LEN)
    cell = load_i64(record, _MAPPER)
    row = cell // row_len
    position = cell - row * row_len
    if position >= load_i64(load_i64(state, _CHECKED), row):
        return False
    if load_i32(load_i64(state, _TABLE), cell) != slot:
        return False
    forget_row(state, row, position)
    return True


@inlined
def learn_reads(state, row, prefix, event):  # type: ignore[no-untyped-def]
    """All cells of ``row`` up to ``prefix`` are known now; those with a token to compare."""
    row_len = load_i64(state, _ROW_LEN)
    line = load_i64(state, _TABLE) + row * row_len * 4
    records = load_i64(state, _RECORDS)
    checked, tokens_known = load_i64(state, _CHECKED), load_i64(state, _TOKENS_KNOWN)
    pool, width = load_i64(state, _POOL), load_i64(state, _POOL_WIDTH)
    limit = load_i64(load_i64(state, _LIMITS), row)
    tokens = load_i64(tokens_known, row)
    start = load_i64(checked, row)
    for position in range(start, prefix):
        record = records + load_i32(line, position) * LINE
        store_i32(record, _REFS, load_i32(record, _REFS) + 1)
        store_i64(record, _MAPPER, row * row_len + position)
        if expected_token(pool, width, row, limit, position) != NO_EXPECTED_TOKEN:
            tokens += 1
    if start < prefix:
        store_i64(checked, row, prefix)
        store_i64(tokens_known, row, tokens)
    store_i64(load_i64(state, _ROW_READ), row, event)
    store_i64(load_i64(state, _READ_LEN), row, prefix)
    return tokens


@inlined
def learn_writes(state, row, prefix, slots, count):  # type: ignore[no-untyped-def]
    """The cells behind ``prefix`` have been written and need no look.

    Args:
        slots: Address of their slots.
        count: How many they are.
    """
    if count == 0:
        return
    records = load_i64(state, _RECORDS)
    cell = row * load_i64(state, _ROW_LEN) + prefix
    for i in range(count):
        record = records + load_i64(slots, i) * LINE
        store_i32(record, _REFS, load_i32(record, _REFS) + 1)
        store_i64(record, _MAPPER, cell + i)
    store_i64(load_i64(state, _CHECKED), row, prefix + count)
    if load_i64(load_i64(state, _LIMITS), row) != 0:
        tokens_known = load_i64(state, _TOKENS_KNOWN)
        store_i64(tokens_known, row, load_i64(tokens_known, row) + count)
