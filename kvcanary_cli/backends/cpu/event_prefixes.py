"""Helpers of the event kernel: the prefix index (``replay.prefixes``)."""

from __future__ import annotations

from kvcanary_cli.backends.cpu.event_state import Entry, PrefixNumber, State
from kvcanary_cli.backends.cpu.jit import constants, helper
from kvcanary_cli.backends.cpu.memory import load_i32, load_i64, store_i32, store_i64

#: Instead of a table row: the entry's slots begin at position 0.
FROM_START = -2
_FIELDS = len(Entry)
_AT, _LEN, _START, _PREV, _SERIAL, _EVENT = constants(
    Entry.AT, Entry.LEN, Entry.START, Entry.PREV, Entry.SERIAL, Entry.EVENT
)
_N_SERIAL, _N_USED, _N_ROOM, _N_UNPLACED = constants(
    PrefixNumber.SERIAL, PrefixNumber.USED, PrefixNumber.ROOM, PrefixNumber.UNPLACED
)
_ENTRIES, _PLACES, _NUMBERS, _RETURNS = constants(
    State.ENTRIES, State.PLACES, State.PREFIX_NUMBERS, State.RETURNS
)
_TABLE, _ROW_LEN = int(State.TABLE), int(State.ROW_LEN)
# Cells that are compared at a time.
_BLOCK = 32


@helper
def hide_entry(state, entry):  # type: ignore[no-untyped-def]
    """The entry is not visible any more."""
    store_i64(load_i64(state, _ENTRIES) + entry * _FIELDS * 8, _AT, -1)


@helper
def lacks_places(state, count, out):  # type: ignore[no-untyped-def]
    """Whether there is no room for an entry of ``count`` slots; ``out`` then says for how many."""
    numbers = load_i64(state, _NUMBERS)
    store_i64(out, 1, count)
    return load_i64(numbers, _N_USED) + count > load_i64(numbers, _N_ROOM)


@helper
def _find_run(line, row_len, slots, count):  # type: ignore[no-untyped-def]
    """First position at which the row at ``line`` holds ``slots`` [count], -1 = nowhere."""
    first = load_i64(slots, 0)
    position = 0
    while position + count <= row_len:
        if position + _BLOCK <= row_len:
            found = 0
            for k in range(_BLOCK):
                found |= load_i32(line, position + k) == first
            if found == 0:
                position += _BLOCK
                continue
        stop = min(position + _BLOCK, row_len - count + 1)
        while position < stop:
            same = 0
            while same < count and load_i32(line, position + same) == load_i64(slots, same):
                same += 1
            if same == count:
                return position
            position += 1
    return -1


@helper
def show_entry(state, entry, slots, count, row, event):  # type: ignore[no-untyped-def]
    """Make an entry visible; there is room.

    Args:
        entry: Its number.
        slots, count: Address of its slots, and how many.
        row: Table row that they have their positions from, -1 = none has them, or ``FROM_START``.
        event: The ``i`` that does it.
    """
    hide_entry(state, entry)
    if count == 0:
        return
    cells = load_i64(state, _ENTRIES) + entry * _FIELDS * 8
    store_i64(cells, _EVENT, event)
    numbers, row_len = load_i64(state, _NUMBERS), load_i64(state, _ROW_LEN)
    line = load_i64(state, _TABLE) + row * row_len * 4
    start, prev = 0, -1
    if row != FROM_START:
        start = -1
        if row >= 0:
            start = _find_run(line, row_len, slots, count)
        if start < 0:
            store_i64(numbers, _N_UNPLACED, load_i64(numbers, _N_UNPLACED) + count)
            return
        if start > 0:
            prev = load_i32(line, start - 1)
    used, serial = load_i64(numbers, _N_USED), load_i64(numbers, _N_SERIAL) + 1
    places, returns = load_i64(state, _PLACES) + used * 8, load_i64(state, _RETURNS)
    for k in range(count):
        slot = load_i64(slots, k)
        store_i32(places, 2 * k, slot)
        store_i32(places, 2 * k + 1, load_i32(returns, slot))
    store_i64(numbers, _N_USED, used + count)
    store_i64(numbers, _N_SERIAL, serial)
    store_i64(cells, _AT, used)
    store_i64(cells, _LEN, count)
    store_i64(cells, _START, start)
    store_i64(cells, _PREV, prev)
    store_i64(cells, _SERIAL, serial)
