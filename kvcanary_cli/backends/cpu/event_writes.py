"""Helper of the event kernel: a forward's writes in the ledger (``attribution.ledger.Writes``)."""

from __future__ import annotations

from kvcanary_cli.backends.cpu.event_state import Columns, State
from kvcanary_cli.backends.cpu.jit import helper
from kvcanary_cli.backends.cpu.memory import load_i32, load_i64, store_i32, store_i64, store_u8

_NEVER = -(1 << 63)
# ``ledger.BY_FORWARD``.
_BY_FORWARD = 1
_C_POSITIONS, _C_LOCS = int(Columns.POSITIONS), int(Columns.LOCS)
_REQ, _STEP, _EVENT, _KIND = (
    int(cell) for cell in (State.WRITE_REQ, State.WRITE_STEP, State.WRITE_EVENT, State.WRITE_KIND)
)
_POSITION, _TRUE_POSITION, _BATCH_ROW = (
    int(cell) for cell in (State.WRITE_POSITION, State.WRITE_TRUE_POSITION, State.WRITE_BATCH_ROW)
)
_NAMESPACE, _FOREIGN, _MOVED = (
    int(cell) for cell in (State.WRITE_NAMESPACE, State.WRITE_FOREIGN, State.MOVED_EVENT)
)
_BEFORE_REQ, _BEFORE_STEP, _BEFORE_EVENT = (
    int(cell) for cell in (State.BEFORE_REQ, State.BEFORE_STEP, State.BEFORE_EVENT)
)


@helper
def note_writes(state, columns, first, count, code, step, event, batch_row):  # type: ignore[no-untyped-def]
    """Tokens [first, first + count) of the segment's were written by ``code``, in right places."""
    locs = load_i64(columns, _C_LOCS) + first * 8
    positions = load_i64(columns, _C_POSITIONS) + first * 8
    req, steps, events = load_i64(state, _REQ), load_i64(state, _STEP), load_i64(state, _EVENT)
    kind, position = load_i64(state, _KIND), load_i64(state, _POSITION)
    true_position, rows = load_i64(state, _TRUE_POSITION), load_i64(state, _BATCH_ROW)
    namespace, foreign = load_i64(state, _NAMESPACE), load_i64(state, _FOREIGN)
    moved = load_i64(state, _MOVED)
    before_req, before_step = load_i64(state, _BEFORE_REQ), load_i64(state, _BEFORE_STEP)
    before_event = load_i64(state, _BEFORE_EVENT)
    for i in range(count):
        slot, at = load_i64(locs, i), load_i64(positions, i)
        store_i32(before_req, slot, load_i32(req, slot))
        store_i32(before_step, slot, load_i32(steps, slot))
        store_i64(before_event, slot, load_i64(events, slot))
        store_i32(req, slot, code)
        store_i32(steps, slot, step)
        store_i64(events, slot, event)
        store_u8(kind, slot, _BY_FORWARD)
        store_i32(position, slot, at)
        store_i32(true_position, slot, at)
        store_i32(rows, slot, batch_row)
        store_i32(namespace, slot, 0)
        store_u8(foreign, slot, 0)
        store_i64(moved, slot, _NEVER)
