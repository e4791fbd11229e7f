"""Helper of the event kernel: the rows of a batch are looked at before any of them is taken."""

from __future__ import annotations

from kvcanary_cli.abi.constants import NO_EXPECTED_TOKEN
from kvcanary_cli.backends.cpu.event_histories import bind_history
from kvcanary_cli.backends.cpu.event_known import forget_row, forget_slot
from kvcanary_cli.backends.cpu.event_names import code_of, facts_of
from kvcanary_cli.backends.cpu.event_records import (
    FREE,
    LANE,
    LINE,
    OWNERSHIP,
    place,
)
from kvcanary_cli.backends.cpu.event_requests import note_tenant
from kvcanary_cli.backends.cpu.event_state import NO_ROW, Columns, Request, State, Stop
from kvcanary_cli.backends.cpu.jit import constants, inlined
from kvcanary_cli.backends.cpu.known import expected_token
from kvcanary_cli.backends.cpu.memory import load_i32, load_i64, prefetch, store_i32, store_i64

# Tokens of a row that are asked for before their turn.
_AHEAD = 16

_HISTORY_LEN, _HISTORY_ROW = int(Request.HISTORY_LEN), int(Request.HISTORY_ROW)
_HISTORY_KNOWN = int(Request.HISTORY_KNOWN)

_END, _GENERAL, _TENANT = int(Stop.END), int(Stop.GENERAL), int(Stop.TENANT)

_C_IDS, _C_POSITIONS, _C_LOCS = constants(Columns.IDS, Columns.POSITIONS, Columns.LOCS)

_TABLE, _ROWS, _ROW_LEN, _ROW_STAMPS = constants(
    State.TABLE, State.ROWS, State.ROW_LEN, State.ROW_STAMPS
)
_CANARY, _SLOTS, _RECORDS = constants(State.CANARY, State.SLOTS, State.RECORDS)
_CHECKED, _LIMITS, _AGAIN, _TENANTS = constants(
    State.CHECKED, State.LIMITS, State.AGAIN, State.TENANTS
)
_POOL, _POOL_WIDTH = int(State.POOL), int(State.POOL_WIDTH)
_HAS_LEDGER, _WRITES = constants(State.HAS_LEDGER, State.WRITES)
_LEDGER_TENANTS, _SURE = int(State.LEDGER_TENANTS), int(State.SURE)
_OWNER, _LAST_OWNER = place(OWNERSHIP, "owner"), place(OWNERSHIP, "last_owner")
_STAMP, _REFS = place(LANE, "stamp"), place(LANE, "refs")


@inlined
def ask_for_row(state, row, position, slot):  # type: ignore[no-untyped-def]
    """Ask for the lines that writing ``slot`` at ``position`` of ``row`` will touch."""
    prefetch(load_i64(state, _RECORDS) + slot * LINE)
    prefetch(load_i64(state, _CANARY) + slot * LINE)
    if load_i64(state, _HAS_LEDGER) != 0:
        prefetch(load_i64(state, _WRITES) + slot * LINE)
    prefetch(load_i64(state, _TABLE) + (row * load_i64(state, _ROW_LEN) + position - 1) * 4)
    pool = load_i64(state, _POOL)
    if pool != 0:
        prefetch(pool + (row * load_i64(state, _POOL_WIDTH) + position) * 8)


@inlined
def _look_at_tokens(state, row, prefix, extend, first, columns, limit, writer, stamp):  # type: ignore[no-untyped-def]
    """How many of a row's first tokens need no look when they are read; -1 = not to be taken.

    Such a token stands in its cell, was compared with the history if there is one, and its slot is
    the writer's own: as long as nothing changes its verdict can only be that it is right.
    """
    num_slots = load_i64(state, _SLOTS)
    ids = load_i64(columns, _C_IDS) + first * 8
    positions = load_i64(columns, _C_POSITIONS) + first * 8
    locs = load_i64(columns, _C_LOCS) + first * 8
    records = load_i64(state, _RECORDS)
    cells = load_i64(state, _TABLE) + (row * load_i64(state, _ROW_LEN) + prefix) * 4
    pool, width = load_i64(state, _POOL), load_i64(state, _POOL_WIDTH)
    has_ledger = load_i64(state, _HAS_LEDGER) != 0
    sure = 0
    for i in range(extend):
        if i + _AHEAD < extend:
            prefetch(records + load_i64(locs, i + _AHEAD) * LINE)
        slot = load_i64(locs, i)
        if slot <= 0 or slot >= num_slots or load_i64(positions, i) != prefix + i:
            return -1
        record = records + slot * LINE
        if load_i32(record, _STAMP) == stamp:
            return -1
        store_i32(record, _STAMP, stamp)
        if load_i32(record, _REFS) != 0 and not forget_slot(state, slot):
            return -1
        token = expected_token(pool, width, row, limit, prefix + i)
        if token != NO_EXPECTED_TOKEN and token != load_i64(ids, i):
            return -1
        is_sure = load_i32(cells, i) == slot and (token != NO_EXPECTED_TOKEN or limit == 0)
        if has_ledger:
            owner = load_i32(record, _OWNER)
            if owner > FREE and owner != writer:
                return -1
            if owner == FREE:
                if load_i32(record, _LAST_OWNER) != writer:
                    return -1
                is_sure = False
        if is_sure and sure == i:
            sure += 1
    return sure


@inlined
def prepare_row(state, row, req, prefix, extend, first, columns, stamp, event, out):  # type: ignore[no-untyped-def]
    """Look at one row of the batch; ``Stop.END`` if it may be taken.

    Args:
        first: Its first token among the segment's.
    """
    if row < 0 or row >= load_i64(state, _ROWS):
        return _GENERAL
    row_stamps = load_i64(state, _ROW_STAMPS)
    if load_i64(row_stamps, row) == stamp:
        return _GENERAL
    store_i64(row_stamps, row, stamp)
    if extend < 1 or prefix < 0 or prefix + extend > load_i64(state, _ROW_LEN):
        return _GENERAL
    facts = facts_of(state, req)
    limit = 0
    if load_i64(state, _POOL) != 0 and load_i64(facts, _HISTORY_KNOWN) != 0:
        if load_i64(facts, _HISTORY_ROW) != row:
            why = bind_history(state, row, req, out)
            if why != _END:
                return why
        limit = load_i64(facts, _HISTORY_LEN)
    code = -1
    if load_i64(state, _HAS_LEDGER) != 0:
        code = code_of(state, req)
        tenant = load_i64(load_i64(state, _LEDGER_TENANTS), row)
        if tenant == NO_ROW:
            store_i64(out, 1, row)
            store_i64(out, 2, req)
            return _TENANT
        if tenant != code:
            note_tenant(state, row, code, event)
    if load_i64(load_i64(state, _AGAIN), row) != 0:
        return _GENERAL
    tenants, limits = load_i64(state, _TENANTS), load_i64(state, _LIMITS)
    keep = prefix
    if load_i64(tenants, row) != req or limit < load_i64(limits, row):
        store_i64(tenants, row, req)
        keep = 0
    if keep < load_i64(load_i64(state, _CHECKED), row):
        forget_row(state, row, keep)
    store_i64(limits, row, limit)
    sure = _look_at_tokens(state, row, prefix, extend, first, columns, limit, code, stamp)
    store_i64(load_i64(state, _SURE), row, sure)
    return _GENERAL if sure < 0 else _END
