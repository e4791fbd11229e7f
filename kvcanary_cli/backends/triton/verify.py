"""Verify step: are the planned slots what the plan says they are? (specification 3.2)

One lane an entry, in a persistent grid that strides over the entries: the launch is the same
whatever the batch, so it can be captured. An entry costs up to two random rows of 32 bytes (its own
and its predecessor's) and the strips that are fingerprinted. Launched for every HEAD, TAIL and
SWEEP endpoint. The buffer is read as int64 words, ``[num_slots, row_words]``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from kvcanary_cli.abi.checked import checked_by
from kvcanary_cli.abi.checks import check_verify_args
from kvcanary_cli.abi.constants import NO_EXPECTED_TOKEN, PADDING_SLOT, FailReason, RealKvHashMode
from kvcanary_cli.backends.triton.fault_cell import (
    VERIFY_PREV,
    VERIFY_SLOT,
    note_fault,
    record_faults,
)
from kvcanary_cli.backends.triton.launch import (
    block_lanes,
    canary_words,
    fault_cell,
    persistent_grid,
)
from kvcanary_cli.backends.triton.mix import (
    POSITION_WORD,
    PREV_HASH_WORD,
    REAL_KV_HASH_WORD,
    TOKEN_WORD,
    load_field,
    load_slot_hash,
)
from kvcanary_cli.backends.triton.real_kv import SOURCE_SIZES, real_kv_hash, source_arguments
from kvcanary_cli.backends.triton.ring import append_violations

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from kvcanary_cli.abi.plans import VerifyPlan
    from kvcanary_cli.abi.sources import RealKvSource

# One entry a thread. The step waits for memory, so what counts is entries in flight: 256 threads
# times eight programs fill a multiprocessor.
_BLOCK_ENTRIES = 256
_INTERPRETER_BLOCK_ENTRIES = 64
_WARPS = 8

_PADDING_SLOT = tl.constexpr(PADDING_SLOT)
_NO_TOKEN = tl.constexpr(NO_EXPECTED_TOKEN)
_CHAIN_HASH = tl.constexpr(int(FailReason.VERIFY_CHAIN_HASH_MISMATCH))
_POSITION = tl.constexpr(int(FailReason.VERIFY_POSITION_MISMATCH))
_REAL_KV_HASH = tl.constexpr(int(FailReason.VERIFY_REAL_KV_HASH_MISMATCH))
_TOKEN = tl.constexpr(int(FailReason.VERIFY_TOKEN_MISMATCH))


@triton.jit(
    do_not_specialize=[
        "capacity",
        "num_slots",
        "row_words",
        "ring_capacity",
        "kernel_kind",
        *SOURCE_SIZES,
    ]
)
def _verify_kernel(
    canary_ptr,
    slots_ptr,
    expected_tokens_ptr,
    expected_positions_ptr,
    prev_slots_ptr,
    num_valid_ptr,
    enable_ptr,
    ring_ptr,
    write_index_ptr,
    slot_run_counter_ptr,
    kernel_run_counter_ptr,
    fault_ptr,
    src0_ptr,
    src1_ptr,
    src2_ptr,
    src3_ptr,
    capacity,
    num_slots,
    row_words,
    ring_capacity,
    kernel_kind,
    src0_rows,
    src1_rows,
    src2_rows,
    src3_rows,
    src0_row_stride_bytes,
    src1_row_stride_bytes,
    src2_row_stride_bytes,
    src3_row_stride_bytes,
    NUM_SOURCES: tl.constexpr,
    SRC0: tl.constexpr,
    SRC1: tl.constexpr,
    SRC2: tl.constexpr,
    SRC3: tl.constexpr,
    CHECK_TOKENS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    program = tl.program_id(0).to(tl.int64)
    active = tl.minimum(tl.maximum(tl.load(num_valid_ptr), 0), capacity).to(tl.int64)
    active = tl.where(tl.load(enable_ptr) != 0, active, 0)
    if program == 0:
        # Every active entry counts, skipped ones included, so one program can count for all.
        tl.atomic_add(kernel_run_counter_ptr, 1, sem="relaxed")
        tl.atomic_add(slot_run_counter_ptr, active, sem="relaxed")
    step = tl.num_programs(0).to(tl.int64) * BLOCK
    for start in range(program * BLOCK, active, step):
        entry = start + tl.arange(0, BLOCK).to(tl.int64)
        mask = entry < active
        slots = tl.load(slots_ptr + entry, mask=mask, other=_PADDING_SLOT)
        prev_slots = tl.load(prev_slots_ptr + entry, mask=mask, other=_PADDING_SLOT)
        expected_positions = tl.load(expected_positions_ptr + entry, mask=mask, other=0)

        mask = mask & (slots != _PADDING_SLOT)
        checked = mask & (slots >= 0) & (slots < num_slots)
        noted = note_fault(tl.zeros_like(slots), mask & (checked == 0), slots, VERIFY_SLOT)
        prev_outside = checked & (prev_slots >= num_slots)
        noted = note_fault(noted, prev_outside, prev_slots, VERIFY_PREV)
        prev_known = checked & (prev_slots != _PADDING_SLOT) & (prev_outside == 0)

        tokens = load_field(canary_ptr, row_words, slots, checked, TOKEN_WORD)
        positions = load_field(canary_ptr, row_words, slots, checked, POSITION_WORD)
        prev_hashes = load_field(canary_ptr, row_words, slots, checked, PREV_HASH_WORD)
        real_kv_hashes = load_field(canary_ptr, row_words, slots, checked, REAL_KV_HASH_WORD)
        chain = load_slot_hash(canary_ptr, row_words, prev_slots, prev_known & (prev_slots > 0))
        expected_hashes = tl.where(prev_known, chain.to(tl.int64, bitcast=True), prev_hashes)
        fingerprints, noted = real_kv_hash(
            slots, checked, noted,
            src0_ptr, src1_ptr, src2_ptr, src3_ptr,
            src0_rows, src1_rows, src2_rows, src3_rows,
            src0_row_stride_bytes, src1_row_stride_bytes,
            src2_row_stride_bytes, src3_row_stride_bytes,
            NUM_SOURCES, SRC0, SRC1, SRC2, SRC3,
        )  # fmt: skip

        bits = tl.where(prev_hashes != expected_hashes, _CHAIN_HASH, 0).to(tl.int64)
        bits |= tl.where(positions != expected_positions, _POSITION, 0)
        bits |= tl.where(
            real_kv_hashes != fingerprints.to(tl.int64, bitcast=True), _REAL_KV_HASH, 0
        )
        if CHECK_TOKENS:
            expected_tokens = tl.load(expected_tokens_ptr + entry, mask=mask, other=_NO_TOKEN)
            wrong = (expected_tokens != _NO_TOKEN) & (expected_tokens != tokens)
            bits |= tl.where(wrong, _TOKEN, 0)
        else:
            expected_tokens = tl.full([BLOCK], _NO_TOKEN, tl.int64)
        append_violations(
            ring_ptr,
            write_index_ptr,
            ring_capacity,
            kernel_kind,
            tl.where(checked, bits, 0),
            slots,
            positions,
            tokens,
            expected_tokens,
            prev_hashes,
            expected_hashes,
        )
        record_faults(fault_ptr, noted)


@checked_by(check_verify_args)
def launch_verify_kernel(
    *,
    canary_buf: torch.Tensor,
    plan: VerifyPlan,
    kernel_kind: int,
    violation_ring: torch.Tensor,
    violation_write_index: torch.Tensor,
    slot_run_counter: torch.Tensor,
    kernel_run_counter: torch.Tensor,
    real_kv_sources: Sequence[RealKvSource] = (),
    real_kv_hash_mode: RealKvHashMode = RealKvHashMode.NONE,
    check_verify_expected_token: bool = True,
    fault: torch.Tensor | None = None,
) -> None:
    """Check the planned entries; see ``Backend.verify``. With ``fault``, safe to capture."""
    words = canary_words(canary_buf)
    num_slots, row_words = words.shape
    block = block_lanes(_BLOCK_ENTRIES, _INTERPRETER_BLOCK_ENTRIES)
    with fault_cell(fault, canary_buf.device, num_slots=num_slots) as cell:
        _verify_kernel[persistent_grid(canary_buf.device, plan.capacity, block)](
            canary_ptr=words,
            slots_ptr=plan.verify_slot_indices,
            expected_tokens_ptr=plan.verify_expected_tokens,
            expected_positions_ptr=plan.verify_expected_positions,
            prev_slots_ptr=plan.verify_prev_slot_indices,
            num_valid_ptr=plan.verify_num_valid,
            enable_ptr=plan.enable,
            ring_ptr=violation_ring,
            write_index_ptr=violation_write_index,
            slot_run_counter_ptr=slot_run_counter,
            kernel_run_counter_ptr=kernel_run_counter,
            fault_ptr=cell,
            capacity=plan.capacity,
            num_slots=num_slots,
            row_words=row_words,
            ring_capacity=int(violation_ring.shape[0]),
            kernel_kind=int(kernel_kind),
            **source_arguments(real_kv_sources, real_kv_hash_mode, canary_buf),
            CHECK_TOKENS=check_verify_expected_token,
            BLOCK=block,
            num_warps=_WARPS,
        )
