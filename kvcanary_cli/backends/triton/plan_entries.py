"""Second plan kernel: the verify entries, one lane each (specification 3.1).

An entry finds its row by binary search in the offsets that ``plan_offsets`` left; a persistent grid
strides over the entries. On overflow nothing is stored. ``launch_plan_kernels`` is the plan step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from kvcanary_cli.abi.checked import checked_by
from kvcanary_cli.abi.checks import check_plan_args
from kvcanary_cli.abi.constants import CHAIN_HEAD, NO_EXPECTED_TOKEN, PLAN_ROWS_LIMIT
from kvcanary_cli.backends.triton.fault_cell import record_faults
from kvcanary_cli.backends.triton.launch import block_lanes, fault_cell, persistent_grid
from kvcanary_cli.backends.triton.plan_offsets import launch_plan_offsets_kernel
from kvcanary_cli.backends.triton.plan_slots import load_slots

if TYPE_CHECKING:
    from kvcanary_cli.abi.plans import VerifyPlan, WritePlan

# One entry a thread, as in verify: loads of table, LUT and pool wait on each other.
_BLOCK_ENTRIES = 256
_INTERPRETER_BLOCK_ENTRIES = 64
_WARPS = 8

_CHAIN_HEAD = tl.constexpr(CHAIN_HEAD)
_NO_TOKEN = tl.constexpr(NO_EXPECTED_TOKEN)


@triton.jit(
    do_not_specialize=["num_rows", "capacity", "row_len", "lut_len", "pool_width", "token_offset"]
)
def _plan_entries_kernel(
    req_pool_indices_ptr,
    prefix_lens_ptr,
    verify_offsets_ptr,
    req_to_token_ptr,
    lut_ptr,
    token_pool_ptr,
    valid_lens_ptr,
    slots_ptr,
    expected_tokens_ptr,
    expected_positions_ptr,
    prev_slots_ptr,
    fault_ptr,
    num_rows,
    capacity,
    row_len,
    lut_len,
    pool_width,
    token_offset,
    HAS_LUT: tl.constexpr,
    HAS_TOKENS: tl.constexpr,
    SEARCH_STEPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    total = tl.load(verify_offsets_ptr + num_rows)
    total = tl.where(total > capacity, 0, total)
    first = tl.program_id(0).to(tl.int64) * BLOCK
    step = tl.num_programs(0).to(tl.int64) * BLOCK
    for start in range(first, total, step):
        entry = start + tl.arange(0, BLOCK).to(tl.int64)
        mask = entry < total
        # offsets[row] <= entry < offsets[above] holds throughout, so empty rows are passed over.
        row = tl.zeros_like(entry)
        above = row + num_rows
        for _ in range(SEARCH_STEPS):
            middle = (row + above) // 2
            at_or_after = tl.load(verify_offsets_ptr + middle, mask=mask, other=0) <= entry
            row = tl.where(at_or_after, middle, row)
            above = tl.where(at_or_after, above, middle)

        pool_row = tl.load(req_pool_indices_ptr + row, mask=mask, other=0)
        prefix = tl.load(prefix_lens_ptr + row, mask=mask, other=0)
        row_end = tl.load(verify_offsets_ptr + row + 1, mask=mask, other=0)
        position = prefix - (row_end - entry)
        noted = tl.zeros_like(entry)
        slots, noted = load_slots(
            req_to_token_ptr, lut_ptr, pool_row, row_len, lut_len, position, mask, noted, HAS_LUT
        )
        has_prev = mask & (position > 0)
        prev_slots, noted = load_slots(
            req_to_token_ptr, lut_ptr, pool_row, row_len, lut_len,
            position - 1, has_prev, noted, HAS_LUT,
        )  # fmt: skip
        tokens = tl.full([BLOCK], _NO_TOKEN, tl.int64)
        if HAS_TOKENS:
            index = position + token_offset
            valid_len = tl.load(valid_lens_ptr + row, mask=mask, other=0)
            held = mask & (index >= 0) & (index < valid_len) & (index < pool_width)
            tokens = tl.load(
                token_pool_ptr + pool_row * pool_width + index, mask=held, other=_NO_TOKEN
            ).to(tl.int64)

        tl.store(slots_ptr + entry, slots, mask=mask)
        tl.store(expected_tokens_ptr + entry, tokens, mask=mask)
        tl.store(expected_positions_ptr + entry, position, mask=mask)
        tl.store(prev_slots_ptr + entry, tl.where(has_prev, prev_slots, _CHAIN_HEAD), mask=mask)
        record_faults(fault_ptr, noted)


@checked_by(check_plan_args)
def launch_plan_kernels(
    *,
    req_pool_indices: torch.Tensor,
    prefix_lens: torch.Tensor,
    extend_seq_lens: torch.Tensor,
    req_to_token: torch.Tensor,
    verify_plan_out: VerifyPlan,
    write_plan_out: WritePlan,
    swa_window_size: int,
    full_to_swa_index_mapping: torch.Tensor | None,
    verify_capacity: int,
    req_to_verify_expected_tokens: torch.Tensor | None = None,
    req_to_verify_expected_tokens_valid_lens: torch.Tensor | None = None,
    kv_token_id_vs_position_offset: int = 0,
    rows_limit: int = PLAN_ROWS_LIMIT,
    fault: torch.Tensor | None = None,
) -> None:
    """Fill both plans; see ``Backend.plan``. Safe under graph capture with ``fault``."""
    device = req_to_token.device
    lut = full_to_swa_index_mapping
    pool = req_to_verify_expected_tokens
    valid_lens = req_to_verify_expected_tokens_valid_lens
    num_rows = int(req_pool_indices.shape[0])
    table_rows, row_len = req_to_token.shape
    lut_len = 0 if lut is None else int(lut.shape[0])
    verify_offsets = torch.empty(num_rows + 1, dtype=torch.int64, device=device)
    with fault_cell(fault, device, lut_len=lut_len, rows=table_rows, row_len=row_len) as cell:
        launch_plan_offsets_kernel(
            req_pool_indices=req_pool_indices,
            prefix_lens=prefix_lens,
            extend_seq_lens=extend_seq_lens,
            req_to_token=req_to_token,
            verify_offsets_out=verify_offsets,
            verify_plan_out=verify_plan_out,
            write_plan_out=write_plan_out,
            swa_window_size=swa_window_size,
            full_to_swa_index_mapping=lut,
            fault=cell,
        )
        if num_rows == 0:
            return
        block = block_lanes(_BLOCK_ENTRIES, _INTERPRETER_BLOCK_ENTRIES)
        _plan_entries_kernel[persistent_grid(device, verify_capacity, block)](
            req_pool_indices_ptr=req_pool_indices,
            prefix_lens_ptr=prefix_lens,
            verify_offsets_ptr=verify_offsets,
            req_to_token_ptr=req_to_token,
            lut_ptr=prefix_lens if lut is None else lut,
            token_pool_ptr=prefix_lens if pool is None else pool,
            valid_lens_ptr=prefix_lens if valid_lens is None else valid_lens,
            slots_ptr=verify_plan_out.verify_slot_indices,
            expected_tokens_ptr=verify_plan_out.verify_expected_tokens,
            expected_positions_ptr=verify_plan_out.verify_expected_positions,
            prev_slots_ptr=verify_plan_out.verify_prev_slot_indices,
            fault_ptr=cell,
            num_rows=num_rows,
            capacity=verify_capacity,
            row_len=row_len,
            lut_len=lut_len,
            pool_width=0 if pool is None else int(pool.shape[1]),
            token_offset=kv_token_id_vs_position_offset,
            HAS_LUT=lut is not None,
            HAS_TOKENS=pool is not None,
            SEARCH_STEPS=(num_rows - 1).bit_length(),
            BLOCK=block,
            num_warps=_WARPS,
        )
