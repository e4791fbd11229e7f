"""First write kernel: fingerprints, counts, and whether requests touch each other (3.3).

The chain kernel runs requests in parallel, which equals running them in order only if no request
reads or writes a slot that another one writes. This kernel finds out with two bits a slot, in a
bitmap of one int64 word for 32 slots: WRITTEN and SEEDED. Both bits of a slot share a word, and
every mark is one atomic OR that returns the old word, so whichever of two clashing marks comes
second sees the first, without a barrier between programs. Written twice, or written and seeded
from, is a conflict, and makes the chain kernel run in order.

A bitmap is cleared for every launch: at 1 MiB for four million slots that costs less than a
further kernel that would unmark, and there is no state that a captured graph or a second stream
could find in the wrong shape.

Slot 0 is the exception: it takes the writes of every unmapped SWA slot, so writing it twice is the
rule. Its last write in order is found with an atomic maximum instead, and only that one is stored.

The fingerprint depends on the slot alone, so it is stored here, with one lane a token, and leaves
the serial chain kernel short. Programs are (request row, part of its tokens).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from kvcanary_cli.abi.constants import PADDING_SLOT, RealKvHashMode
from kvcanary_cli.backends.triton.fault_cell import (
    WRITE_OFFSETS,
    WRITE_SEED,
    WRITE_SLOT,
    note_fault,
    record_faults,
)
from kvcanary_cli.backends.triton.launch import block_lanes
from kvcanary_cli.backends.triton.mix import REAL_KV_HASH_WORD
from kvcanary_cli.backends.triton.real_kv import SOURCE_SIZES, real_kv_hash, source_arguments

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcanary_cli.abi.plans import WritePlan
    from kvcanary_cli.abi.sources import RealKvSource

# One token a thread; a decode row has a single token, so wider programs would only idle.
_BLOCK_TOKENS = 64
_INTERPRETER_BLOCK_TOKENS = 32
_WARPS = 2

# Parts of a row. A prefill row of 16384 tokens takes eight turns of 32 parts; idle parts leave at
# once, so the bound only keeps the grid of a large request capacity small.
_PARTS_LIMIT = 32
_INTERPRETER_PARTS_LIMIT = 2

# Scratch of one write launch, int64: two cells, then the bitmap.
CONFLICT_CELL = tl.constexpr(0)
PADDING_ORDER_CELL = tl.constexpr(1)
_MARKS = tl.constexpr(2)
_SLOTS_PER_WORD = 32
_WRITTEN = tl.constexpr(1)
_SEEDED = tl.constexpr(2)

_PADDING_SLOT = tl.constexpr(PADDING_SLOT)


@triton.jit
def _mark(marks_ptr, slots, mask, BIT: tl.constexpr):
    """Set each slot's WRITTEN or SEEDED bit; return its two bits from before, 0 where masked."""
    shift = (slots % 32) * 2
    bit = tl.full(slots.shape, BIT, tl.int64) << shift
    old = tl.atomic_or(marks_ptr + slots // 32, bit, mask=mask, sem="relaxed")
    return tl.where(mask, (old >> shift) & 3, 0)


@triton.jit
def write_order(row, token_in_row):
    """Order of an entry in the launch: request rows in order, then tokens; fewer than 2^31 each."""
    return row * 2147483648 + token_in_row


@triton.jit(
    do_not_specialize=["req_capacity", "num_tokens", "num_slots", "row_words", *SOURCE_SIZES]
)
def _write_marks_kernel(
    canary_ptr,
    write_offsets_ptr,
    write_seeds_ptr,
    write_num_valid_reqs_ptr,
    out_cache_loc_ptr,
    scratch_ptr,
    slot_run_counter_ptr,
    kernel_run_counter_ptr,
    fault_ptr,
    src0_ptr,
    src1_ptr,
    src2_ptr,
    src3_ptr,
    req_capacity,
    num_tokens,
    num_slots,
    row_words,
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
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1).to(tl.int64)
    if (row == 0) & (part == 0):
        tl.atomic_add(kernel_run_counter_ptr, 1, sem="relaxed")
    in_use = (row < tl.load(write_num_valid_reqs_ptr)) & (row < req_capacity)
    begin = tl.load(write_offsets_ptr + row, mask=in_use, other=0)
    end = tl.load(write_offsets_ptr + row + 1, mask=in_use, other=0)
    # Kept within the batch, so that neither what a fault left here nor a part's share overflows.
    first = tl.minimum(tl.maximum(begin, 0), num_tokens)
    last = tl.minimum(end, num_tokens)
    marks_ptr = scratch_ptr + _MARKS

    if part == 0:
        seed = tl.load(write_seeds_ptr + row, mask=in_use, other=-1)
        # Marked as a scalar: of a one-lane tensor only one thread would hold the old word.
        marked = (last > first) & (seed >= 0) & (seed < num_slots)
        old = _mark(marks_ptr, seed, marked, _SEEDED)
        if (old & _WRITTEN) != 0:
            tl.store(scratch_ptr + CONFLICT_CELL, 1)
        # One lane, of value 0, so that the fault helpers serve scalars.
        lane = tl.arange(0, 1).to(tl.int64)
        begins = lane + begin
        ends = lane + end
        noted = note_fault(lane, (begins < 0) & (ends > begins), begins, WRITE_OFFSETS)
        noted = note_fault(noted, (ends > num_tokens) & (ends > begins), ends, WRITE_OFFSETS)
        beyond = (lane + last > first) & (lane + seed >= num_slots)
        noted = note_fault(noted, beyond, lane + seed, WRITE_SEED)
        record_faults(fault_ptr, noted)

    step = tl.num_programs(1).to(tl.int64) * BLOCK
    for start in range(first + part * BLOCK, last, step):
        token = start + tl.arange(0, BLOCK).to(tl.int64)
        mask = token < last
        slots = tl.load(out_cache_loc_ptr + token, mask=mask, other=-1)
        beyond = mask & (slots >= num_slots)
        noted = note_fault(tl.zeros_like(slots), beyond, slots, WRITE_SLOT)
        written = mask & (slots >= 0) & (beyond == 0)
        tl.atomic_add(
            slot_run_counter_ptr, tl.sum(written.to(tl.int64), axis=0), sem="relaxed"
        )  # fmt: skip

        old = _mark(marks_ptr, slots, written, _WRITTEN)
        is_padding = slots == _PADDING_SLOT
        clashes = tl.where(is_padding, old & _SEEDED, old)
        if tl.max(clashes, axis=0) > 0:
            tl.store(scratch_ptr + CONFLICT_CELL, 1)
        order = tl.where(written & is_padding, write_order(row, token - first), 0)
        latest = tl.max(order, axis=0)
        if latest > 0:
            tl.atomic_max(scratch_ptr + PADDING_ORDER_CELL, latest, sem="relaxed")

        hashes, noted = real_kv_hash(
            slots, written, noted,
            src0_ptr, src1_ptr, src2_ptr, src3_ptr,
            src0_rows, src1_rows, src2_rows, src3_rows,
            src0_row_stride_bytes, src1_row_stride_bytes,
            src2_row_stride_bytes, src3_row_stride_bytes,
            NUM_SOURCES, SRC0, SRC1, SRC2, SRC3,
        )  # fmt: skip
        hash_ptr = canary_ptr + slots * row_words + REAL_KV_HASH_WORD
        tl.store(hash_ptr, hashes.to(tl.int64, bitcast=True), mask=written)
        record_faults(fault_ptr, noted)


def launch_write_marks_kernel(
    *,
    canary_words: torch.Tensor,
    plan: WritePlan,
    slot_run_counter: torch.Tensor,
    kernel_run_counter: torch.Tensor,
    out_cache_loc: torch.Tensor,
    real_kv_sources: Sequence[RealKvSource],
    real_kv_hash_mode: RealKvHashMode,
    fault: torch.Tensor,
) -> torch.Tensor:
    """Store fingerprints, count, note every fault of the write step, and look for conflicts.

    Arguments are checked by ``launch_write_kernels``.

    Args:
        canary_words: [num_slots, row_words] int64; only the real_kv_hash word is changed.

    Returns:
        The launch's scratch, int64: CONFLICT_CELL is not 0 if requests touch each other's slots,
        PADDING_ORDER_CELL is the ``write_order`` of the last write to slot 0.
    """
    num_slots, row_words = canary_words.shape
    num_tokens = int(out_cache_loc.shape[0])
    scratch = torch.zeros(
        _MARKS.value + triton.cdiv(num_slots, _SLOTS_PER_WORD),
        dtype=torch.int64,
        device=canary_words.device,
    )
    block = block_lanes(_BLOCK_TOKENS, _INTERPRETER_BLOCK_TOKENS)
    parts_limit = block_lanes(_PARTS_LIMIT, _INTERPRETER_PARTS_LIMIT)
    grid = (plan.capacity or 1, max(1, min(triton.cdiv(num_tokens, block), parts_limit)))
    _write_marks_kernel[grid](
        canary_ptr=canary_words,
        write_offsets_ptr=plan.write_offsets,
        write_seeds_ptr=plan.write_seed_slot_indices,
        write_num_valid_reqs_ptr=plan.write_num_valid_reqs,
        out_cache_loc_ptr=out_cache_loc,
        scratch_ptr=scratch,
        slot_run_counter_ptr=slot_run_counter,
        kernel_run_counter_ptr=kernel_run_counter,
        fault_ptr=fault,
        req_capacity=plan.capacity,
        num_tokens=num_tokens,
        num_slots=num_slots,
        row_words=row_words,
        **source_arguments(real_kv_sources, real_kv_hash_mode, canary_words),
        BLOCK=block,
        num_warps=_WARPS,
    )
    return scratch
