"""Helpers of the event kernel: requests run in rows, end, and leave their rows."""

from __future__ import annotations

from kvcanary_cli.backends.cpu.event_histories import end_history
from kvcanary_cli.backends.cpu.event_known import forget_row
from kvcanary_cli.backends.cpu.event_names import code_of, facts_of, lacks_names, named
from kvcanary_cli.backends.cpu.event_state import (
    LIST_ROOM,
    NO_ROW,
    RAN,
    Columns,
    Request,
    State,
    Stop,
)
from kvcanary_cli.backends.cpu.jit import constants, helper
from kvcanary_cli.backends.cpu.memory import load_i64, store_i64

_GONE, _TABLE_ROW = int(Request.GONE), int(Request.TABLE_ROW)
_END, _GENERAL, _ROOM = int(Stop.END), int(Stop.GENERAL), int(Stop.ROOM)
_C_RETRACT_REQ, _C_RELEASE_REQ, _C_RELEASE_ROW = constants(
    Columns.RETRACT_REQ, Columns.RELEASE_REQ, Columns.RELEASE_ROW
)
_TENANTS, _HAS_LEDGER, _STEPS_SEEN = constants(State.TENANTS, State.HAS_LEDGER, State.STEPS_SEEN)
_LEDGER_TENANTS, _RELEASED, _RAN, _RAN_COUNT = constants(
    State.LEDGER_TENANTS, State.RELEASED, State.RAN, State.RAN_COUNT
)
_ENDED, _ENDED_COUNT = int(State.ENDED), int(State.ENDED_COUNT)


@helper
def note_tenant(state, row, code, event):  # type: ignore[no-untyped-def]
    """A request runs in a row that the ledger knows, where another one ran before."""
    count = load_i64(load_i64(state, _RAN_COUNT), row)
    fact = load_i64(state, _RAN) + (row * RAN + count % RAN) * 16
    store_i64(fact, 0, code)
    store_i64(fact, 1, event)
    store_i64(load_i64(state, _RAN_COUNT), row, count + 1)
    store_i64(load_i64(state, _LEDGER_TENANTS), row, code)


@helper
def _leave(state, req):  # type: ignore[no-untyped-def]
    """A request is done with its row: what is known of it is of no use."""
    row = load_i64(facts_of(state, req), _TABLE_ROW)
    if row >= 0 and load_i64(load_i64(state, _TENANTS), row) == req:
        forget_row(state, row, 0)


@helper
def take_end(state, columns, at, event, column):  # type: ignore[no-untyped-def]
    """``finish`` or ``abort``, whose requests stand in ``column``."""
    req = named(columns, column, at)
    if req < 0:
        return _GENERAL
    if load_i64(state, _HAS_LEDGER) != 0:
        count = load_i64(state, _ENDED_COUNT)
        if lacks_names(state, 1) or count == LIST_ROOM:
            return _ROOM
        fact = load_i64(state, _ENDED) + count * 24
        store_i64(fact, 0, code_of(state, req))
        store_i64(fact, 1, event)
        store_i64(fact, 2, load_i64(state, _STEPS_SEEN))
        store_i64(state, _ENDED_COUNT, count + 1)
    _leave(state, req)
    store_i64(facts_of(state, req), _GONE, 1)
    end_history(state, req)
    return _END


@helper
def take_retract(state, columns, at):  # type: ignore[no-untyped-def]
    """A request leaves its row and waits."""
    req = named(columns, _C_RETRACT_REQ, at)
    if req < 0:
        return _GENERAL
    _leave(state, req)
    return _END


@helper
def take_release(state, columns, at, event):  # type: ignore[no-untyped-def]
    """A row is given back."""
    req = named(columns, _C_RELEASE_REQ, at)
    if req < 0:
        return _GENERAL
    if load_i64(state, _HAS_LEDGER) != 0:
        row = load_i64(load_i64(columns, _C_RELEASE_ROW), at)
        if load_i64(load_i64(state, _LEDGER_TENANTS), row) == NO_ROW:
            return _GENERAL
        if lacks_names(state, 1):
            return _ROOM
        fact = load_i64(state, _RELEASED) + row * 16
        store_i64(fact, 0, event)
        store_i64(fact, 1, code_of(state, req))
    _leave(state, req)
    return _END
