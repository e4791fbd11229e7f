"""Fingerprint of a slot's real KV bytes (specification 1.9 and 2.3).

A source is addressed in bytes: slot ``s`` starts at
``(s // page_slots) * row_stride_bytes + (s % page_slots) * token_bytes``. Up to four sources are
passed one by one, as kernel arguments cannot be a list of differently strided tensors; what a
server never changes (page, strip and read widths) is compiled in. ``real_kv_hash`` is the device
half that the verify and write kernels call; the kernel here fingerprints a list of slots.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

from kvcanary_cli.abi.checked import checked_by
from kvcanary_cli.abi.checks import check_real_kv_args
from kvcanary_cli.abi.constants import (
    PARTIAL_READ_BYTES,
    REAL_KV_SOURCES_LIMIT,
    RealKvHashMode,
)
from kvcanary_cli.backends.triton.fault_cell import REAL_KV_SLOT, note_fault, record_faults
from kvcanary_cli.backends.triton.launch import (
    WORD_BYTES,
    block_lanes,
    fault_cell,
    persistent_grid,
)
from kvcanary_cli.backends.triton.mix import mix

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcanary_cli.abi.sources import RealKvSource

# One slot a thread: each lane walks its own strip, so more lanes only mean more loads in flight.
_BLOCK_SLOTS = 256
_INTERPRETER_BLOCK_SLOTS = 32

# Words loaded before they are folded, so that eight loads of a strip are in flight at once; always
# a divisor of the strip, which is a multiple of two words.
_UNROLLED_WORDS = 8

# Sizes that differ between pools but not in what code they need: specialising on their
# divisibility would only compile the same kernel again.
SOURCE_SIZES = (
    *(f"src{i}_rows" for i in range(REAL_KV_SOURCES_LIMIT)),
    *(f"src{i}_row_stride_bytes" for i in range(REAL_KV_SOURCES_LIMIT)),
)


@triton.jit
def _load_word(byte_ptr, mask, IS_ALIGNED: tl.constexpr):
    """Load little-endian words as uint64, byte by byte where the base is not 8-byte aligned."""
    if IS_ALIGNED:
        word = tl.load(byte_ptr.to(tl.pointer_type(tl.uint64)), mask=mask, other=0)
    else:
        word = tl.load(byte_ptr, mask=mask, other=0).to(tl.uint64)
        for i in tl.static_range(1, 8):
            byte = tl.load(byte_ptr + i, mask=mask, other=0).to(tl.uint64)
            word = word | (byte << (8 * i))
    return word


@triton.jit
def _fold_source(
    acc,
    noted,
    slots,
    mask,
    src_ptr,
    src_rows,
    src_row_stride_bytes,
    PAGE_SLOTS: tl.constexpr,
    TOKEN_BYTES: tl.constexpr,
    READ_WORDS: tl.constexpr,
    UNROLL: tl.constexpr,
    IS_ALIGNED: tl.constexpr,
):
    """Fold one source into ``acc``; a slot without bytes there is noted and folded as empty."""
    row = slots // PAGE_SLOTS
    inside = mask & (slots >= 0) & (row < src_rows)
    noted = note_fault(noted, mask & (inside == 0), slots, REAL_KV_SLOT)
    row = tl.where(inside, row, 0)
    place = tl.where(inside, slots, 0) - row * PAGE_SLOTS
    strip_ptr = src_ptr + row * src_row_stride_bytes + place * TOKEN_BYTES
    # Masked words are 0 and mix(0) is 0, so a lane that is off stays 0.
    folded = tl.zeros_like(acc)
    for start in range(0, READ_WORDS, UNROLL):
        for i in tl.static_range(UNROLL):
            folded = mix(folded ^ _load_word(strip_ptr + (start + i) * 8, inside, IS_ALIGNED))
    return mix(acc ^ folded), noted


@triton.jit
def real_kv_hash(
    slots,
    mask,
    noted,
    src0_ptr,
    src1_ptr,
    src2_ptr,
    src3_ptr,
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
):
    """Fingerprint ``slots`` [n] int64 where ``mask``.

    Returns:
        [n] uint64, 0 where masked off; ``noted`` with REAL_KV_SLOT merged in.
    """
    acc = tl.zeros_like(slots).to(tl.uint64)
    if NUM_SOURCES > 0:
        acc, noted = _fold_source(
            acc, noted, slots, mask, src0_ptr, src0_rows, src0_row_stride_bytes,
            SRC0[0], SRC0[1], SRC0[2], SRC0[3], SRC0[4],
        )  # fmt: skip
    if NUM_SOURCES > 1:
        acc, noted = _fold_source(
            acc, noted, slots, mask, src1_ptr, src1_rows, src1_row_stride_bytes,
            SRC1[0], SRC1[1], SRC1[2], SRC1[3], SRC1[4],
        )  # fmt: skip
    if NUM_SOURCES > 2:
        acc, noted = _fold_source(
            acc, noted, slots, mask, src2_ptr, src2_rows, src2_row_stride_bytes,
            SRC2[0], SRC2[1], SRC2[2], SRC2[3], SRC2[4],
        )  # fmt: skip
    if NUM_SOURCES > 3:
        acc, noted = _fold_source(
            acc, noted, slots, mask, src3_ptr, src3_rows, src3_row_stride_bytes,
            SRC3[0], SRC3[1], SRC3[2], SRC3[3], SRC3[4],
        )  # fmt: skip
    return acc, noted


@triton.jit(do_not_specialize=["num_entries", *SOURCE_SIZES])
def _real_kv_kernel(
    slots_ptr,
    hashes_ptr,
    fault_ptr,
    src0_ptr,
    src1_ptr,
    src2_ptr,
    src3_ptr,
    num_entries,
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
    first = tl.program_id(0).to(tl.int64) * BLOCK
    step = tl.num_programs(0).to(tl.int64) * BLOCK
    for start in range(first, num_entries, step):
        entry = start + tl.arange(0, BLOCK).to(tl.int64)
        mask = entry < num_entries
        slots = tl.load(slots_ptr + entry, mask=mask, other=0)
        hashes, noted = real_kv_hash(
            slots, mask, tl.zeros_like(slots),
            src0_ptr, src1_ptr, src2_ptr, src3_ptr,
            src0_rows, src1_rows, src2_rows, src3_rows,
            src0_row_stride_bytes, src1_row_stride_bytes,
            src2_row_stride_bytes, src3_row_stride_bytes,
            NUM_SOURCES, SRC0, SRC1, SRC2, SRC3,
        )  # fmt: skip
        tl.store(hashes_ptr + entry, hashes.to(tl.int64, bitcast=True), mask=mask)
        record_faults(fault_ptr, noted)


def source_arguments(
    sources: Sequence[RealKvSource], mode: RealKvHashMode, placeholder: torch.Tensor
) -> dict[str, Any]:
    """Kernel arguments of the real-KV sources.

    Args:
        sources: At most four, checked.
        mode: NONE leaves all of them out.
        placeholder: Tensor whose address stands in for sources that are not there.
    """
    used = () if mode == RealKvHashMode.NONE else tuple(sources)
    args: dict[str, Any] = {"NUM_SOURCES": len(used)}
    nothing = placeholder.view(torch.uint8)
    for i in range(REAL_KV_SOURCES_LIMIT):
        if i >= len(used):
            args[f"src{i}_ptr"] = nothing
            args[f"src{i}_rows"] = args[f"src{i}_row_stride_bytes"] = 0
            args[f"SRC{i}"] = (1, 16, 2, 2, True)
            continue
        source = used[i]
        tensor = source.tensor
        read_bytes = PARTIAL_READ_BYTES if mode == RealKvHashMode.PARTIAL else source.read_bytes
        words = read_bytes // WORD_BYTES
        unroll = next(n for n in (_UNROLLED_WORDS, 4, 2) if words % n == 0)
        args[f"src{i}_ptr"] = tensor.view(torch.uint8)
        args[f"src{i}_rows"] = int(tensor.shape[0])
        args[f"src{i}_row_stride_bytes"] = tensor.stride(0) * tensor.element_size()
        args[f"SRC{i}"] = (
            source.page_size,
            source.num_bytes_per_token,
            words,
            unroll,
            tensor.data_ptr() % WORD_BYTES == 0,
        )
    return args


@checked_by(check_real_kv_args)
def launch_real_kv_kernel(
    *,
    slots: torch.Tensor,
    real_kv_sources: Sequence[RealKvSource],
    real_kv_hash_mode: RealKvHashMode,
    fault: torch.Tensor | None = None,
) -> torch.Tensor:
    """Fingerprint ``slots``; see ``Backend.real_kv_hash``. With ``fault``, safe to capture."""
    hashes = torch.empty_like(slots)
    num_entries = int(slots.shape[0])
    if num_entries == 0:
        return hashes
    block = block_lanes(_BLOCK_SLOTS, _INTERPRETER_BLOCK_SLOTS)
    with fault_cell(fault, slots.device) as cell:
        _real_kv_kernel[persistent_grid(slots.device, num_entries, block)](
            slots_ptr=slots,
            hashes_ptr=hashes,
            fault_ptr=cell,
            num_entries=num_entries,
            **source_arguments(real_kv_sources, real_kv_hash_mode, hashes),
            BLOCK=block,
            num_warps=8,
        )
    return hashes
