"""Plan kernels (specification 3.1)."""

from __future__ import annotations

from kvcanary_cli.abi.faults import Fault
from kvcanary_cli.backends.cpu.hashes import worse_fault
from kvcanary_cli.backends.cpu.jit import helper, kernel
from kvcanary_cli.backends.cpu.memory import load_i32, load_i64, store_i32, store_i64

_SWA_SLOT = int(Fault.SWA_SLOT)
_PREFIX = int(Fault.PREFIX)
_REQUEST_ROW = int(Fault.REQUEST_ROW)


@helper
def _slot_at(table_row, position, lut, lut_len, fault):  # type: ignore[no-untyped-def]
    """Slot of a position in the group's pool, and ``fault`` or a worse one."""
    slot = load_i32(table_row, position)
    if lut_len > 0 and slot >= 0:
        if slot >= lut_len:
            return 0, worse_fault(fault, _SWA_SLOT, slot)
        slot = load_i64(lut, slot)
    return slot, fault


@kernel
def plan_rows(  # type: ignore[no-untyped-def]
    bs,
    req,
    prefixes,
    extends,
    table,
    num_rows,
    row_len,
    window,
    lut,
    lut_len,
    capacity,
    num_valid,
    enable,
    offsets,
    offsets_len,
    seeds,
    num_reqs,
    starts,
):
    """Fill the write plan and count entries.

    Args:
        starts: Address of [bs + 1] int64, filled with the prefix sums of entries per row.

    Returns:
        Entries in total, the worst fault.
    """
    fault = 0
    total = 0
    offset = 0
    store_i64(starts, 0, 0)
    store_i64(offsets, 0, 0)
    for r in range(bs):
        row = load_i64(req, r)
        prefix = load_i64(prefixes, r)
        active = row != 0
        if active and (row < 0 or row >= num_rows):
            fault = worse_fault(fault, _REQUEST_ROW, row)
            active = False
        if active and (prefix < 0 or prefix > row_len):
            fault = worse_fault(fault, _PREFIX, prefix)
            active = False
        seed = -1
        if active:
            total += min(prefix, window) if window > 0 else prefix
            extend = load_i64(extends, r)
            if extend > 0:
                offset += extend
                if prefix > 0:
                    seed, fault = _slot_at(
                        table + row * row_len * 4, prefix - 1, lut, lut_len, fault
                    )
        store_i64(seeds, r, seed)
        store_i64(offsets, r + 1, offset)
        store_i64(starts, r + 1, total)
    for r in range(bs + 1, offsets_len):
        store_i64(offsets, r, 0)
    store_i32(num_reqs, 0, bs)
    store_i32(num_valid, 0, min(total, capacity))
    store_i32(enable, 0, 1 if total <= capacity else 0)
    return total, fault


@kernel
def plan_entries(  # type: ignore[no-untyped-def]
    start,
    stop,
    starts,
    bs,
    req,
    prefixes,
    table,
    row_len,
    lut,
    lut_len,
    pool,
    pool_width,
    pool_is_wide,
    valid_lens,
    token_offset,
    slots,
    tokens,
    positions,
    prevs,
):
    """Fill verify entries [start, stop) of all; return the worst fault.

    Args:
        starts: From ``plan_rows``.
        pool_width: 0 = no token pool.
        pool_is_wide: Whether the pool is int64, else int32.
    """
    fault = 0
    low, high = 0, bs
    while high - low > 1:
        middle = (low + high) >> 1
        if load_i64(starts, middle) <= start:
            low = middle
        else:
            high = middle
    entry = start
    r = low
    while entry < stop:
        end = min(load_i64(starts, r + 1), stop)
        if entry < end:
            row = load_i64(req, r)
            table_row = table + row * row_len * 4
            # A row's entries end at its prefix; ``shift`` turns an entry number into a position.
            shift = load_i64(prefixes, r) - load_i64(starts, r + 1)
            limit = 0
            if pool_width > 0:
                limit = min(load_i64(valid_lens, r), pool_width)
            prev = -1
            if entry + shift > 0:
                prev, fault = _slot_at(table_row, entry + shift - 1, lut, lut_len, fault)
            for n in range(entry, end):
                position = n + shift
                slot, fault = _slot_at(table_row, position, lut, lut_len, fault)
                token = -1
                index = position + token_offset
                if 0 <= index < limit:
                    if pool_is_wide:
                        token = load_i64(pool, row * pool_width + index)
                    else:
                        token = load_i32(pool, row * pool_width + index)
                store_i64(slots, n, slot)
                store_i64(tokens, n, token)
                store_i64(positions, n, position)
                store_i64(prevs, n, prev)
                prev = slot
            entry = end
        r += 1
    return fault
