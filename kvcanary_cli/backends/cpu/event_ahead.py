"""Helper of the event kernel: the memory of events to come is asked for before their turn."""

from __future__ import annotations

from kvcanary_cli.backends.cpu.event_records import LINE
from kvcanary_cli.backends.cpu.event_state import Columns, Kind, Request, State
from kvcanary_cli.backends.cpu.jit import constants, inlined
from kvcanary_cli.backends.cpu.map_events import ask_for_run
from kvcanary_cli.backends.cpu.memory import load_i32, load_i64, prefetch

#: How many events before.
EVENTS_AHEAD = 16

_ALLOC, _MAP, _HISTORY = int(Kind.ALLOC), int(Kind.MAP), int(Kind.HISTORY)
_FIELDS, _HISTORY_ROW = len(Request), int(Request.HISTORY_ROW)
_C_ALLOC_OFFSETS, _C_ALLOC_SLOTS = int(Columns.ALLOC_OFFSETS), int(Columns.ALLOC_SLOTS)
_C_MAP_ROW, _C_MAP_START = int(Columns.MAP_ROW), int(Columns.MAP_START)
_C_REQ_OF, _C_HISTORY_REQ, _C_HISTORY_START = constants(
    Columns.REQ_OF, Columns.HISTORY_REQ, Columns.HISTORY_START
)
_HAS_LEDGER, _RECORDS = constants(State.HAS_LEDGER, State.RECORDS)
_TABLE, _ROW_LEN, _ROWS = constants(State.TABLE, State.ROW_LEN, State.ROWS)
_HEADS, _RUNS = int(State.MAP_HEADS), int(State.MAP_RUNS)
_POOL, _POOL_WIDTH, _REQUESTS = int(State.POOL), int(State.POOL_WIDTH), int(State.REQUESTS)


@inlined
def ask_for_event(state, columns, kind, at):  # type: ignore[no-untyped-def]
    """Ask for the lines that an event will touch first."""
    if kind == _ALLOC:
        offsets = load_i64(columns, _C_ALLOC_OFFSETS)
        first = load_i64(offsets, at)
        if load_i64(state, _HAS_LEDGER) != 0 and first < load_i64(offsets, at + 1):
            slot = load_i64(load_i64(columns, _C_ALLOC_SLOTS), first)
            prefetch(load_i64(state, _RECORDS) + slot * LINE)
    elif kind == _MAP:
        row = load_i64(load_i64(columns, _C_MAP_ROW), at)
        start = load_i64(load_i64(columns, _C_MAP_START), at)
        prefetch(load_i64(state, _TABLE) + (row * load_i64(state, _ROW_LEN) + start) * 4)
        if load_i64(state, _HAS_LEDGER) != 0 and 0 <= row < load_i64(state, _ROWS):
            ask_for_run(load_i64(state, _RUNS), load_i64(load_i64(state, _HEADS), row))
    elif kind == _HISTORY:
        string = load_i32(load_i64(columns, _C_HISTORY_REQ), at)
        req = load_i64(load_i64(columns, _C_REQ_OF), max(string, 0))
        if load_i64(state, _POOL) != 0 and req >= 0:
            row = load_i64(load_i64(state, _REQUESTS) + req * _FIELDS * 8, _HISTORY_ROW)
            start = load_i64(load_i64(columns, _C_HISTORY_START), at)
            prefetch(load_i64(state, _POOL) + (row * load_i64(state, _POOL_WIDTH) + start) * 8)
