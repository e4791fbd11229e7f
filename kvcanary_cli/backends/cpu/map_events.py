"""The ledger's runs of map events (``attribution.row_table``): one more of them, and fewer."""

from __future__ import annotations

from kvcanary_cli.backends.cpu.event_records import MAP_RUN, RUN_EVENTS, place
from kvcanary_cli.backends.cpu.event_state import State
from kvcanary_cli.backends.cpu.jit import constants, inlined, kernel
from kvcanary_cli.backends.cpu.memory import (
    load_i32,
    load_i64,
    load_u8,
    prefetch,
    store_i32,
    store_i64,
    store_u8,
)

_BYTES = MAP_RUN.itemsize
_START, _COUNT, _BELOW, _EVENTS, _STOPS, _OWNERS = (
    place(MAP_RUN, name) for name in ("start", "count", "below", "events", "stops", "owners")
)
# Of a run that is full, in bytes.
_LAST_STOP = (_STOPS + RUN_EVENTS - 1) * 4
_HEADS, _RUNS, _FREE = constants(State.MAP_HEADS, State.MAP_RUNS, State.MAP_FREE)


@inlined
def ask_for_run(runs, node):  # type: ignore[no-untyped-def]
    """Ask for what entering an event into run number ``node``, -1 = none, reads first."""
    if node >= 0:
        prefetch(runs + node * _BYTES)
        prefetch(runs + node * _BYTES + _LAST_STOP)


@inlined
def _first_cell(run, k):  # type: ignore[no-untyped-def]
    """First cell of event number ``k`` of the run at an address."""
    return load_i32(run, _START) if k == 0 else load_i32(run, _STOPS + k - 1)


@inlined
def note_map(state, row, start, stop, owner, event):  # type: ignore[no-untyped-def]
    """Enter a map event of cells [start, stop); False without room, and then call it again."""
    heads, runs = load_i64(state, _HEADS), load_i64(state, _RUNS)
    node, count = load_i64(heads, row), 0
    # The newest events that this one covers are dropped.
    while node >= 0:
        run = runs + node * _BYTES
        had = count = load_i32(run, _COUNT)
        while count > 0 and (
            start <= _first_cell(run, count - 1) and stop >= load_i32(run, _STOPS + count - 1)
        ):
            count -= 1
        if count > 0:
            if count != had:
                store_i32(run, _COUNT, count)
            break
        below = load_i32(run, _BELOW)
        store_i32(run, _BELOW, load_i64(state, _FREE))
        store_i64(state, _FREE, node)
        node = below
        store_i64(heads, row, node)
    run = runs + node * _BYTES
    if node < 0 or count == RUN_EVENTS or load_i32(run, _STOPS + count - 1) != start:
        free = load_i64(state, _FREE)
        if free < 0:
            return False
        run, count = runs + free * _BYTES, 0
        below = load_i32(run, _BELOW)
        store_i64(state, _FREE, below)
        ask_for_run(runs, below)
        store_i32(run, _START, start)
        store_i32(run, _BELOW, node)
        store_i64(heads, row, free)
    store_i64(run, _EVENTS + count, event)
    store_i32(run, _STOPS + count, stop)
    store_i32(run, _OWNERS + count, owner)
    store_i32(run, _COUNT, count + 1)
    return True


@inlined
def _mark(seen, first, stop):  # type: ignore[no-untyped-def]
    """Mark cells [first, stop) as seen; 1 if all were."""
    had = 1
    for at in range(first, stop):
        if load_u8(seen, at) == 0:
            had = 0
            store_u8(seen, at, 1)
    return had


@inlined
def _are_marked(seen, first, stop):  # type: ignore[no-untyped-def]
    """Whether all cells [first, stop) are marked, as 1 or 0."""
    for at in range(first, stop):
        if load_u8(seen, at) == 0:
            return 0
    return 1


@kernel
def drop_covered(num_rows, heads, runs, seen, out):  # type: ignore[no-untyped-def]
    """Drop the runs all of whose events newer ones of their row cover wholly, together.

    The runs of a decoding request follow upon each other, so that most of what is seen is one
    range; what lies apart from it is marked cell by cell.

    Args:
        num_rows: Rows.
        heads: Address of [num_rows] int64 newest runs, -1 = none.
        runs: Address of ``MAP_RUN`` records.
        seen: Address of zero bytes, one for each cell of a row; left zero.
        out: Address of [2] int64: first free run, how many were dropped; added to.
    """
    free, dropped = load_i64(out, 0), load_i64(out, 1)
    for row in range(num_rows):
        node = load_i64(heads, row)
        last = -1
        # Seen are the cells [low, high) and those that are marked, which lie in [first, stop).
        low, high, first, stop = 0, 0, 0, 0
        while node >= 0:
            run = runs + node * _BYTES
            below = load_i32(run, _BELOW)
            ask_for_run(runs, below)
            start = load_i32(run, _START)
            end = load_i32(run, _STOPS + load_i32(run, _COUNT) - 1)
            if start == end or (low <= start and end <= high):
                covered = 1
            elif low == high:
                low, high, covered = start, end, 0
            elif start <= high and end >= low:
                covered = 0
                if first != stop:
                    covered = _are_marked(seen, start, low) & _are_marked(seen, high, end)
                low, high = min(low, start), max(high, end)
            else:
                covered = _mark(seen, start, end)
                if first == stop:
                    first, stop = start, end
                first, stop = min(first, start), max(stop, end)
            if covered != 0:
                store_i32(run, _BELOW, free)
                free = node
                dropped += 1
            else:
                if last < 0:
                    store_i64(heads, row, node)
                else:
                    store_i32(runs + last * _BYTES, _BELOW, node)
                last = node
            node = below
        if last < 0:
            store_i64(heads, row, -1)
        else:
            store_i32(runs + last * _BYTES, _BELOW, -1)
        for at in range(first, stop):
            store_u8(seen, at, 0)
    store_i64(out, 0, free)
    store_i64(out, 1, dropped)
