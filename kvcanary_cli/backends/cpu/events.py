"""The kernel that takes a segment's ordinary events in order.

An event is ordinary if nothing about it is unusual and nothing is wrong with it: whatever is not,
the kernel leaves to the general path, with all state as before the event. Forgetting what is known
of a cell is no change of state: it only costs a second look.
"""

from __future__ import annotations

from kvcanary_cli.backends.cpu.event_ahead import EVENTS_AHEAD, ask_for_event
from kvcanary_cli.backends.cpu.event_forward import take_forward
from kvcanary_cli.backends.cpu.event_histories import take_history
from kvcanary_cli.backends.cpu.event_known import forget_row
from kvcanary_cli.backends.cpu.event_owners import (
    take_alloc,
    take_free,
    take_match,
    take_own,
    take_publish,
)
from kvcanary_cli.backends.cpu.event_prefixes import hide_entry
from kvcanary_cli.backends.cpu.event_records import LINE, OWNERSHIP, place
from kvcanary_cli.backends.cpu.event_requests import take_end, take_release, take_retract
from kvcanary_cli.backends.cpu.event_state import NO_ROW, Columns, Kind, State, Stop
from kvcanary_cli.backends.cpu.jit import constants, helper, kernel
from kvcanary_cli.backends.cpu.map_events import note_map
from kvcanary_cli.backends.cpu.memory import load_i32, load_i64, load_u8, store_i32, store_i64

_ALLOC, _MAP, _HISTORY, _FORWARD = constants(Kind.ALLOC, Kind.MAP, Kind.HISTORY, Kind.FORWARD)
_OWN, _FREE, _PUBLISH, _UNPUBLISH, _MATCH = constants(
    Kind.OWN, Kind.FREE, Kind.PUBLISH, Kind.UNPUBLISH, Kind.MATCH
)
_FINISH, _ABORT, _RETRACT, _ROW_RELEASE = constants(
    Kind.FINISH, Kind.ABORT, Kind.RETRACT, Kind.ROW_RELEASE
)
_END, _GENERAL, _ROOM = int(Stop.END), int(Stop.GENERAL), int(Stop.ROOM)

_C_KINDS, _C_INDEX, _C_ROWS = int(Columns.KINDS), int(Columns.INDEX), int(Columns.ROWS)
_C_MAP_ROW, _C_MAP_START = int(Columns.MAP_ROW), int(Columns.MAP_START)
_C_MAP_OFFSETS, _C_MAP_SLOTS = int(Columns.MAP_OFFSETS), int(Columns.MAP_SLOTS)
_C_FINISH_REQ, _C_ABORT_REQ = int(Columns.FINISH_REQ), int(Columns.ABORT_REQ)
_C_UNPUBLISH_ENTRY, _C_ENTRY_OF = int(Columns.UNPUBLISH_ENTRY), int(Columns.ENTRY_OF)

_TABLE, _ROWS, _ROW_LEN, _CHECKED = constants(State.TABLE, State.ROWS, State.ROW_LEN, State.CHECKED)
_HAS_LEDGER, _RECORDS, _WATCHES_ENTRIES = constants(
    State.HAS_LEDGER, State.RECORDS, State.WATCHES_ENTRIES
)
_OWNER = place(OWNERSHIP, "owner")
_TENANTS = int(State.LEDGER_TENANTS)


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
        if count == 0 or load_i64(load_i64(state, _TENANTS), row) == NO_ROW:
            return _GENERAL
        last = load_i64(slots, count - 1)
        owner = load_i32(load_i64(state, _RECORDS) + last * LINE, _OWNER)
        if not note_map(state, row, start, start + count, owner, event):
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
def _take_unpublish(state, columns, at):  # type: ignore[no-untyped-def]
    """A prefix entry is not visible any more."""
    entry = load_i32(load_i64(columns, _C_UNPUBLISH_ENTRY), at)
    if entry < 0 or load_i64(state, _WATCHES_ENTRIES) != 0:
        return _GENERAL
    hide_entry(state, load_i64(load_i64(columns, _C_ENTRY_OF), entry))
    return _END


@helper
def _take_rarer(state, columns, kind, at, event, out):  # type: ignore[no-untyped-def]
    """An event of a request's beginning or end."""
    why = _GENERAL
    if kind == _OWN:
        why = take_own(state, columns, at, event, out)
    elif kind == _FREE:
        why = take_free(state, columns, at, event)
    elif kind == _PUBLISH:
        why = take_publish(state, columns, at, event, out)
    elif kind == _UNPUBLISH:
        why = _take_unpublish(state, columns, at)
    elif kind == _MATCH:
        why = take_match(state, columns, at, event)
    elif kind == _FINISH:
        why = take_end(state, columns, at, event, _C_FINISH_REQ)
    elif kind == _ABORT:
        why = take_end(state, columns, at, event, _C_ABORT_REQ)
    elif kind == _RETRACT:
        why = take_retract(state, columns, at)
    elif kind == _ROW_RELEASE:
        why = take_release(state, columns, at, event)
    return why


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
        if k + EVENTS_AHEAD < stop and load_u8(kinds, k + EVENTS_AHEAD) == kind:
            ask_for_event(state, columns, kind, load_i32(rows, k + EVENTS_AHEAD))
        why = _GENERAL
        if kind == _ALLOC:
            why = take_alloc(state, columns, at, load_i64(index, k))
        elif kind == _MAP:
            why = _take_map(state, columns, at, load_i64(index, k))
        elif kind == _HISTORY:
            why = take_history(state, columns, at, out)
        elif kind == _FORWARD:
            why = take_forward(state, columns, at, load_i64(index, k), out)
        else:
            why = _take_rarer(state, columns, kind, at, load_i64(index, k), out)
        if why != _END:
            store_i64(out, 0, why)
            return k
        k += 1
    store_i64(out, 0, _END)
    return k
