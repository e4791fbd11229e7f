"""Helpers of the event kernel: taking knowledge of cells away (``replay.known``)."""

from __future__ import annotations

from kvcanary_cli.backends.cpu.event_state import State
from kvcanary_cli.backends.cpu.jit import helper
from kvcanary_cli.backends.cpu.known import forget_cells
from kvcanary_cli.backends.cpu.memory import load_i32, load_i64

_TABLE, _ROW_LEN = int(State.TABLE), int(State.ROW_LEN)
_REFS, _MAPPER, _CHECKED = int(State.REFS), int(State.MAPPER), int(State.CHECKED)
_TOKENS_KNOWN, _LIMITS = int(State.TOKENS_KNOWN), int(State.LIMITS)
_POOL, _POOL_WIDTH = int(State.POOL), int(State.POOL_WIDTH)
_READ_EVENTS, _ROW_READ = int(State.READ_EVENTS), int(State.ROW_READ)
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
            load_i64(state, _REFS),
            load_i64(state, _CHECKED),
            load_i64(state, _TOKENS_KNOWN),
            load_i64(state, _LIMITS),
            load_i64(state, _POOL),
            load_i64(state, _POOL_WIDTH),
            0,
            load_i64(state, _READ_EVENTS),
            load_i64(state, _ROW_READ),
            load_i64(state, _READ_LEN),
        )


@helper
def forget_slot(state, slot):  # type: ignore[no-untyped-def]
    """The known cell that holds ``slot`` must be checked again; False if there are several."""
    if load_i32(load_i64(state, _REFS), slot) != 1:
        return False
    row_len = load_i64(state, _ROW_LEN)
    cell = load_i64(load_i64(state, _MAPPER), slot)
    row = cell // row_len
    position = cell - row * row_len
    if position >= load_i64(load_i64(state, _CHECKED), row):
        return False
    if load_i32(load_i64(state, _TABLE), cell) != slot:
        return False
    forget_row(state, row, position)
    return True
