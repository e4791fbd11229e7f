"""First plan kernel: prefix sums over the request rows, write plan and overflow flag (3.1).

One program walks the rows in blocks and carries the two running sums, so any number of rows takes
the same registers. It leaves where each row's verify entries start in a scratch vector that the
entries kernel searches. Launched before ``plan_entries``, on the same stream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from kvcanary_cli.abi.constants import CHAIN_HEAD, PADDING_ROW
from kvcanary_cli.backends.triton.fault_cell import (
    PREFIX,
    REQUEST_ROW,
    note_fault,
    record_faults,
)
from kvcanary_cli.backends.triton.launch import block_lanes
from kvcanary_cli.backends.triton.plan_slots import load_slots

if TYPE_CHECKING:
    import torch

    from kvcanary_cli.abi.plans import VerifyPlan, WritePlan

# 1024 rows are two int64 a thread in each of some ten vectors; a usual batch is one block.
_BLOCK_ROWS = 1024
_INTERPRETER_BLOCK_ROWS = 16
_WARPS = 16

_PADDING_ROW = tl.constexpr(PADDING_ROW)
_CHAIN_HEAD = tl.constexpr(CHAIN_HEAD)


@triton.jit(
    do_not_specialize=[
        "num_rows",
        "write_capacity",
        "verify_capacity",
        "table_rows",
        "row_len",
        "lut_len",
        "window_tokens",
    ]
)
def _plan_offsets_kernel(
    req_pool_indices_ptr,
    prefix_lens_ptr,
    extend_seq_lens_ptr,
    req_to_token_ptr,
    lut_ptr,
    verify_offsets_ptr,
    verify_num_valid_ptr,
    enable_ptr,
    write_offsets_ptr,
    write_seeds_ptr,
    write_num_valid_reqs_ptr,
    fault_ptr,
    num_rows,
    write_capacity,
    verify_capacity,
    table_rows,
    row_len,
    lut_len,
    window_tokens,
    HAS_LUT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    lane = tl.arange(0, BLOCK).to(tl.int64)
    verify_total = tl.full([], 0, tl.int64)
    write_total = tl.full([], 0, tl.int64)
    for start in range(0, num_rows, BLOCK):
        row = start + lane
        mask = row < num_rows
        pool_row = tl.load(req_pool_indices_ptr + row, mask=mask, other=_PADDING_ROW)
        prefix = tl.load(prefix_lens_ptr + row, mask=mask, other=0)
        extend = tl.load(extend_seq_lens_ptr + row, mask=mask, other=0)

        asked = mask & (pool_row != _PADDING_ROW)
        row_known = asked & (pool_row >= 0) & (pool_row < table_rows)
        active = row_known & (prefix >= 0) & (prefix <= row_len)
        noted = note_fault(tl.zeros_like(row), asked & (row_known == 0), pool_row, REQUEST_ROW)
        noted = note_fault(noted, row_known & (active == 0), prefix, PREFIX)

        num_verify = tl.where(active, prefix, 0)
        if window_tokens > 0:
            num_verify = tl.minimum(num_verify, window_tokens)
        num_write = tl.where(active, tl.maximum(extend, 0), 0)
        verify_ends = verify_total + tl.cumsum(num_verify, axis=0)
        write_ends = write_total + tl.cumsum(num_write, axis=0)
        tl.store(verify_offsets_ptr + row, verify_ends - num_verify, mask=mask)
        tl.store(write_offsets_ptr + row, write_ends - num_write, mask=mask)

        seeded = active & (num_write > 0) & (prefix > 0)
        slots, noted = load_slots(
            req_to_token_ptr,
            lut_ptr,
            pool_row,
            row_len,
            lut_len,
            prefix - 1,
            seeded,
            noted,
            HAS_LUT,
        )
        tl.store(write_seeds_ptr + row, tl.where(seeded, slots, _CHAIN_HEAD), mask=mask)
        record_faults(fault_ptr, noted)
        verify_total += tl.sum(num_verify, axis=0)
        write_total += tl.sum(num_write, axis=0)

    tl.store(verify_offsets_ptr + num_rows, verify_total)
    for start in range(num_rows, write_capacity + 1, BLOCK):
        cell = start + lane
        value = tl.where(cell == num_rows, write_total, 0)
        tl.store(write_offsets_ptr + cell, value, mask=cell <= write_capacity)
    tl.store(write_num_valid_reqs_ptr, num_rows)
    tl.store(verify_num_valid_ptr, tl.minimum(verify_total, verify_capacity).to(tl.int32))
    tl.store(enable_ptr, (verify_total <= verify_capacity).to(tl.int32))


def launch_plan_offsets_kernel(
    *,
    req_pool_indices: torch.Tensor,
    prefix_lens: torch.Tensor,
    extend_seq_lens: torch.Tensor,
    req_to_token: torch.Tensor,
    verify_offsets_out: torch.Tensor,
    verify_plan_out: VerifyPlan,
    write_plan_out: WritePlan,
    swa_window_size: int,
    full_to_swa_index_mapping: torch.Tensor | None,
    fault: torch.Tensor,
) -> None:
    """Fill the write plan, the verify plan's scalars and ``verify_offsets_out`` [bs + 1] int64.

    Arguments are checked by ``launch_plan_kernels``.
    """
    lut = full_to_swa_index_mapping
    table_rows, row_len = req_to_token.shape
    num_rows = int(req_pool_indices.shape[0])
    block = block_lanes(
        min(_BLOCK_ROWS, triton.next_power_of_2(max(num_rows, 32))), _INTERPRETER_BLOCK_ROWS
    )
    _plan_offsets_kernel[(1,)](
        req_pool_indices_ptr=req_pool_indices,
        prefix_lens_ptr=prefix_lens,
        extend_seq_lens_ptr=extend_seq_lens,
        req_to_token_ptr=req_to_token,
        lut_ptr=prefix_lens if lut is None else lut,
        verify_offsets_ptr=verify_offsets_out,
        verify_num_valid_ptr=verify_plan_out.verify_num_valid,
        enable_ptr=verify_plan_out.enable,
        write_offsets_ptr=write_plan_out.write_offsets,
        write_seeds_ptr=write_plan_out.write_seed_slot_indices,
        write_num_valid_reqs_ptr=write_plan_out.write_num_valid_reqs,
        fault_ptr=fault,
        num_rows=num_rows,
        write_capacity=write_plan_out.capacity,
        verify_capacity=verify_plan_out.capacity,
        table_rows=table_rows,
        row_len=row_len,
        lut_len=0 if lut is None else int(lut.shape[0]),
        window_tokens=swa_window_size,
        HAS_LUT=lut is not None,
        BLOCK=block,
        num_warps=min(_WARPS, max(1, block // 32)),
    )
