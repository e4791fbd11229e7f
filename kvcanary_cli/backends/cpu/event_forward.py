"""A forward in the event kernel: looked at as a whole first, then taken.

What is taken here is what the general path would do with a forward of one worker that finds
nothing: HEAD and TAIL are verified as far as cells are not known, then written; what is known and
the ledger follow.
"""

from __future__ import annotations

from kvcanary_cli.abi.constants import LaunchTag
from kvcanary_cli.backends.cpu.event_known import learn_reads, learn_writes
from kvcanary_cli.backends.cpu.event_names import lacks_names
from kvcanary_cli.backends.cpu.event_reads import ask_for_cell, cells_are_right
from kvcanary_cli.backends.cpu.event_records import LINE
from kvcanary_cli.backends.cpu.event_rows import ask_for_row, prepare_row
from kvcanary_cli.backends.cpu.event_stamps import next_stamp
from kvcanary_cli.backends.cpu.event_state import LIST_ROOM, Columns, Mode, Request, State, Stop
from kvcanary_cli.backends.cpu.event_writes import write_row
from kvcanary_cli.backends.cpu.jit import constants, helper
from kvcanary_cli.backends.cpu.memory import load_i32, load_i64, load_u8, prefetch, store_i64

# Rows of the batch that are asked for before their turn.
_AHEAD = 8

_FIELDS = len(Request)
_CODE, _TABLE_ROW, _SEEN = constants(Request.LEDGER_CODE, Request.TABLE_ROW, Request.SEEN)

_DECODE = int(Mode.DECODE)
_END, _GENERAL, _ROOM = constants(Stop.END, Stop.GENERAL, Stop.ROOM)

_C_REQ_OF, _C_STEP, _C_MODE, _C_RAW_BS = constants(
    Columns.REQ_OF, Columns.STEP, Columns.MODE, Columns.RAW_BS
)
_C_REQ_OFFSETS, _C_REQS, _C_REQ_ROWS, _C_SEQ_LENS = constants(
    Columns.REQ_OFFSETS, Columns.REQS, Columns.REQ_ROWS, Columns.SEQ_LENS
)
_C_TOKEN_OFFSETS, _C_POSITIONS, _C_LOCS = constants(
    Columns.TOKEN_OFFSETS, Columns.POSITIONS, Columns.LOCS
)
_C_EXTEND_OFFSETS, _C_PREFIX_LENS, _C_EXTEND_LENS = constants(
    Columns.EXTEND_OFFSETS, Columns.PREFIX_LENS, Columns.EXTEND_LENS
)

_TABLE, _ROW_LEN = int(State.TABLE), int(State.ROW_LEN)
_CANARY = int(State.CANARY)
_SERIAL, _CHECKED = int(State.SERIAL), int(State.CHECKED)
_REQUESTS, _SURE = int(State.REQUESTS), int(State.SURE)
_KERNEL_RUNS, _SLOT_RUNS = int(State.KERNEL_RUNS), int(State.SLOT_RUNS)
_VERIFIED, _WRITTEN, _TOKEN_ENTRIES = constants(
    State.ENTRIES_VERIFIED, State.ENTRIES_WRITTEN, State.TOKEN_ENTRIES
)
_FORWARDS, _STEPS, _CHECKED_STEPS, _LAST_STEP, _LAST_CHECKED = constants(
    State.FORWARDS, State.STEPS, State.CHECKED_STEPS, State.LAST_STEP, State.LAST_CHECKED
)
_VERIFY_CAPACITY, _REQUEST_CAPACITY, _TOKEN_CAPACITY = constants(
    State.VERIFY_CAPACITY, State.REQUEST_CAPACITY, State.TOKEN_CAPACITY
)
_NEW_REQUESTS, _NEW_COUNT = int(State.NEW_REQUESTS), int(State.NEW_COUNT)
_HAS_LEDGER, _LAST_STEPS = int(State.HAS_LEDGER), int(State.LAST_STEPS)
_LEDGER_STEP, _STEPS_SEEN = int(State.LEDGER_STEP), int(State.STEPS_SEEN)
_BATCH_SLOTS, _BATCH_STEPS = int(State.BATCH_SLOTS), int(State.BATCH_STEPS)
_HEAD_TAG, _TAIL_TAG = int(LaunchTag.HEAD_K_FULL), int(LaunchTag.TAIL_K_FULL)


@helper
def _count(state, cell, more):  # type: ignore[no-untyped-def]
    store_i64(state, cell, load_i64(state, cell) + more)


@helper
def _list(state, items, count_cell, value):  # type: ignore[no-untyped-def]
    """Append to one of the lists of the block; there is room."""
    count = load_i64(state, count_cell)
    store_i64(load_i64(state, items), count, value)
    store_i64(state, count_cell, count + 1)


@helper
def take_forward(state, columns, at, event, out):  # type: ignore[no-untyped-def]
    """Take one forward if it is ordinary; ``Stop.END`` if it was, and nothing changed otherwise.

    Args:
        at: Row of the forwards' table.
        event: Its ``i``.
        out: Says for what it stopped.
    """
    mode = load_u8(load_i64(columns, _C_MODE), at)
    if mode == 0:
        return _GENERAL
    offsets = load_i64(columns, _C_REQ_OFFSETS)
    first_req = load_i64(offsets, at)
    bs = load_i64(offsets, at + 1) - first_req
    reqs = load_i64(columns, _C_REQS) + first_req * 4
    rows = load_i64(columns, _C_REQ_ROWS) + first_req * 8
    seq_lens = load_i64(columns, _C_SEQ_LENS) + first_req * 8
    req_of = load_i64(columns, _C_REQ_OF)
    offsets = load_i64(columns, _C_TOKEN_OFFSETS)
    first_token = load_i64(offsets, at)
    num_tokens = load_i64(offsets, at + 1) - first_token
    positions = load_i64(columns, _C_POSITIONS) + first_token * 8
    locs = load_i64(columns, _C_LOCS) + first_token * 8
    prefixes, extends = 0, 0
    if mode != _DECODE:
        first_len = load_i64(load_i64(columns, _C_EXTEND_OFFSETS), at)
        prefixes = load_i64(columns, _C_PREFIX_LENS) + first_len * 8
        extends = load_i64(columns, _C_EXTEND_LENS) + first_len * 8
    raw = load_i64(load_i64(columns, _C_RAW_BS), at)
    if max(raw, bs) > load_i64(state, _REQUEST_CAPACITY):
        return _GENERAL
    if num_tokens > load_i64(state, _TOKEN_CAPACITY):
        return _GENERAL
    if load_i64(state, _NEW_COUNT) + bs > LIST_ROOM or lacks_names(state, bs):
        return _ROOM
    stamp = next_stamp(state)

    # Look at all rows; then at what they read, since a row may have changed what another knows.
    active, tokens, entries = 0, 0, 0
    while active < bs and load_i64(rows, active) != 0:
        string = load_i32(reqs, active)
        if string < 0:
            return _GENERAL
        req = load_i64(req_of, string)
        if req < 0:
            return _GENERAL
        if mode == _DECODE:
            prefix, extend = load_i64(positions, active), 1
            if load_i64(seq_lens, active) - 1 != prefix:
                return _GENERAL
            if active + _AHEAD < min(bs, num_tokens):
                ask_for_row(
                    state,
                    load_i64(rows, active + _AHEAD),
                    load_i64(positions, active + _AHEAD),
                    load_i64(locs, active + _AHEAD),
                )
        else:
            prefix, extend = load_i64(prefixes, active), load_i64(extends, active)
            if load_i64(seq_lens, active) != prefix + extend:
                return _GENERAL
        if tokens + extend > num_tokens:
            return _GENERAL
        why = prepare_row(
            state,
            load_i64(rows, active),
            req,
            prefix,
            extend,
            first_token + tokens,
            columns,
            stamp,
            event,
            out,
        )
        if why != _END:
            return why
        tokens += extend
        entries += prefix
        active += 1
    if active == 0 or entries > load_i64(state, _VERIFY_CAPACITY):
        return _GENERAL
    for b in range(active, bs):
        if load_i64(rows, b) != 0 or load_i32(reqs, b) >= 0:
            return _GENERAL
    for i in range(tokens, num_tokens):
        if load_i64(locs, i) != 0:
            return _GENERAL
    requests = load_i64(state, _REQUESTS)
    checked = load_i64(state, _CHECKED)
    for b in range(active):
        row = load_i64(rows, b)
        prefix = load_i64(positions, b) if mode == _DECODE else load_i64(prefixes, b)
        if mode == _DECODE and b + _AHEAD < active:
            ahead, position = load_i64(rows, b + _AHEAD), load_i64(positions, b + _AHEAD) - 1
            if load_i64(checked, ahead) <= position:
                ask_for_cell(state, ahead, position)
        facts = requests + load_i64(req_of, load_i32(reqs, b)) * _FIELDS * 8
        start = load_i64(checked, row)
        if not cells_are_right(state, row, start, prefix, load_i64(facts, _CODE), stamp):
            return _GENERAL

    # From here on it is taken.
    step = load_i64(load_i64(columns, _C_STEP), at)
    has_ledger = load_i64(state, _HAS_LEDGER) != 0
    if has_ledger and step != load_i64(state, _LEDGER_STEP):
        store_i64(state, _LEDGER_STEP, step)
        _count(state, _STEPS_SEEN, 1)
    _count(state, _SERIAL, 1)
    table, row_len = load_i64(state, _TABLE), load_i64(state, _ROW_LEN)
    sure = load_i64(state, _SURE)
    token_entries = 0
    token = first_token
    for b in range(active):
        row = load_i64(rows, b)
        prefix, extend = load_i64(positions, b), 1
        if mode != _DECODE:
            prefix, extend = load_i64(prefixes, b), load_i64(extends, b)
        if mode == _DECODE and b + _AHEAD < active and load_i64(positions, b + _AHEAD) > 0:
            ahead, position = load_i64(rows, b + _AHEAD), load_i64(positions, b + _AHEAD) - 1
            ahead = load_i32(table, ahead * row_len + position)
            prefetch(load_i64(state, _CANARY) + ahead * LINE)
        seed = -1
        if prefix > 0:
            seed = load_i32(table, row * row_len + prefix - 1)
        req = load_i64(req_of, load_i32(reqs, b))
        facts = requests + req * _FIELDS * 8
        code = load_i64(facts, _CODE)
        write_row(state, columns, token, extend, seed, code, step, event, b)
        token_entries += learn_reads(state, row, prefix, event)
        learn_writes(state, row, prefix, locs + (token - first_token) * 8, load_i64(sure, row))
        store_i64(facts, _TABLE_ROW, row)
        if load_i64(facts, _SEEN) == 0:
            store_i64(facts, _SEEN, 1)
            _list(state, _NEW_REQUESTS, _NEW_COUNT, req)
        if has_ledger:
            store_i64(load_i64(state, _LAST_STEPS), code, step)
            if mode == _DECODE:
                slot = load_i64(load_i64(columns, _C_LOCS), token)
                store_i64(load_i64(state, _BATCH_SLOTS), b, slot)
                store_i64(load_i64(state, _BATCH_STEPS), b, step)
        token += extend
    for tag in (_HEAD_TAG, _TAIL_TAG):
        runs, slot_runs = load_i64(state, _KERNEL_RUNS), load_i64(state, _SLOT_RUNS)
        store_i64(runs, tag, load_i64(runs, tag) + 2)
        store_i64(slot_runs, tag, load_i64(slot_runs, tag) + entries + tokens)
    _count(state, _VERIFIED, entries)
    _count(state, _WRITTEN, tokens)
    _count(state, _TOKEN_ENTRIES, token_entries)
    _count(state, _FORWARDS, 1)
    if step != load_i64(state, _LAST_STEP):
        _count(state, _STEPS, 1)
        store_i64(state, _LAST_STEP, step)
    if step != load_i64(state, _LAST_CHECKED):
        _count(state, _CHECKED_STEPS, 1)
        store_i64(state, _LAST_CHECKED, step)
    return _END
