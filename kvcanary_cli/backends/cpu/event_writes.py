"""Helper of the event kernel: a forward's writes in the ledger (``attribution.ledger.Writes``)."""

from __future__ import annotations

from kvcanary_cli.backends.cpu.event_records import LINE, WRITES, place
from kvcanary_cli.backends.cpu.event_state import Columns, State
from kvcanary_cli.backends.cpu.jit import helper
from kvcanary_cli.backends.cpu.memory import load_i32, load_i64, store_i32, store_i64, store_u8

_NEVER = -(1 << 63)
# ``ledger.BY_FORWARD``.
_BY_FORWARD = 1
_C_POSITIONS, _C_LOCS = int(Columns.POSITIONS), int(Columns.LOCS)
_WRITES = int(State.WRITES)
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


@helper
def note_writes(state, columns, first, count, code, step, event, batch_row):  # type: ignore[no-untyped-def]
    """Tokens [first, first + count) of the segment's were written by ``code``, in right places."""
    locs = load_i64(columns, _C_LOCS) + first * 8
    positions = load_i64(columns, _C_POSITIONS) + first * 8
    records = load_i64(state, _WRITES)
    for i in range(count):
        at = load_i64(positions, i)
        line = records + load_i64(locs, i) * LINE
        store_i32(line, _BEFORE_REQ, load_i32(line, _REQ))
        store_i32(line, _BEFORE_STEP, load_i32(line, _STEP))
        store_i64(line, _BEFORE_EVENT, load_i64(line, _EVENT))
        store_i32(line, _REQ, code)
        store_i32(line, _STEP, step)
        store_i64(line, _EVENT, event)
        store_u8(line, _KIND, _BY_FORWARD)
        store_i32(line, _POSITION, at)
        store_i32(line, _TRUE_POSITION, at)
        store_i32(line, _BATCH_ROW, batch_row)
        store_i32(line, _NAMESPACE, 0)
        store_u8(line, _FOREIGN, 0)
        store_i64(line, _MOVED, _NEVER)
