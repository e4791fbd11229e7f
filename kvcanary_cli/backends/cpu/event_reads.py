"""Helper of the event kernel: the cells that a row reads and that are not known yet."""

from __future__ import annotations

from kvcanary_cli.abi.constants import NO_EXPECTED_TOKEN, SLOT_BYTES
from kvcanary_cli.backends.cpu.event_records import (
    FREE,
    LANE,
    LINE,
    NEVER,
    OWNERSHIP,
    TREE,
    UNKNOWN,
    WRITES,
    place,
)
from kvcanary_cli.backends.cpu.event_state import State
from kvcanary_cli.backends.cpu.hashes import as_int64, slot_hash
from kvcanary_cli.backends.cpu.jit import constants, inlined
from kvcanary_cli.backends.cpu.known import expected_token
from kvcanary_cli.backends.cpu.memory import load_i32, load_i64, load_u8, prefetch

# Cells of a row that are asked for before their turn.
_AHEAD = 12

_TABLE, _ROW_LEN, _LIMITS = int(State.TABLE), int(State.ROW_LEN), int(State.LIMITS)
_CANARY, _SLOTS, _RECORDS = constants(State.CANARY, State.SLOTS, State.RECORDS)
_POOL, _POOL_WIDTH = int(State.POOL), int(State.POOL_WIDTH)
_HAS_LEDGER, _WRITES = constants(State.HAS_LEDGER, State.WRITES)
_STAMP = place(LANE, "stamp")
_OWNER, _SHARED = place(OWNERSHIP, "owner"), place(OWNERSHIP, "shared")
_ALLOC_EVENT, _PADDED = place(OWNERSHIP, "alloc_event"), place(OWNERSHIP, "padded")
_WRITE_EVENT, _MOVED_EVENT = place(WRITES, "event"), place(WRITES, "moved_event")


@inlined
def ask_for_cell(state, row, position):  # type: ignore[no-untyped-def]
    """Ask for the lines that checking the cell at ``position`` >= 0 of ``row`` will touch."""
    canary = load_i64(state, _CANARY)
    cell = load_i64(state, _TABLE) + (row * load_i64(state, _ROW_LEN) + position) * 4
    slot = load_i32(cell, 0)
    prefetch(canary + slot * LINE)
    prefetch(load_i64(state, _RECORDS) + slot * LINE)
    if load_i64(state, _HAS_LEDGER) != 0:
        prefetch(load_i64(state, _WRITES) + slot * LINE)
    if position > 0:
        prev = load_i32(cell, -1)
        prefetch(canary + prev * LINE)


@inlined
def _reads_well(owned, written, reader):  # type: ignore[no-untyped-def]
    """Whether ``reader`` may read a slot, and its content is newer than the slot and no padding's.

    Args:
        owned, written: Its records.
    """
    owner = load_i32(owned, _OWNER)
    if owner == FREE or load_u8(owned, _PADDED) != 0:
        return False
    if owner > TREE and owner != reader and load_u8(owned, _SHARED) == 0:
        return False
    allocated = load_i64(owned, _ALLOC_EVENT)
    if allocated != NEVER and owner != UNKNOWN:
        return max(load_i64(written, _WRITE_EVENT), load_i64(written, _MOVED_EVENT)) >= allocated
    return True


@inlined
def _is_right(row, position, token, wanted_hash):  # type: ignore[no-untyped-def]
    """Whether a canary row at address ``row`` without fingerprint is what is wanted."""
    wrong = load_i64(row, 1) ^ position
    wrong |= load_i64(row, 2) ^ wanted_hash
    wrong |= load_i64(row, 3)
    if token != NO_EXPECTED_TOKEN:
        wrong |= load_i64(row, 0) ^ token
    return wrong == 0


@inlined
def _follow_same(head, tail):  # type: ignore[no-untyped-def]
    """Whether two canary rows hash to the same, as they do unless something went wrong."""
    differs = load_i64(head, 0) ^ load_i64(tail, 0)
    differs |= load_i64(head, 1) ^ load_i64(tail, 1)
    differs |= load_i64(head, 2) ^ load_i64(tail, 2)
    return differs == 0


@inlined
def cells_are_right(state, row, start, stop, reader, stamp):  # type: ignore[no-untyped-def]
    """Whether cells [start, stop) of ``row`` verify, and ``reader`` may read them.

    A known cell is not written by this forward: that would have taken the knowledge.
    """
    if start >= stop:
        return True
    num_slots = load_i64(state, _SLOTS)
    canary = load_i64(state, _CANARY)
    records = load_i64(state, _RECORDS)
    pool, width = load_i64(state, _POOL), load_i64(state, _POOL_WIDTH)
    limit = load_i64(load_i64(state, _LIMITS), row)
    has_ledger = load_i64(state, _HAS_LEDGER) != 0
    writes = load_i64(state, _WRITES)
    line = load_i64(state, _TABLE) + row * load_i64(state, _ROW_LEN) * 4
    prev = -1
    if start > 0:
        prev = load_i32(line, start - 1)
        if prev <= 0 or prev >= num_slots:
            return False
    for position in range(start, stop):
        if position + _AHEAD < stop:
            ahead = load_i32(line, position + _AHEAD)
            prefetch(canary + ahead * LINE)
            prefetch(records + ahead * LINE)
            if has_ledger:
                prefetch(writes + ahead * LINE)
        slot = load_i32(line, position)
        if slot <= 0 or slot >= num_slots:
            return False
        record, head = records + slot * LINE, canary + slot * LINE
        if load_i32(record, _STAMP) == stamp:
            return False
        token = expected_token(pool, width, row, limit, position)
        before = canary + prev * LINE
        wanted = as_int64(slot_hash(before, prev < 0))
        if not _is_right(head, position, token, wanted):
            return False
        if prev >= 0 and not _follow_same(before, before + SLOT_BYTES):
            wanted = as_int64(slot_hash(before + SLOT_BYTES, False))
        if not _is_right(head + SLOT_BYTES, position, token, wanted):
            return False
        if has_ledger and not _reads_well(record, writes + slot * LINE, reader):
            return False
        prev = slot
    return True
