"""Appending to the fill-once violation ring from a kernel (specification 1.10).

Violations are rare: a block without any pays one reduction. A block with some takes its places in
the ring with a single atomic, in the order of its lanes; the order of blocks is free.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kvcanary_cli.abi.constants import (
    RING_EXPECTED_AUX,
    RING_EXPECTED_TOKEN,
    RING_FAIL_BITS,
    RING_FIELDS,
    RING_KERNEL_KIND,
    RING_POSITION,
    RING_SLOT,
    RING_STORED_CHAIN_HASH,
    RING_STORED_TOKEN,
)

_FIELDS = tl.constexpr(RING_FIELDS)
_KERNEL_KIND = tl.constexpr(RING_KERNEL_KIND)
_SLOT = tl.constexpr(RING_SLOT)
_POSITION = tl.constexpr(RING_POSITION)
_STORED_TOKEN = tl.constexpr(RING_STORED_TOKEN)
_EXPECTED_TOKEN = tl.constexpr(RING_EXPECTED_TOKEN)
_STORED_CHAIN_HASH = tl.constexpr(RING_STORED_CHAIN_HASH)
_EXPECTED_AUX = tl.constexpr(RING_EXPECTED_AUX)
_FAIL_BITS = tl.constexpr(RING_FAIL_BITS)


@triton.jit
def append_violations(
    ring_ptr,
    write_index_ptr,
    ring_capacity,
    kernel_kind,
    bits,
    slot,
    position,
    stored_token,
    expected_token,
    stored_chain_hash,
    expected_aux,
):
    """Append a row for every lane whose ``bits`` are not 0; all lanes are [n] int64."""
    violated = bits != 0
    count = tl.sum(violated.to(tl.int32), axis=0)
    if count > 0:
        first = tl.atomic_add(write_index_ptr, count, sem="relaxed")
        seq = first + tl.cumsum(violated.to(tl.int32), axis=0) - 1
        # The index never stops growing, so it may wrap to negative numbers, which name no row.
        keep = violated & (seq >= 0) & (seq < ring_capacity)
        row_ptr = ring_ptr + seq.to(tl.int64) * _FIELDS
        tl.store(row_ptr + _KERNEL_KIND, tl.zeros_like(slot) + kernel_kind, mask=keep)
        tl.store(row_ptr + _SLOT, slot, mask=keep)
        tl.store(row_ptr + _POSITION, position, mask=keep)
        tl.store(row_ptr + _STORED_TOKEN, stored_token, mask=keep)
        tl.store(row_ptr + _EXPECTED_TOKEN, expected_token, mask=keep)
        tl.store(row_ptr + _STORED_CHAIN_HASH, stored_chain_hash, mask=keep)
        tl.store(row_ptr + _EXPECTED_AUX, expected_aux, mask=keep)
        tl.store(row_ptr + _FAIL_BITS, bits, mask=keep)
