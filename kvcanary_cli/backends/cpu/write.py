"""Write kernels (specification 3.3)."""

from __future__ import annotations

import numpy as np

from kvcanary_cli.abi.constants import FailReason
from kvcanary_cli.abi.faults import Fault
from kvcanary_cli.backends.cpu.hashes import as_int64, chain_step, slot_hash, worse_fault
from kvcanary_cli.backends.cpu.jit import helper, kernel
from kvcanary_cli.backends.cpu.memory import (
    load_i32,
    load_i64,
    load_u8,
    prefetch,
    store_i32,
    store_i64,
    store_u8,
)
from kvcanary_cli.backends.cpu.real_kv import real_kv_hash
from kvcanary_cli.backends.cpu.verify import append_violation

_TOKEN = int(FailReason.WRITE_TOKEN_MISMATCH)
_POSITION = int(FailReason.WRITE_POSITION_MISMATCH)
_WRITE_SLOT = int(Fault.WRITE_SLOT)
_WRITE_SEED = int(Fault.WRITE_SEED)
_WRITE_OFFSETS = int(Fault.WRITE_OFFSETS)
_PREFETCH_ENTRIES = 16


@helper
def _bounds(offsets, r, num_tokens):  # type: ignore[no-untyped-def]
    """First and last+1 token of request ``r``, cut to the tokens that exist."""
    start = load_i64(offsets, r)
    stop = load_i64(offsets, r + 1)
    if stop <= start:
        return 0, 0
    return max(start, 0), min(stop, num_tokens)


@kernel
def write_requests(  # type: ignore[no-untyped-def]
    canary,
    stride,
    num_slots,
    offsets,
    seeds,
    first,
    last,
    num_tokens,
    ids,
    positions,
    locs,
    expected_ids,
    expected_positions,
    check_inputs,
    check_chain,
    kind,
    sources,
    num_sources,
    ring,
    ring_capacity,
    seq,
):
    """Write requests [first, last) in order.

    Returns:
        The next violation number, the slots written, the worst fault.
    """
    fault = 0
    written = 0
    for r in range(first, last):
        if load_i64(offsets, r + 1) > load_i64(offsets, r):
            if load_i64(offsets, r) < 0:
                fault = worse_fault(fault, _WRITE_OFFSETS, load_i64(offsets, r))
            if load_i64(offsets, r + 1) > num_tokens:
                fault = worse_fault(fault, _WRITE_OFFSETS, load_i64(offsets, r + 1))
        start, stop = _bounds(offsets, r, num_tokens)
        if stop <= start:
            continue
        seed = load_i64(seeds, r)
        if seed >= num_slots:
            fault = worse_fault(fault, _WRITE_SEED, seed)
            seed = -1
        is_head = seed < 0
        h = slot_hash(canary + seed * stride, is_head)
        follow = check_chain != 0 and not is_head
        prev_position = 0
        if follow:
            prev_position = load_i64(canary + seed * stride, 1)
        for i in range(start, stop):
            ahead = i + _PREFETCH_ENTRIES
            if ahead < stop:
                prefetch(canary + load_i64(locs, ahead) * stride)
            slot = load_i64(locs, i)
            if slot < 0:
                continue
            if slot >= num_slots:
                fault = worse_fault(fault, _WRITE_SLOT, slot)
                continue
            written += 1
            token = load_i64(ids, i)
            position = load_i64(positions, i)
            kv_hash = 0
            if num_sources > 0:
                acc, fault = real_kv_hash(sources, num_sources, slot, fault)
                kv_hash = as_int64(acc)
            if check_inputs:
                want_token = load_i64(expected_ids, i)
                want_position = load_i64(expected_positions, i)
                bits = 0
                if token != want_token:
                    bits |= _TOKEN
                if position != want_position:
                    bits |= _POSITION
                if bits:
                    seq = append_violation(
                        ring,
                        ring_capacity,
                        seq,
                        kind,
                        slot,
                        position,
                        token,
                        want_token,
                        as_int64(h),
                        want_position,
                        bits,
                    )
            if follow:
                want_position = prev_position + 1
                if position != want_position:
                    seq = append_violation(
                        ring,
                        ring_capacity,
                        seq,
                        kind,
                        slot,
                        position,
                        token,
                        token,
                        as_int64(h),
                        want_position,
                        _POSITION,
                    )
                prev_position = position
            row = canary + slot * stride
            store_i64(row, 0, token)
            store_i64(row, 1, position)
            store_i64(row, 2, as_int64(h))
            store_i64(row, 3, kv_hash)
            h = chain_step(h, token, position)
    return seq, written, fault


@kernel
def write_launch(  # type: ignore[no-untyped-def]
    canary,
    stride,
    num_slots,
    offsets,
    seeds,
    capacity,
    num_valid_reqs,
    num_tokens,
    ids,
    positions,
    locs,
    expected_ids,
    expected_positions,
    check_inputs,
    chain_flag,
    kind,
    sources,
    num_sources,
    ring,
    ring_capacity,
    write_index,
    slot_counter,
    kernel_counter,
):
    """A whole launch, requests in order; return the worst fault."""
    store_i64(kernel_counter, 0, load_i64(kernel_counter, 0) + 1)
    seq, written, fault = write_requests(
        canary,
        stride,
        num_slots,
        offsets,
        seeds,
        np.int64(0),  # a bare 0 would be a type of its own and compile the callee again
        max(0, min(load_i32(num_valid_reqs, 0), capacity)),
        num_tokens,
        ids,
        positions,
        locs,
        expected_ids,
        expected_positions,
        check_inputs,
        load_i32(chain_flag, 0),
        kind,
        sources,
        num_sources,
        ring,
        ring_capacity,
        load_i32(write_index, 0),
    )
    store_i64(slot_counter, 0, load_i64(slot_counter, 0) + written)
    store_i32(write_index, 0, seq)
    return fault


@kernel
def claim_slots(  # type: ignore[no-untyped-def]
    stamps, stamp, first_stamp, num_slots, offsets, first, last, num_tokens, locs
):
    """Leave ``stamp`` (a byte) at every slot that requests [first, last) write.

    Returns:
        False as soon as a slot bears another stamp of this launch, ``first_stamp`` or above.
    """
    for r in range(first, last):
        start, stop = _bounds(offsets, r, num_tokens)
        for i in range(start, stop):
            ahead = i + _PREFETCH_ENTRIES
            if ahead < stop:
                prefetch(stamps + load_i64(locs, ahead))
            slot = load_i64(locs, i)
            if 0 <= slot < num_slots:
                found = load_u8(stamps, slot)
                if found >= first_stamp and found != stamp:
                    return False
                store_u8(stamps, slot, stamp)
    return True


@kernel
def owns_seeds(  # type: ignore[no-untyped-def]
    stamps, stamp, first_stamp, num_slots, offsets, seeds, first, last, num_tokens
):
    """Whether no other range of the launch claimed a seed of requests [first, last)."""
    for r in range(first, last):
        start, stop = _bounds(offsets, r, num_tokens)
        seed = load_i64(seeds, r)
        if start < stop and 0 <= seed < num_slots:
            found = load_u8(stamps, seed)
            if found >= first_stamp and found != stamp:
                return False
    return True
