"""Verify kernels (specification 3.2)."""

from __future__ import annotations

import numpy as np

from kvcanary_cli.abi.constants import FailReason
from kvcanary_cli.abi.faults import Fault
from kvcanary_cli.backends.cpu.hashes import as_int64, slot_hash, worse_fault
from kvcanary_cli.backends.cpu.jit import helper, kernel
from kvcanary_cli.backends.cpu.memory import load_i32, load_i64, prefetch, store_i32, store_i64
from kvcanary_cli.backends.cpu.real_kv import real_kv_hash

_CHAIN = int(FailReason.VERIFY_CHAIN_HASH_MISMATCH)
_POSITION = int(FailReason.VERIFY_POSITION_MISMATCH)
_REAL_KV = int(FailReason.VERIFY_REAL_KV_HASH_MISMATCH)
_TOKEN = int(FailReason.VERIFY_TOKEN_MISMATCH)
_VERIFY_SLOT = int(Fault.VERIFY_SLOT)
_VERIFY_PREV = int(Fault.VERIFY_PREV)

# Rows are far apart, so they are asked for ahead: some 10 ns an entry against 100 ns a miss.
_PREFETCH_ENTRIES = 24


@helper
def append_violation(  # type: ignore[no-untyped-def]
    ring, ring_capacity, seq, kind, slot, position, token, expected_token, stored_hash, aux, bits
):
    """Store row number ``seq`` if the ring has such a row; return the next number."""
    if 0 <= seq < ring_capacity:
        row = ring + seq * 64
        store_i64(row, 0, kind)
        store_i64(row, 1, slot)
        store_i64(row, 2, position)
        store_i64(row, 3, token)
        store_i64(row, 4, expected_token)
        store_i64(row, 5, stored_hash)
        store_i64(row, 6, aux)
        store_i64(row, 7, bits)
    return seq + 1


@helper
def _check_entry(  # type: ignore[no-untyped-def]
    canary,
    stride,
    num_slots,
    slot,
    prev,
    wanted_position,
    expected_token,
    kind,
    sources,
    num_sources,
    ring,
    ring_capacity,
    seq,
    fault,
):
    """Check one entry in full; return the next violation number and the worst fault."""
    if slot == 0:
        return seq, fault
    if slot < 0 or slot >= num_slots:
        return seq, worse_fault(fault, _VERIFY_SLOT, slot)
    row = canary + slot * stride
    token = load_i64(row, 0)
    position = load_i64(row, 1)
    stored_hash = load_i64(row, 2)
    if prev >= num_slots:
        fault = worse_fault(fault, _VERIFY_PREV, prev)
        prev = 0
    expected_hash = stored_hash
    if prev != 0:
        expected_hash = as_int64(slot_hash(canary + prev * stride, prev < 0))
    kv_hash = 0
    if num_sources > 0:
        acc, fault = real_kv_hash(sources, num_sources, slot, fault)
        kv_hash = as_int64(acc)
    bits = 0
    if stored_hash != expected_hash:
        bits |= _CHAIN
    if expected_token != -1 and expected_token != token:
        bits |= _TOKEN
    if position != wanted_position:
        bits |= _POSITION
    if load_i64(row, 3) != kv_hash:
        bits |= _REAL_KV
    if bits:
        seq = append_violation(
            ring,
            ring_capacity,
            seq,
            kind,
            slot,
            position,
            token,
            expected_token,
            stored_hash,
            expected_hash,
            bits,
        )
    return seq, fault


@kernel
def verify_range(  # type: ignore[no-untyped-def]
    canary,
    stride,
    num_slots,
    slots,
    tokens,
    positions,
    prevs,
    start,
    stop,
    kind,
    check_token,
    sources,
    num_sources,
    ring,
    ring_capacity,
    seq,
):
    """Verify entries [start, stop); return the next violation number and the worst fault.

    With a ring capacity of 0 violations are only counted.
    """
    fault = 0
    last = stop - 1
    for i in range(start, stop):
        ahead = min(i + _PREFETCH_ENTRIES, last)
        prefetch(canary + load_i64(slots, ahead) * stride)
        prefetch(canary + load_i64(prevs, ahead) * stride)
        slot = load_i64(slots, i)
        prev = load_i64(prevs, i)
        wanted_position = load_i64(positions, i)
        expected_token = -1
        if check_token:
            expected_token = load_i64(tokens, i)
        # The usual entry, inside the buffer, without sources and in order, is done with here; what
        # is left is rare enough to be looked at again from the start.
        if num_sources == 0 and 0 < slot < num_slots and 0 < prev < num_slots:
            row = canary + slot * stride
            wrong = load_i64(row, 2) ^ as_int64(slot_hash(canary + prev * stride, False))
            wrong |= load_i64(row, 1) ^ wanted_position
            wrong |= load_i64(row, 3)
            if expected_token != -1:
                wrong |= load_i64(row, 0) ^ expected_token
            if wrong == 0:
                continue
        seq, fault = _check_entry(
            canary,
            stride,
            num_slots,
            slot,
            prev,
            wanted_position,
            expected_token,
            kind,
            sources,
            num_sources,
            ring,
            ring_capacity,
            seq,
            fault,
        )
    return seq, fault


@kernel
def verify_launch(  # type: ignore[no-untyped-def]
    canary,
    stride,
    num_slots,
    slots,
    tokens,
    positions,
    prevs,
    capacity,
    num_valid,
    enable,
    kind,
    check_token,
    sources,
    num_sources,
    ring,
    ring_capacity,
    write_index,
    slot_counter,
    kernel_counter,
):
    """A whole small launch in entry order; return the worst fault."""
    store_i64(kernel_counter, 0, load_i64(kernel_counter, 0) + 1)
    if load_i32(enable, 0) == 0:
        return 0
    active = max(0, min(load_i32(num_valid, 0), capacity))
    store_i64(slot_counter, 0, load_i64(slot_counter, 0) + active)
    seq = load_i32(write_index, 0)
    seq, fault = verify_range(
        canary,
        stride,
        num_slots,
        slots,
        tokens,
        positions,
        prevs,
        np.int64(0),  # a bare 0 would be a type of its own and compile the callee again
        active,
        kind,
        check_token,
        sources,
        num_sources,
        ring,
        ring_capacity,
        seq,
    )
    store_i32(write_index, 0, seq)
    return fault
