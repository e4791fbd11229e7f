"""Helper of the event kernel: the canary rows and the ledger's writers of a row's tokens."""

from __future__ import annotations

from kvcanary_cli.abi.constants import SLOT_BYTES
from kvcanary_cli.backends.cpu.event_records import (
    BY_FORWARD,
    LANE,
    LINE,
    NEVER,
    WRITES,
    place,
)
from kvcanary_cli.backends.cpu.event_state import Columns, State
from kvcanary_cli.backends.cpu.hashes import as_int64, chain_step, slot_hash
from kvcanary_cli.backends.cpu.jit import constants, inlined
from kvcanary_cli.backends.cpu.memory import (
    load_i32,
    load_i64,
    prefetch,
    store_i32,
    store_i64,
    store_u8,
)

# Tokens of a row that are asked for before their turn.
_AHEAD = 12

_C_IDS, _C_POSITIONS, _C_LOCS = constants(Columns.IDS, Columns.POSITIONS, Columns.LOCS)
_CANARY, _RECORDS, _SERIAL = constants(State.CANARY, State.RECORDS, State.SERIAL)
_HAS_LEDGER, _WRITES = int(State.HAS_LEDGER), int(State.WRITES)
_WRITTEN_AT = place(LANE, "written_at")
_REQ, _STEP, _EVENT, _KIND = (place(WRITES, name) for name in ("req", "step", "event", "kind"))
_POSITION, _TRUE_POSITION, _BATCH_ROW = (
    place(WRITES, name) for name in ("position", "true_position", "batch_row")
)
_NAMESPACE, _FOREIGN, _MOVED = (
    place(WRITES, name) for name in ("namespace", "foreign", "moved_event")
)
_BEFORE_REQ, _BEFORE_STEP, _BEFORE_EVENT = (
    place(WRITES, name) for name in ("before_req", "before_step", "before_event")
)


@inlined
def _write_canary(line, token, position, chain):  # type: ignore[no-untyped-def]
    """Fill the canary row at address ``line``, without fingerprint."""
    store_i64(line, 0, token)
    store_i64(line, 1, position)
    store_i64(line, 2, as_int64(chain))
    store_i64(line, 3, 0)


@inlined
def _note_write(line, code, step, event, batch_row, position):  # type: ignore[no-untyped-def]
    """Enter a write in the ledger's record at address ``line``; it stands in its right place."""
    store_i32(line, _BEFORE_REQ, load_i32(line, _REQ))
    store_i32(line, _BEFORE_STEP, load_i32(line, _STEP))
    store_i64(line, _BEFORE_EVENT, load_i64(line, _EVENT))
    store_i32(line, _REQ, code)
    store_i32(line, _STEP, step)
    store_i64(line, _EVENT, event)
    store_u8(line, _KIND, BY_FORWARD)
    store_i32(line, _POSITION, position)
    store_i32(line, _TRUE_POSITION, position)
    store_i32(line, _BATCH_ROW, batch_row)
    store_i32(line, _NAMESPACE, 0)
    store_u8(line, _FOREIGN, 0)
    store_i64(line, _MOVED, NEVER)


@inlined
def write_row(state, columns, first, extend, seed, code, step, event, batch_row):  # type: ignore[no-untyped-def]
    """Write the tokens of one batch row behind slot ``seed`` (-1 = head), by request ``code``."""
    canary = load_i64(state, _CANARY)
    records, serial = load_i64(state, _RECORDS), load_i64(state, _SERIAL)
    has_ledger, writes = load_i64(state, _HAS_LEDGER) != 0, load_i64(state, _WRITES)
    ids = load_i64(columns, _C_IDS) + first * 8
    positions = load_i64(columns, _C_POSITIONS) + first * 8
    locs = load_i64(columns, _C_LOCS) + first * 8
    head_hash = slot_hash(canary + seed * LINE, seed < 0)
    tail_hash = slot_hash(canary + seed * LINE + SLOT_BYTES, seed < 0)
    for i in range(extend):
        if i + _AHEAD < extend:
            ahead = load_i64(locs, i + _AHEAD)
            prefetch(canary + ahead * LINE)
            prefetch(records + ahead * LINE)
            if has_ledger:
                prefetch(writes + ahead * LINE)
        slot, token, position = load_i64(locs, i), load_i64(ids, i), load_i64(positions, i)
        _write_canary(canary + slot * LINE, token, position, head_hash)
        _write_canary(canary + slot * LINE + SLOT_BYTES, token, position, tail_hash)
        store_i32(records + slot * LINE, _WRITTEN_AT, serial)
        if has_ledger:
            _note_write(writes + slot * LINE, code, step, event, batch_row, position)
        if i + 1 < extend:
            same = head_hash == tail_hash
            head_hash = chain_step(head_hash, token, position)
            tail_hash = head_hash if same else chain_step(tail_hash, token, position)
