"""A forward in the event kernel: looked at as a whole first, then taken.

What is taken here is what the general path would do with a forward of one worker that finds
nothing: HEAD and TAIL are verified as far as cells are not known, then written; what is known and
the ledger follow.
"""

from __future__ import annotations

from kvcanary_cli.abi.constants import LaunchTag
from kvcanary_cli.backends.cpu.event_known import forget_row, forget_slot
from kvcanary_cli.backends.cpu.event_records import LINE, OWNERSHIP, WRITES, place
from kvcanary_cli.backends.cpu.event_state import Columns, Mode, Request, State, Stop
from kvcanary_cli.backends.cpu.event_writes import note_writes
from kvcanary_cli.backends.cpu.hashes import as_int64, chain_step, slot_hash
from kvcanary_cli.backends.cpu.jit import helper
from kvcanary_cli.backends.cpu.known import expected_token
from kvcanary_cli.backends.cpu.memory import (
    load_i32,
    load_i64,
    load_u8,
    prefetch,
    store_i32,
    store_i64,
)

_FREE, _TREE, _UNKNOWN = 1, 2, 0
_NEVER = -(1 << 63)
_ROW_BYTES = 32
_AHEAD = 12

_FIELDS = len(Request)
_HISTORY_LEN, _HISTORY_ROW = int(Request.HISTORY_LEN), int(Request.HISTORY_ROW)
_HISTORY_KNOWN, _CODE = int(Request.HISTORY_KNOWN), int(Request.LEDGER_CODE)
_TABLE_ROW, _SEEN = int(Request.TABLE_ROW), int(Request.SEEN)

_DECODE = int(Mode.DECODE)
_END, _GENERAL, _BIND, _NAME, _TENANT, _ROOM = (
    int(stop) for stop in (Stop.END, Stop.GENERAL, Stop.BIND, Stop.NAME, Stop.TENANT, Stop.ROOM)
)

_C_REQ_OF, _C_STEP, _C_MODE, _C_RAW_BS = (
    int(cell) for cell in (Columns.REQ_OF, Columns.STEP, Columns.MODE, Columns.RAW_BS)
)
_C_REQ_OFFSETS, _C_REQS, _C_REQ_ROWS, _C_SEQ_LENS = (
    int(cell) for cell in (Columns.REQ_OFFSETS, Columns.REQS, Columns.REQ_ROWS, Columns.SEQ_LENS)
)
_C_TOKEN_OFFSETS, _C_IDS, _C_POSITIONS, _C_LOCS = (
    int(cell) for cell in (Columns.TOKEN_OFFSETS, Columns.IDS, Columns.POSITIONS, Columns.LOCS)
)
_C_EXTEND_OFFSETS, _C_PREFIX_LENS, _C_EXTEND_LENS = (
    int(cell) for cell in (Columns.EXTEND_OFFSETS, Columns.PREFIX_LENS, Columns.EXTEND_LENS)
)

_TABLE, _ROWS, _ROW_LEN, _ROW_STAMPS = (
    int(cell) for cell in (State.TABLE, State.ROWS, State.ROW_LEN, State.ROW_STAMPS)
)
_HEAD, _TAIL, _SLOTS = int(State.HEAD), int(State.TAIL), int(State.SLOTS)
_STAMPS, _STAMP = int(State.STAMPS), int(State.STAMP)
_WRITTEN_AT, _SERIAL = int(State.WRITTEN_AT), int(State.SERIAL)
_REFS, _MAPPER, _CHECKED = int(State.REFS), int(State.MAPPER), int(State.CHECKED)
_TOKENS_KNOWN, _LIMITS, _AGAIN, _TENANTS = (
    int(cell) for cell in (State.TOKENS_KNOWN, State.LIMITS, State.AGAIN, State.TENANTS)
)
_ROW_READ, _READ_LEN = int(State.ROW_READ), int(State.READ_LEN)
_POOL, _POOL_WIDTH, _HAS_TOKENS, _REQUESTS = (
    int(cell) for cell in (State.POOL, State.POOL_WIDTH, State.HAS_TOKENS, State.REQUESTS)
)
_KERNEL_RUNS, _SLOT_RUNS = int(State.KERNEL_RUNS), int(State.SLOT_RUNS)
_VERIFIED, _WRITTEN, _TOKEN_ENTRIES = (
    int(cell) for cell in (State.ENTRIES_VERIFIED, State.ENTRIES_WRITTEN, State.TOKEN_ENTRIES)
)
_FORWARDS, _STEPS, _CHECKED_STEPS, _LAST_STEP, _LAST_CHECKED = (
    int(cell)
    for cell in (
        State.FORWARDS,
        State.STEPS,
        State.CHECKED_STEPS,
        State.LAST_STEP,
        State.LAST_CHECKED,
    )
)
_VERIFY_CAPACITY, _REQUEST_CAPACITY, _TOKEN_CAPACITY = (
    int(cell) for cell in (State.VERIFY_CAPACITY, State.REQUEST_CAPACITY, State.TOKEN_CAPACITY)
)
_NEW_REQUESTS, _NEW_COUNT, _NEW_ROOM = (
    int(cell) for cell in (State.NEW_REQUESTS, State.NEW_COUNT, State.NEW_ROOM)
)
_HAS_LEDGER = int(State.HAS_LEDGER)
_OWNERSHIP, _WRITES = int(State.OWNERSHIP), int(State.WRITES)
_OWNER, _LAST_OWNER = place(OWNERSHIP, "owner"), place(OWNERSHIP, "last_owner")
_ALLOC_EVENT, _SHARED = place(OWNERSHIP, "alloc_event"), place(OWNERSHIP, "shared")
_WRITE_EVENT, _MOVED_EVENT = place(WRITES, "event"), place(WRITES, "moved_event")
_LEDGER_TENANTS, _LEDGER_STEP, _STEPS_SEEN = (
    int(cell) for cell in (State.LEDGER_TENANTS, State.LEDGER_STEP, State.STEPS_SEEN)
)
_BATCH_SLOTS, _BATCH_STEPS = int(State.BATCH_SLOTS), int(State.BATCH_STEPS)
_LAST_STEPS = int(State.LAST_STEPS)
_HEAD_TAG, _TAIL_TAG = int(LaunchTag.HEAD_K_FULL), int(LaunchTag.TAIL_K_FULL)


@helper
def _count(state, cell, more):  # type: ignore[no-untyped-def]
    store_i64(state, cell, load_i64(state, cell) + more)


@helper
def _reads_well(state, slot, reader):  # type: ignore[no-untyped-def]
    """Whether ``reader`` may read ``slot``, and its content is newer than the slot."""
    owned = load_i64(state, _OWNERSHIP) + slot * LINE
    owner = load_i32(owned, _OWNER)
    if owner == _FREE:
        return False
    if owner > _TREE and owner != reader and load_u8(owned, _SHARED) == 0:
        return False
    allocated = load_i64(owned, _ALLOC_EVENT)
    if allocated != _NEVER and owner != _UNKNOWN:
        written = load_i64(state, _WRITES) + slot * LINE
        return max(load_i64(written, _WRITE_EVENT), load_i64(written, _MOVED_EVENT)) >= allocated
    return True


@helper
def _writes_well(state, slot, writer):  # type: ignore[no-untyped-def]
    """Whether ``slot`` is the writer's to write."""
    owned = load_i64(state, _OWNERSHIP) + slot * LINE
    owner = load_i32(owned, _OWNER)
    if owner > _FREE:
        return owner == writer
    return owner != _FREE or load_i32(owned, _LAST_OWNER) == writer


@helper
def _row_is_right(row, position, token, wanted_hash):  # type: ignore[no-untyped-def]
    """Whether a canary row at address ``row`` without fingerprint is what is wanted."""
    wrong = load_i64(row, 1) ^ position
    wrong |= load_i64(row, 2) ^ wanted_hash
    wrong |= load_i64(row, 3)
    if token != -1:
        wrong |= load_i64(row, 0) ^ token
    return wrong == 0


@helper
def _cells_are_right(state, row, start, stop, reader, stamp):  # type: ignore[no-untyped-def]
    """Whether cells [start, stop) of ``row`` verify, and ``reader`` may read them."""
    num_slots = load_i64(state, _SLOTS)
    head, tail = load_i64(state, _HEAD), load_i64(state, _TAIL)
    stamps = load_i64(state, _STAMPS)
    pool, width = load_i64(state, _POOL), load_i64(state, _POOL_WIDTH)
    limit = load_i64(load_i64(state, _LIMITS), row)
    has_ledger = load_i64(state, _HAS_LEDGER) != 0
    line = load_i64(state, _TABLE) + row * load_i64(state, _ROW_LEN) * 4
    prev = -1
    if start > 0:
        prev = load_i32(line, start - 1)
        if prev <= 0 or prev >= num_slots:
            return False
        if load_i64(stamps, prev) == stamp:
            return False
    for position in range(start, stop):
        ahead = load_i32(line, min(position + _AHEAD, stop - 1))
        prefetch(head + ahead * _ROW_BYTES)
        prefetch(tail + ahead * _ROW_BYTES)
        slot = load_i32(line, position)
        if slot <= 0 or slot >= num_slots:
            return False
        if load_i64(stamps, slot) == stamp:
            return False
        token = expected_token(pool, width, row, limit, position)
        is_head = prev < 0
        if not _row_is_right(
            head + slot * _ROW_BYTES,
            position,
            token,
            as_int64(slot_hash(head + prev * _ROW_BYTES, is_head)),
        ):
            return False
        if not _row_is_right(
            tail + slot * _ROW_BYTES,
            position,
            token,
            as_int64(slot_hash(tail + prev * _ROW_BYTES, is_head)),
        ):
            return False
        if has_ledger and not _reads_well(state, slot, reader):
            return False
        prev = slot
    return True


@helper
def _prepare_row(state, row, req, prefix, extend, first, columns, stamp, out):  # type: ignore[no-untyped-def]
    """Look at one row of the batch; ``Stop.END`` if it may be taken.

    Args:
        first: Its first token among the segment's.
    """
    if row < 0 or row >= load_i64(state, _ROWS):
        return _GENERAL
    row_stamps = load_i64(state, _ROW_STAMPS)
    if load_i64(row_stamps, row) == stamp:
        return _GENERAL
    store_i64(row_stamps, row, stamp)
    if extend < 1 or prefix < 0 or prefix + extend > load_i64(state, _ROW_LEN):
        return _GENERAL
    facts = load_i64(state, _REQUESTS) + req * _FIELDS * 8
    pool, width = load_i64(state, _POOL), load_i64(state, _POOL_WIDTH)
    limit = 0
    if pool != 0 and load_i64(state, _HAS_TOKENS) != 0 and load_i64(facts, _HISTORY_KNOWN) != 0:
        if load_i64(facts, _HISTORY_ROW) != row:
            store_i64(out, 1, row)
            store_i64(out, 2, req)
            return _BIND
        limit = load_i64(facts, _HISTORY_LEN)
    has_ledger = load_i64(state, _HAS_LEDGER) != 0
    code = load_i64(facts, _CODE)
    if has_ledger:
        if code < 0:
            store_i64(out, 1, req)
            return _NAME
        if load_i64(load_i64(state, _LEDGER_TENANTS), row) != code:
            store_i64(out, 1, row)
            store_i64(out, 2, req)
            return _TENANT
    if load_i64(load_i64(state, _AGAIN), row) != 0:
        return _GENERAL
    tenants, limits = load_i64(state, _TENANTS), load_i64(state, _LIMITS)
    if load_i64(tenants, row) != req or limit < load_i64(limits, row):
        forget_row(state, row, 0)
        store_i64(tenants, row, req)
    else:
        forget_row(state, row, prefix)
    store_i64(limits, row, limit)
    num_slots = load_i64(state, _SLOTS)
    ids = load_i64(columns, _C_IDS) + first * 8
    positions = load_i64(columns, _C_POSITIONS) + first * 8
    locs = load_i64(columns, _C_LOCS) + first * 8
    stamps, refs = load_i64(state, _STAMPS), load_i64(state, _REFS)
    for i in range(extend):
        slot = load_i64(locs, i)
        if slot <= 0 or slot >= num_slots or load_i64(positions, i) != prefix + i:
            return _GENERAL
        if load_i64(stamps, slot) == stamp:
            return _GENERAL
        store_i64(stamps, slot, stamp)
        if load_i32(refs, slot) != 0 and not forget_slot(state, slot):
            return _GENERAL
        token = expected_token(pool, width, row, limit, prefix + i)
        if token != -1 and token != load_i64(ids, i):
            return _GENERAL
        if has_ledger and not _writes_well(state, slot, code):
            return _GENERAL
    return _END


@helper
def _write_rows(state, columns, first, extend, seed):  # type: ignore[no-untyped-def]
    """Write the canary rows of one batch row behind slot ``seed`` (-1 = head)."""
    head, tail = load_i64(state, _HEAD), load_i64(state, _TAIL)
    written_at, serial = load_i64(state, _WRITTEN_AT), load_i64(state, _SERIAL)
    ids = load_i64(columns, _C_IDS) + first * 8
    positions = load_i64(columns, _C_POSITIONS) + first * 8
    locs = load_i64(columns, _C_LOCS) + first * 8
    head_hash = slot_hash(head + seed * _ROW_BYTES, seed < 0)
    tail_hash = slot_hash(tail + seed * _ROW_BYTES, seed < 0)
    for i in range(extend):
        ahead = load_i64(locs, min(i + _AHEAD, extend - 1))
        prefetch(head + ahead * _ROW_BYTES)
        prefetch(tail + ahead * _ROW_BYTES)
        slot, token, position = load_i64(locs, i), load_i64(ids, i), load_i64(positions, i)
        line = head + slot * _ROW_BYTES
        store_i64(line, 0, token)
        store_i64(line, 1, position)
        store_i64(line, 2, as_int64(head_hash))
        store_i64(line, 3, 0)
        line = tail + slot * _ROW_BYTES
        store_i64(line, 0, token)
        store_i64(line, 1, position)
        store_i64(line, 2, as_int64(tail_hash))
        store_i64(line, 3, 0)
        store_i32(written_at, slot, serial)
        same = head_hash == tail_hash
        head_hash = chain_step(head_hash, token, position)
        tail_hash = head_hash if same else chain_step(tail_hash, token, position)


@helper
def _learn_row(state, row, prefix, event):  # type: ignore[no-untyped-def]
    """All cells of ``row`` up to ``prefix`` are known now; those with a token to compare."""
    row_len = load_i64(state, _ROW_LEN)
    line = load_i64(state, _TABLE) + row * row_len * 4
    refs, mapper = load_i64(state, _REFS), load_i64(state, _MAPPER)
    checked, tokens_known = load_i64(state, _CHECKED), load_i64(state, _TOKENS_KNOWN)
    pool, width = load_i64(state, _POOL), load_i64(state, _POOL_WIDTH)
    limit = load_i64(load_i64(state, _LIMITS), row)
    tokens = load_i64(tokens_known, row)
    for position in range(load_i64(checked, row), prefix):
        slot = load_i32(line, position)
        store_i32(refs, slot, load_i32(refs, slot) + 1)
        store_i64(mapper, slot, row * row_len + position)
        if expected_token(pool, width, row, limit, position) != -1:
            tokens += 1
    store_i64(checked, row, prefix)
    store_i64(tokens_known, row, tokens)
    store_i64(load_i64(state, _ROW_READ), row, event)
    store_i64(load_i64(state, _READ_LEN), row, prefix)
    return tokens


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
    if load_i64(state, _NEW_ROOM) - load_i64(state, _NEW_COUNT) < bs:
        return _ROOM
    stamp = load_i64(state, _STAMP) + 1
    store_i64(state, _STAMP, stamp)

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
        else:
            prefix, extend = load_i64(prefixes, active), load_i64(extends, active)
        if tokens + extend > num_tokens:
            return _GENERAL
        why = _prepare_row(
            state,
            load_i64(rows, active),
            req,
            prefix,
            extend,
            first_token + tokens,
            columns,
            stamp,
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
    locs = load_i64(columns, _C_LOCS) + first_token * 8
    for i in range(tokens, num_tokens):
        if load_i64(locs, i) != 0:
            return _GENERAL
    requests = load_i64(state, _REQUESTS)
    checked = load_i64(state, _CHECKED)
    for b in range(active):
        row = load_i64(rows, b)
        prefix = load_i64(positions, b) if mode == _DECODE else load_i64(prefixes, b)
        facts = requests + load_i64(req_of, load_i32(reqs, b)) * _FIELDS * 8
        start = load_i64(checked, row)
        if not _cells_are_right(state, row, start, prefix, load_i64(facts, _CODE), stamp):
            return _GENERAL

    # From here on it is taken.
    step = load_i64(load_i64(columns, _C_STEP), at)
    has_ledger = load_i64(state, _HAS_LEDGER) != 0
    if has_ledger and step != load_i64(state, _LEDGER_STEP):
        store_i64(state, _LEDGER_STEP, step)
        _count(state, _STEPS_SEEN, 1)
    _count(state, _SERIAL, 1)
    table, row_len = load_i64(state, _TABLE), load_i64(state, _ROW_LEN)
    token_entries = 0
    token = first_token
    for b in range(active):
        row = load_i64(rows, b)
        prefix, extend = load_i64(positions, b), 1
        if mode != _DECODE:
            prefix, extend = load_i64(prefixes, b), load_i64(extends, b)
        seed = -1
        if prefix > 0:
            seed = load_i32(table, row * row_len + prefix - 1)
        _write_rows(state, columns, token, extend, seed)
        token_entries += _learn_row(state, row, prefix, event)
        req = load_i64(req_of, load_i32(reqs, b))
        facts = requests + req * _FIELDS * 8
        store_i64(facts, _TABLE_ROW, row)
        if load_i64(facts, _SEEN) == 0:
            store_i64(facts, _SEEN, 1)
            _list(state, _NEW_REQUESTS, _NEW_COUNT, req)
        if has_ledger:
            store_i64(load_i64(state, _LAST_STEPS), load_i64(facts, _CODE), step)
            note_writes(state, columns, token, extend, load_i64(facts, _CODE), step, event, b)
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
