"""The kernel that takes a segment's ordinary events in order.

An event is ordinary if nothing about it is unusual and nothing is wrong with it: whatever is not,
the kernel leaves to the general path, with all state as before the event. Forgetting what is known
of a cell is no change of state: it only costs a second look.
"""

from __future__ import annotations

from kvcanary_cli.backends.cpu.event_forward import take_forward
from kvcanary_cli.backends.cpu.event_known import forget_row, forget_slot
from kvcanary_cli.backends.cpu.event_records import HALF_LINE, LANE, LINE, OWNERSHIP, place
from kvcanary_cli.backends.cpu.event_state import Columns, Kind, Request, State, Stop
from kvcanary_cli.backends.cpu.jit import helper, inlined, kernel
from kvcanary_cli.backends.cpu.memory import (
    load_i32,
    load_i64,
    load_u8,
    prefetch,
    store_i32,
    store_i64,
    store_u8,
)

_FREE, _UNKNOWN = 1, 0
# Slots of one event, and events, that are asked for before their turn.
_AHEAD, _EVENTS_AHEAD = 16, 8
_NEVER = -(1 << 63)

_FIELDS = len(Request)
_HISTORY_LEN, _HISTORY_ROW = int(Request.HISTORY_LEN), int(Request.HISTORY_ROW)
_HISTORY_KNOWN, _HISTORY_ENDED = int(Request.HISTORY_KNOWN), int(Request.HISTORY_ENDED)
_GONE, _CODE = int(Request.GONE), int(Request.LEDGER_CODE)

_ALLOC, _MAP, _HISTORY, _FORWARD = (
    int(kind) for kind in (Kind.ALLOC, Kind.MAP, Kind.HISTORY, Kind.FORWARD)
)
_END, _GENERAL, _NAME, _ROOM = (
    int(stop) for stop in (Stop.END, Stop.GENERAL, Stop.NAME, Stop.ROOM)
)

_C_KINDS, _C_INDEX, _C_ROWS = int(Columns.KINDS), int(Columns.INDEX), int(Columns.ROWS)
_C_REQ_OF = int(Columns.REQ_OF)
_C_ALLOC_OWNER = int(Columns.ALLOC_OWNER)
_C_ALLOC_OFFSETS, _C_ALLOC_SLOTS = int(Columns.ALLOC_OFFSETS), int(Columns.ALLOC_SLOTS)
_C_MAP_ROW, _C_MAP_START = int(Columns.MAP_ROW), int(Columns.MAP_START)
_C_MAP_OFFSETS, _C_MAP_SLOTS = int(Columns.MAP_OFFSETS), int(Columns.MAP_SLOTS)
_C_HISTORY_REQ, _C_HISTORY_START = int(Columns.HISTORY_REQ), int(Columns.HISTORY_START)
_C_HISTORY_OFFSETS, _C_HISTORY_IDS = int(Columns.HISTORY_OFFSETS), int(Columns.HISTORY_IDS)

_TABLE, _ROWS, _ROW_LEN, _SLOTS = (
    int(cell) for cell in (State.TABLE, State.ROWS, State.ROW_LEN, State.SLOTS)
)
_RECORDS, _STAMP, _CHECKED = int(State.RECORDS), int(State.STAMP), int(State.CHECKED)
_SLOT_STAMP, _REFS = place(LANE, "stamp"), place(LANE, "refs")
_POOL, _POOL_WIDTH, _REQUESTS = int(State.POOL), int(State.POOL_WIDTH), int(State.REQUESTS)
_HAS_LEDGER, _OWNERSHIP = int(State.HAS_LEDGER), int(State.OWNERSHIP)
_OWNER, _LAST_OWNER = place(OWNERSHIP, "owner"), place(OWNERSHIP, "last_owner")
_SINCE, _ALLOC_EVENT, _BAD_EVENT = (
    place(OWNERSHIP, name) for name in ("since", "alloc_event", "bad_event")
)
_PUBLISHED, _SHARED, _FORKED = (
    place(OWNERSHIP, name) for name in ("published_event", "shared", "forked")
)
_TENANTS = int(State.LEDGER_TENANTS)
_LAST_ALLOCS = int(State.LAST_ALLOCS)
_MAP_HEADS, _MAP_EVENTS, _MAP_CELLS, _MAP_FREE = (
    int(cell) for cell in (State.MAP_HEADS, State.MAP_EVENTS, State.MAP_CELLS, State.MAP_FREE)
)


@helper
def _take_alloc(state, columns, at, event, out):  # type: ignore[no-untyped-def]
    """Slots leave the free list; ``Stop.END`` if that was ordinary, and done."""
    if load_i64(state, _HAS_LEDGER) == 0:
        return _END
    string = load_i32(load_i64(columns, _C_ALLOC_OWNER), at)
    if string < 0:
        return _GENERAL
    req = load_i64(load_i64(columns, _C_REQ_OF), string)
    if req < 0:
        return _GENERAL
    facts = load_i64(state, _REQUESTS) + req * _FIELDS * 8
    if load_i64(facts, _GONE) != 0:
        return _GENERAL
    code = load_i64(facts, _CODE)
    if code < 0:
        store_i64(out, 1, req)
        return _NAME
    offsets = load_i64(columns, _C_ALLOC_OFFSETS)
    slots = load_i64(columns, _C_ALLOC_SLOTS)
    first, stop = load_i64(offsets, at), load_i64(offsets, at + 1)
    owners, records = load_i64(state, _OWNERSHIP), load_i64(state, _RECORDS)
    stamp = load_i64(state, _STAMP) + 1
    store_i64(state, _STAMP, stamp)
    for k in range(first, stop):
        if k + _AHEAD < stop:
            ahead = load_i64(slots, k + _AHEAD)
            prefetch(owners + ahead * LINE)
            prefetch(records + ahead * HALF_LINE)
        slot = load_i64(slots, k)
        line = owners + slot * LINE
        held = load_i32(line, _OWNER)
        if (held != _UNKNOWN and held != _FREE) or load_i64(line, _BAD_EVENT) != _NEVER:
            return _GENERAL
        record = records + slot * HALF_LINE
        if load_i64(record, _SLOT_STAMP) == stamp:
            return _GENERAL
        store_i64(record, _SLOT_STAMP, stamp)
        if load_i32(record, _REFS) != 0 and not forget_slot(state, slot):
            return _GENERAL
    store_i64(load_i64(state, _LAST_ALLOCS), code, event)
    for k in range(first, stop):
        line = owners + load_i64(slots, k) * LINE
        store_i32(line, _LAST_OWNER, load_i32(line, _OWNER))
        store_i32(line, _OWNER, code)
        store_i64(line, _SINCE, event)
        store_i64(line, _ALLOC_EVENT, event)
        store_i64(line, _PUBLISHED, _NEVER)
        store_u8(line, _SHARED, 0)
        store_u8(line, _FORKED, 0)
    return _END


@helper
def _note_map(state, row, start, stop, owner, event):  # type: ignore[no-untyped-def]
    """Enter a map event in the ledger's list of its row; False if there is no room."""
    heads, events = load_i64(state, _MAP_HEADS), load_i64(state, _MAP_EVENTS)
    cells = load_i64(state, _MAP_CELLS)
    node = load_i64(heads, row)
    # Those that this one covers are dropped: they make room.
    free = load_i64(state, _MAP_FREE)
    while (
        node >= 0 and start <= load_i32(cells, node * 4) and stop >= load_i32(cells, node * 4 + 1)
    ):
        below = load_i32(cells, node * 4 + 3)
        store_i32(cells, node * 4 + 3, free)
        free = node
        node = below
    store_i64(heads, row, node)
    store_i64(state, _MAP_FREE, free)
    if free < 0:
        return False
    store_i64(state, _MAP_FREE, load_i32(cells, free * 4 + 3))
    store_i64(events, free, event)
    store_i32(cells, free * 4, start)
    store_i32(cells, free * 4 + 1, stop)
    store_i32(cells, free * 4 + 2, owner)
    store_i32(cells, free * 4 + 3, node)
    store_i64(heads, row, free)
    return True


@helper
def _take_map(state, columns, at, event):  # type: ignore[no-untyped-def]
    """Cells of the request table are set."""
    row = load_i64(load_i64(columns, _C_MAP_ROW), at)
    start = load_i64(load_i64(columns, _C_MAP_START), at)
    offsets = load_i64(columns, _C_MAP_OFFSETS)
    first, stop = load_i64(offsets, at), load_i64(offsets, at + 1)
    row_len = load_i64(state, _ROW_LEN)
    count = stop - first
    if row < 0 or row >= load_i64(state, _ROWS) or start < 0 or start + count > row_len:
        return _GENERAL
    slots = load_i64(columns, _C_MAP_SLOTS) + first * 8
    line = load_i64(state, _TABLE) + row * row_len * 4
    if load_i64(state, _HAS_LEDGER) != 0:
        if count == 0 or load_i64(load_i64(state, _TENANTS), row) == -2:
            return _GENERAL
        last = load_i64(slots, count - 1)
        owner = load_i32(load_i64(state, _OWNERSHIP) + last * LINE, _OWNER)
        if load_i64(state, _MAP_FREE) < 0:
            return _ROOM
        if not _note_map(state, row, start, start + count, owner, event):
            return _ROOM
    known = min(load_i64(load_i64(state, _CHECKED), row) - start, count)
    for k in range(known):
        if load_i32(line, start + k) != load_i64(slots, k):
            forget_row(state, row, start + k)
            break
    for k in range(count):
        store_i32(line, start + k, load_i64(slots, k))
    return _END


@helper
def _take_history(state, columns, at):  # type: ignore[no-untyped-def]
    """True tokens of a request whose history stands in the pool."""
    pool = load_i64(state, _POOL)
    if pool == 0:
        return _END
    string = load_i32(load_i64(columns, _C_HISTORY_REQ), at)
    start = load_i64(load_i64(columns, _C_HISTORY_START), at)
    if string < 0 or start < 0:
        return _GENERAL
    req = load_i64(load_i64(columns, _C_REQ_OF), string)
    if req < 0:
        return _GENERAL
    facts = load_i64(state, _REQUESTS) + req * _FIELDS * 8
    if load_i64(facts, _HISTORY_KNOWN) == 0 or load_i64(facts, _HISTORY_ENDED) != 0:
        return _GENERAL
    row, length = load_i64(facts, _HISTORY_ROW), load_i64(facts, _HISTORY_LEN)
    offsets = load_i64(columns, _C_HISTORY_OFFSETS)
    first, stop = load_i64(offsets, at), load_i64(offsets, at + 1)
    end = start + stop - first
    width = load_i64(state, _POOL_WIDTH)
    if row < 0 or start > length or end > width or end <= start:
        return _GENERAL
    ids = load_i64(columns, _C_HISTORY_IDS) + first * 8
    line = pool + row * width * 8
    if start < load_i64(load_i64(state, _CHECKED), row):
        # Some known cell may have been checked with another token, or with none.
        for position in range(start, end):
            before = -1
            if position < length:
                before = load_i64(line, position)
            if before != load_i64(ids, position - start):
                forget_row(state, row, position)
                break
    for position in range(start, end):
        store_i64(line, position, load_i64(ids, position - start))
    store_i64(facts, _HISTORY_LEN, max(length, end))
    return _END


@inlined
def _ask_for(state, columns, kind, at):  # type: ignore[no-untyped-def]
    """Ask for the lines that an event will touch first."""
    if kind == _ALLOC:
        offsets = load_i64(columns, _C_ALLOC_OFFSETS)
        first = load_i64(offsets, at)
        if load_i64(state, _HAS_LEDGER) != 0 and first < load_i64(offsets, at + 1):
            slot = load_i64(load_i64(columns, _C_ALLOC_SLOTS), first)
            prefetch(load_i64(state, _OWNERSHIP) + slot * LINE)
            prefetch(load_i64(state, _RECORDS) + slot * HALF_LINE)
    elif kind == _MAP:
        row = load_i64(load_i64(columns, _C_MAP_ROW), at)
        start = load_i64(load_i64(columns, _C_MAP_START), at)
        prefetch(load_i64(state, _TABLE) + (row * load_i64(state, _ROW_LEN) + start) * 4)
    elif kind == _HISTORY:
        string = load_i32(load_i64(columns, _C_HISTORY_REQ), at)
        req = load_i64(load_i64(columns, _C_REQ_OF), max(string, 0))
        if load_i64(state, _POOL) != 0 and req >= 0:
            row = load_i64(load_i64(state, _REQUESTS) + req * _FIELDS * 8, _HISTORY_ROW)
            start = load_i64(load_i64(columns, _C_HISTORY_START), at)
            prefetch(load_i64(state, _POOL) + (row * load_i64(state, _POOL_WIDTH) + start) * 8)


@kernel
def take_events(state, columns, k, stop, out):  # type: ignore[no-untyped-def]
    """Take the events [k, stop) as far as they are ordinary.

    Args:
        state: Address of a block of ``State``.
        columns: Address of a block of ``Columns``.
        k, stop: Events of the segment.
        out: Address of [3]: why it stopped (``Stop``), and for what.

    Returns:
        The first event that was not taken.
    """
    kinds, index = load_i64(columns, _C_KINDS), load_i64(columns, _C_INDEX)
    rows = load_i64(columns, _C_ROWS)
    while k < stop:
        kind = load_u8(kinds, k)
        at = load_i32(rows, k)
        if k + _EVENTS_AHEAD < stop and load_u8(kinds, k + _EVENTS_AHEAD) == kind:
            _ask_for(state, columns, kind, load_i32(rows, k + _EVENTS_AHEAD))
        why = _GENERAL
        if kind == _ALLOC:
            why = _take_alloc(state, columns, at, load_i64(index, k), out)
        elif kind == _MAP:
            why = _take_map(state, columns, at, load_i64(index, k))
        elif kind == _HISTORY:
            why = _take_history(state, columns, at)
        elif kind == _FORWARD:
            why = take_forward(state, columns, at, load_i64(index, k), out)
        if why != _END:
            store_i64(out, 0, why)
            return k
        k += 1
    store_i64(out, 0, _END)
    return k
