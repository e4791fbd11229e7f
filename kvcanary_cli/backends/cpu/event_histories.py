"""Helpers of the event kernel: the requests' true tokens (``replay.history``)."""

from __future__ import annotations

from kvcanary_cli.abi.constants import NO_EXPECTED_TOKEN
from kvcanary_cli.backends.cpu.event_known import forget_row
from kvcanary_cli.backends.cpu.event_names import facts_of, named
from kvcanary_cli.backends.cpu.event_state import Columns, HistoryNumber, Request, State, Stop
from kvcanary_cli.backends.cpu.jit import constants, helper
from kvcanary_cli.backends.cpu.memory import load_i64, store_i64

_LEN, _ROW, _KNOWN, _ENDED = constants(
    Request.HISTORY_LEN, Request.HISTORY_ROW, Request.HISTORY_KNOWN, Request.HISTORY_ENDED
)
_STORE_AT, _STORE_LEN = int(Request.STORE_AT), int(Request.STORE_LEN)
_TOKENS, _BEFORE, _AFTER = constants(
    Request.ENDED_TOKENS, Request.ENDED_BEFORE, Request.ENDED_AFTER
)
_N_ANY, _N_SERIAL, _N_USED, _N_ROOM = constants(
    HistoryNumber.ANY, HistoryNumber.SERIAL, HistoryNumber.STORE_USED, HistoryNumber.STORE_ROOM
)
_N_FIRST, _N_LAST, _N_COUNT, _N_TOKENS, _N_KEEP = constants(
    HistoryNumber.ENDED_FIRST,
    HistoryNumber.ENDED_LAST,
    HistoryNumber.ENDED_COUNT,
    HistoryNumber.ENDED_TOKENS,
    HistoryNumber.KEEP_TOKENS,
)
_POOL, _POOL_WIDTH = int(State.POOL), int(State.POOL_WIDTH)
_NUMBERS, _STORE, _ROW_REQ = constants(State.HISTORY_NUMBERS, State.STORE, State.ROW_REQ)
_CHECKED = int(State.CHECKED)
_C_REQ, _C_START, _C_OFFSETS, _C_IDS = constants(
    Columns.HISTORY_REQ, Columns.HISTORY_START, Columns.HISTORY_OFFSETS, Columns.HISTORY_IDS
)
_END, _GENERAL, _STORE_FULL = int(Stop.END), int(Stop.GENERAL), int(Stop.STORE_FULL)


@helper
def _count(numbers, cell, more):  # type: ignore[no-untyped-def]
    store_i64(numbers, cell, load_i64(numbers, cell) + more)


@helper
def _reserve(state, facts, length, out):  # type: ignore[no-untyped-def]
    """Address of a request's tokens in the store, with room for ``length``; 0 = it is full.

    Args:
        out: Says for how many more there must be room.
    """
    had = load_i64(facts, _STORE_LEN)
    store = load_i64(state, _STORE)
    before = store + load_i64(facts, _STORE_AT) * 8
    if length <= had:
        return before
    numbers = load_i64(state, _NUMBERS)
    room, used = max(length, 2 * had), load_i64(numbers, _N_USED)
    if used + room > load_i64(numbers, _N_ROOM):
        store_i64(out, 1, room)
        return 0
    store_i64(numbers, _N_USED, used + room)
    tokens = store + used * 8
    for k in range(had):
        store_i64(tokens, k, load_i64(before, k))
    for k in range(had, room):
        store_i64(tokens, k, NO_EXPECTED_TOKEN)
    store_i64(facts, _STORE_AT, used)
    store_i64(facts, _STORE_LEN, room)
    return tokens


@helper
def _drop(facts):  # type: ignore[no-untyped-def]
    store_i64(facts, _STORE_AT, -1)
    store_i64(facts, _STORE_LEN, 0)


@helper
def take_history(state, columns, at, out):  # type: ignore[no-untyped-def]
    """A ``history`` event: true tokens of a request that has not ended."""
    pool = load_i64(state, _POOL)
    if pool == 0:
        return _END
    req, start = named(columns, _C_REQ, at), load_i64(load_i64(columns, _C_START), at)
    if req < 0 or start < 0:
        return _GENERAL
    facts = facts_of(state, req)
    if load_i64(facts, _ENDED) != 0:
        return _GENERAL
    numbers = load_i64(state, _NUMBERS)
    is_new = load_i64(facts, _KNOWN) == 0
    row, length = -1, 0
    if not is_new:
        row, length = load_i64(facts, _ROW), load_i64(facts, _LEN)
    offsets = load_i64(columns, _C_OFFSETS)
    first, stop = load_i64(offsets, at), load_i64(offsets, at + 1)
    end = start + stop - first
    width = load_i64(state, _POOL_WIDTH)
    if start > length or end > width or end <= start:
        return _GENERAL
    ids = load_i64(columns, _C_IDS) + first * 8
    line = pool + row * width * 8
    if row < 0:
        line = _reserve(state, facts, end, out)
        if line == 0:
            return _STORE_FULL
    elif start < load_i64(load_i64(state, _CHECKED), row):
        # Some known cell may have been checked with another token, or with none.
        for position in range(start, end):
            before = NO_EXPECTED_TOKEN
            if position < length:
                before = load_i64(line, position)
            if before != load_i64(ids, position - start):
                forget_row(state, row, position)
                break
    store_i64(numbers, _N_ANY, 1)
    if is_new:
        _count(numbers, _N_SERIAL, 1)
        store_i64(facts, _KNOWN, load_i64(numbers, _N_SERIAL))
        store_i64(facts, _ROW, -1)
    for position in range(start, end):
        store_i64(line, position, load_i64(ids, position - start))
    store_i64(facts, _LEN, max(length, end))
    return _END


@helper
def bind_history(state, row, req, out):  # type: ignore[no-untyped-def]
    """Put the tokens of ``req``, whose history is known, into the pool's ``row``."""
    facts, row_req = facts_of(state, req), load_i64(state, _ROW_REQ)
    pool, width = load_i64(state, _POOL), load_i64(state, _POOL_WIDTH)
    line, former = pool + row * width * 8, load_i64(row_req, row)
    if former >= 0:
        of_former = facts_of(state, former)
        told = load_i64(of_former, _LEN)
        tokens = _reserve(state, of_former, told, out)
        if told > 0 and tokens == 0:
            return _STORE_FULL
        forget_row(state, row, 0)
        for k in range(told):
            store_i64(tokens, k, load_i64(line, k))
        store_i64(of_former, _ROW, -1)
    else:
        forget_row(state, row, 0)
    length, before = load_i64(facts, _LEN), load_i64(facts, _ROW)
    tokens = load_i64(state, _STORE) + load_i64(facts, _STORE_AT) * 8
    if before >= 0:
        store_i64(row_req, before, -1)
        tokens = pool + before * width * 8
    for k in range(length):
        store_i64(line, k, load_i64(tokens, k))
    if before < 0:
        _drop(facts)
    store_i64(row_req, row, req)
    store_i64(facts, _ROW, row)
    return _END


@helper
def _revive(state, facts):  # type: ignore[no-untyped-def]
    """Take a request out of the list of those that ended."""
    numbers = load_i64(state, _NUMBERS)
    before, after = load_i64(facts, _BEFORE), load_i64(facts, _AFTER)
    if before < 0:
        store_i64(numbers, _N_FIRST, after)
    else:
        store_i64(facts_of(state, before), _AFTER, after)
    if after < 0:
        store_i64(numbers, _N_LAST, before)
    else:
        store_i64(facts_of(state, after), _BEFORE, before)
    _count(numbers, _N_COUNT, -1)
    _count(numbers, _N_TOKENS, -load_i64(facts, _TOKENS))
    store_i64(facts, _ENDED, 0)


@helper
def _forget(state, req):  # type: ignore[no-untyped-def]
    facts = facts_of(state, req)
    _revive(state, facts)
    row = load_i64(facts, _ROW)
    if row >= 0:
        store_i64(load_i64(state, _ROW_REQ), row, -1)
        forget_row(state, row, 0)
    _drop(facts)
    store_i64(facts, _LEN, 0)
    store_i64(facts, _ROW, -1)
    store_i64(facts, _KNOWN, 0)


@helper
def end_history(state, req):  # type: ignore[no-untyped-def]
    """``req`` ended: its tokens are kept only while there is room."""
    if load_i64(state, _POOL) == 0:
        return
    facts, numbers = facts_of(state, req), load_i64(state, _NUMBERS)
    if load_i64(facts, _KNOWN) == 0 or load_i64(facts, _ENDED) != 0:
        return
    last, length = load_i64(numbers, _N_LAST), load_i64(facts, _LEN)
    store_i64(facts, _ENDED, 1)
    store_i64(facts, _TOKENS, length)
    store_i64(facts, _BEFORE, last)
    store_i64(facts, _AFTER, -1)
    if last < 0:
        store_i64(numbers, _N_FIRST, req)
    else:
        store_i64(facts_of(state, last), _AFTER, req)
    store_i64(numbers, _N_LAST, req)
    _count(numbers, _N_COUNT, 1)
    _count(numbers, _N_TOKENS, length)
    while (
        load_i64(numbers, _N_TOKENS) > load_i64(numbers, _N_KEEP)
        and load_i64(numbers, _N_COUNT) > 1
    ):
        _forget(state, load_i64(numbers, _N_FIRST))
