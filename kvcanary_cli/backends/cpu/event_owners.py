"""Helpers of the event kernel: who owns slots (``attribution.ownership``), and who may read them.

Without a ledger only the prefix index follows what comes into the cache and what leaves it.
"""

from __future__ import annotations

from kvcanary_cli.backends.cpu.event_known import forget_slot
from kvcanary_cli.backends.cpu.event_names import code_of, facts_of, lacks_names, named
from kvcanary_cli.backends.cpu.event_prefixes import FROM_START, lacks_places, show_entry
from kvcanary_cli.backends.cpu.event_records import (
    FREE,
    HALF_LINE,
    LANE,
    LINE,
    NEVER,
    OWNERSHIP,
    PAST,
    TREE,
    UNKNOWN,
    place,
)
from kvcanary_cli.backends.cpu.event_stamps import next_stamp
from kvcanary_cli.backends.cpu.event_state import LIST_ROOM, Columns, Request, State, Stop
from kvcanary_cli.backends.cpu.hashes import as_int64, slot_hash
from kvcanary_cli.backends.cpu.jit import constants, helper
from kvcanary_cli.backends.cpu.memory import (
    load_i32,
    load_i64,
    load_u8,
    prefetch,
    store_i32,
    store_i64,
    store_u8,
)

# Slots that are asked for before their turn.
_AHEAD = 28

_GONE, _TABLE_ROW = int(Request.GONE), int(Request.TABLE_ROW)
_END, _GENERAL, _ROOM, _PLACES_FULL = constants(Stop.END, Stop.GENERAL, Stop.ROOM, Stop.PLACES_FULL)

_C_ALLOC_OWNER, _C_ALLOC_OFFSETS, _C_ALLOC_SLOTS = constants(
    Columns.ALLOC_OWNER, Columns.ALLOC_OFFSETS, Columns.ALLOC_SLOTS
)
_C_OWN_FROM, _C_OWN_OWNER, _C_OWN_ENTRY = constants(
    Columns.OWN_FROM, Columns.OWN_OWNER, Columns.OWN_ENTRY
)
_C_OWN_OFFSETS, _C_OWN_SLOTS = int(Columns.OWN_OFFSETS), int(Columns.OWN_SLOTS)
_C_FREE_OWNER, _C_FREE_REASON = int(Columns.FREE_OWNER), int(Columns.FREE_REASON)
_C_FREE_OFFSETS, _C_FREE_SLOTS = int(Columns.FREE_OFFSETS), int(Columns.FREE_SLOTS)
_C_PUBLISH_ENTRY, _C_PUBLISH_REQ = int(Columns.PUBLISH_ENTRY), int(Columns.PUBLISH_REQ)
_C_PUBLISH_OFFSETS, _C_PUBLISH_SLOTS = int(Columns.PUBLISH_OFFSETS), int(Columns.PUBLISH_SLOTS)
_C_MATCH_REQ, _C_MATCH_OFFSETS, _C_MATCH_SLOTS = constants(
    Columns.MATCH_REQ, Columns.MATCH_OFFSETS, Columns.MATCH_SLOTS
)
_C_ENTRY_OF = int(Columns.ENTRY_OF)

_HAS_LEDGER, _PAST, _LAST_ALLOCS = constants(State.HAS_LEDGER, State.PAST, State.LAST_ALLOCS)
_RECORDS, _CANARY = int(State.RECORDS), int(State.CANARY)
_SLOT_STAMP, _REFS = place(LANE, "stamp"), place(LANE, "refs")
_RETURNS, _TREE_REQ = int(State.RETURNS), int(State.TREE)
_MATCHED, _MATCHED_COUNT = int(State.MATCHED), int(State.MATCHED_COUNT)
_WATCHES_MATCHES, _WATCHES_ENTRIES = int(State.WATCHES_MATCHES), int(State.WATCHES_ENTRIES)

_OWNER, _LAST_OWNER, _SINCE = (place(OWNERSHIP, name) for name in ("owner", "last_owner", "since"))
_ALLOC_EVENT, _BAD_WHAT = place(OWNERSHIP, "alloc_event"), place(OWNERSHIP, "bad_what")
_PUBLISHED, _PUBLISHED_BY = place(OWNERSHIP, "published_event"), place(PAST, "published_by")
_FREE_EVENT, _FREE_CHAIN, _FREE_BY, _FREE_REASON = (
    place(PAST, name) for name in ("free_event", "free_chain", "free_by", "free_reason")
)
_SHARED, _FORKED = place(OWNERSHIP, "shared"), place(OWNERSHIP, "forked")


@helper
def _may_pass(state, slots, count, first, second, third, forgets):  # type: ignore[no-untyped-def]
    """Whether ``slots`` may pass on: all different, of one of three owners, and never ill-treated.

    Args:
        forgets: Whether what is known of cells that hold them is forgotten.
    """
    records, stamp = load_i64(state, _RECORDS), next_stamp(state)
    for k in range(count):
        if k + _AHEAD < count:
            prefetch(records + load_i64(slots, k + _AHEAD) * LINE)
        slot = load_i64(slots, k)
        record = records + slot * LINE
        owner = load_i32(record, _OWNER)
        if owner != first and owner != second and owner != third:
            return False
        if load_u8(record, _BAD_WHAT) != 0 or load_i32(record, _SLOT_STAMP) == stamp:
            return False
        store_i32(record, _SLOT_STAMP, stamp)
        if forgets and load_i32(record, _REFS) != 0 and not forget_slot(state, slot):
            return False
    return True


@helper
def take_alloc(state, columns, at, event):  # type: ignore[no-untyped-def]
    """Slots leave the free list; ``Stop.END`` if that was ordinary, and done."""
    if load_i64(state, _HAS_LEDGER) == 0:
        return _END
    req = named(columns, _C_ALLOC_OWNER, at)
    if req < 0 or load_i64(facts_of(state, req), _GONE) != 0:
        return _GENERAL
    if lacks_names(state, 1):
        return _ROOM
    offsets = load_i64(columns, _C_ALLOC_OFFSETS)
    first = load_i64(offsets, at)
    count = load_i64(offsets, at + 1) - first
    slots = load_i64(columns, _C_ALLOC_SLOTS) + first * 8
    if not _may_pass(state, slots, count, UNKNOWN, FREE, FREE, True):
        return _GENERAL
    code, owners = code_of(state, req), load_i64(state, _RECORDS)
    store_i64(load_i64(state, _LAST_ALLOCS), code, event)
    for k in range(count):
        line = owners + load_i64(slots, k) * LINE
        store_i32(line, _LAST_OWNER, load_i32(line, _OWNER))
        store_i32(line, _OWNER, code)
        store_i64(line, _SINCE, event)
        store_i64(line, _ALLOC_EVENT, event)
        store_i64(line, _PUBLISHED, NEVER)
        store_u8(line, _SHARED, 0)
        store_u8(line, _FORKED, 0)
    return _END


@helper
def take_own(state, columns, at, event, out):  # type: ignore[no-untyped-def]
    """Slots pass from one owner to another one, often the cache, and into its index then."""
    giver, taker = named(columns, _C_OWN_FROM, at), named(columns, _C_OWN_OWNER, at)
    if giver < 0 or taker < 0:
        return _GENERAL
    offsets = load_i64(columns, _C_OWN_OFFSETS)
    first = load_i64(offsets, at)
    count = load_i64(offsets, at + 1) - first
    slots = load_i64(columns, _C_OWN_SLOTS) + first * 8
    entry = load_i32(load_i64(columns, _C_OWN_ENTRY), at)
    is_shown = entry >= 0 and taker == load_i64(state, _TREE_REQ)
    if is_shown and lacks_places(state, count, out):
        return _PLACES_FULL
    if load_i64(state, _HAS_LEDGER) != 0:
        if lacks_names(state, 2):
            return _ROOM
        code = code_of(state, giver)
        new = code_of(state, taker)
        # What the taker has already is only named again. Whoever might read a slot before may read
        # it from the cache: what is known of its cells stays so.
        if not _may_pass(state, slots, count, code, new, UNKNOWN, new != TREE):
            return _GENERAL
        owners, past = load_i64(state, _RECORDS), load_i64(state, _PAST)
        for k in range(count):
            if is_shown:
                ahead = load_i64(slots, min(k + _AHEAD, count - 1))
                prefetch(past + ahead * HALF_LINE)
            line = owners + load_i64(slots, k) * LINE
            store_i32(line, _LAST_OWNER, load_i32(line, _OWNER))
            store_i32(line, _OWNER, new)
            store_i64(line, _SINCE, event)
            if is_shown or giver == taker:
                store_u8(line, _SHARED, 1)
            if is_shown:
                store_i64(line, _PUBLISHED, event)
                store_i32(past + load_i64(slots, k) * HALF_LINE, _PUBLISHED_BY, code)
    if is_shown:
        row = load_i64(facts_of(state, giver), _TABLE_ROW)
        number = load_i64(load_i64(columns, _C_ENTRY_OF), entry)
        show_entry(state, number, slots, count, row, event)
    return _END


@helper
def _note_returns(state, slots, count):  # type: ignore[no-untyped-def]
    """The tree gives ``slots`` back, which are all different; False if they are not."""
    returns = load_i64(state, _RETURNS)
    if load_i64(state, _HAS_LEDGER) == 0:
        records, stamp = load_i64(state, _RECORDS), next_stamp(state)
        for k in range(count):
            record = records + load_i64(slots, k) * LINE
            if load_i32(record, _SLOT_STAMP) == stamp:
                return False
            store_i32(record, _SLOT_STAMP, stamp)
    for k in range(count):
        slot = load_i64(slots, k)
        store_i32(returns, slot, load_i32(returns, slot) + 1)
    return True


@helper
def take_free(state, columns, at, event):  # type: ignore[no-untyped-def]
    """Slots go back to the free list."""
    req = named(columns, _C_FREE_OWNER, at)
    if req < 0:
        return _GENERAL
    offsets = load_i64(columns, _C_FREE_OFFSETS)
    first = load_i64(offsets, at)
    count = load_i64(offsets, at + 1) - first
    slots = load_i64(columns, _C_FREE_SLOTS) + first * 8
    is_tree = req == load_i64(state, _TREE_REQ)
    if load_i64(state, _HAS_LEDGER) == 0:
        return _END if not is_tree or _note_returns(state, slots, count) else _GENERAL
    if lacks_names(state, 1):
        return _ROOM
    code = code_of(state, req)
    if not _may_pass(state, slots, count, code, code, code, True):
        return _GENERAL
    reason = load_i32(load_i64(columns, _C_FREE_REASON), at)
    owners, past = load_i64(state, _RECORDS), load_i64(state, _PAST)
    canary = load_i64(state, _CANARY)
    for k in range(count):
        ahead = load_i64(slots, min(k + _AHEAD, count - 1))
        prefetch(canary + ahead * LINE)
        prefetch(past + ahead * HALF_LINE)
        slot = load_i64(slots, k)
        line, freed = owners + slot * LINE, past + slot * HALF_LINE
        store_i32(line, _OWNER, FREE)
        store_i64(line, _SINCE, event)
        store_i32(line, _LAST_OWNER, code)
        store_i64(freed, _FREE_EVENT, event)
        store_i32(freed, _FREE_BY, code)
        store_i32(freed, _FREE_REASON, reason)
        store_u8(line, _FORKED, 0)
        store_u8(line, _SHARED, 0)
        store_i64(freed, _FREE_CHAIN, as_int64(slot_hash(canary + slot * LINE, False)))
    if is_tree:
        _note_returns(state, slots, count)
    return _END


@helper
def take_publish(state, columns, at, event, out):  # type: ignore[no-untyped-def]
    """Slots become visible to others, wherever their owner is."""
    string = load_i32(load_i64(columns, _C_PUBLISH_REQ), at)
    req = named(columns, _C_PUBLISH_REQ, at)
    entry = load_i32(load_i64(columns, _C_PUBLISH_ENTRY), at)
    if entry < 0 or (string >= 0 and req < 0):
        return _GENERAL
    if load_i64(state, _HAS_LEDGER) != 0 and load_i64(state, _WATCHES_ENTRIES) != 0:
        return _GENERAL
    offsets = load_i64(columns, _C_PUBLISH_OFFSETS)
    first = load_i64(offsets, at)
    count = load_i64(offsets, at + 1) - first
    slots = load_i64(columns, _C_PUBLISH_SLOTS) + first * 8
    if lacks_places(state, count, out):
        return _PLACES_FULL
    if load_i64(state, _HAS_LEDGER) != 0:
        if lacks_names(state, 1):
            return _ROOM
        owners = load_i64(state, _RECORDS)
        for k in range(count):
            if load_i32(owners + load_i64(slots, k) * LINE, _OWNER) == FREE:
                return _GENERAL
        code = TREE
        if req >= 0:
            code = code_of(state, req)
        past = load_i64(state, _PAST)
        for k in range(count):
            slot = load_i64(slots, k)
            line = owners + slot * LINE
            store_u8(line, _SHARED, 1)
            store_i64(line, _PUBLISHED, event)
            store_i32(past + slot * HALF_LINE, _PUBLISHED_BY, code)
    row = FROM_START
    if req >= 0:
        row = load_i64(facts_of(state, req), _TABLE_ROW)
        if row < 0:
            row = FROM_START
    number = load_i64(load_i64(columns, _C_ENTRY_OF), entry)
    show_entry(state, number, slots, count, row, event)
    return _END


@helper
def take_match(state, columns, at, event):  # type: ignore[no-untyped-def]
    """A request is served from a published prefix."""
    if load_i64(state, _HAS_LEDGER) == 0:
        return _END
    req = named(columns, _C_MATCH_REQ, at)
    if req < 0 or load_i64(state, _WATCHES_MATCHES) != 0:
        return _GENERAL
    if load_i64(facts_of(state, req), _GONE) != 0:
        # Another request of that name begins.
        return _GENERAL
    listed = load_i64(state, _MATCHED_COUNT)
    if lacks_names(state, 1) or listed == LIST_ROOM:
        return _ROOM
    offsets = load_i64(columns, _C_MATCH_OFFSETS)
    slots, owners = load_i64(columns, _C_MATCH_SLOTS), load_i64(state, _RECORDS)
    code = code_of(state, req)
    for k in range(load_i64(offsets, at), load_i64(offsets, at + 1)):
        line = owners + load_i64(slots, k) * LINE
        owner = load_i32(line, _OWNER)
        if owner == FREE:
            return _GENERAL
        if owner > TREE and owner != code and load_u8(line, _SHARED) == 0:
            return _GENERAL
    fact = load_i64(state, _MATCHED) + listed * 24
    store_i64(fact, 0, code)
    store_i64(fact, 1, event)
    store_i64(fact, 2, at)
    store_i64(state, _MATCHED_COUNT, listed + 1)
    return _END
