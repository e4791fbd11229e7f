"""Scatter of the batch's token ids into the expected-token pool (specification 1.14).

One lane an id, whose request is found by binary search in the offsets. Where requests share a pool
row, the last one in order wins on every backend, so an id is dropped if a later request reaches
its column too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from kvcanary_cli.abi.checked import checked_by
from kvcanary_cli.abi.checks import check_scatter_args
from kvcanary_cli.backends.triton.launch import block_lanes, persistent_grid

if TYPE_CHECKING:
    import torch

_BLOCK_IDS = 256
_INTERPRETER_BLOCK_IDS = 32
_WARPS = 8


@triton.jit(do_not_specialize=["num_ids", "num_rows", "pool_rows", "pool_width"])
def _scatter_kernel(
    flat_in_ptr,
    offsets_ptr,
    req_pool_indices_ptr,
    pool_out_ptr,
    num_ids,
    num_rows,
    pool_rows,
    pool_width,
    SEARCH_STEPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    first = tl.program_id(0).to(tl.int64) * BLOCK
    step = tl.num_programs(0).to(tl.int64) * BLOCK
    for start in range(first, num_ids, step):
        index = start + tl.arange(0, BLOCK).to(tl.int64)
        mask = index < num_ids
        row = tl.zeros_like(index)
        above = row + num_rows
        for _ in range(SEARCH_STEPS):
            middle = (row + above) // 2
            at_or_after = tl.load(offsets_ptr + middle, mask=mask, other=0) <= index
            row = tl.where(at_or_after, middle, row)
            above = tl.where(at_or_after, above, middle)
        row_begin = tl.load(offsets_ptr + row, mask=mask, other=0)
        row_end = tl.load(offsets_ptr + row + 1, mask=mask, other=0)
        pool_row = tl.load(req_pool_indices_ptr + row, mask=mask, other=-1)
        column = index - row_begin
        kept = mask & (index >= row_begin) & (index < row_end) & (column < pool_width)
        kept = kept & (pool_row >= 0) & (pool_row < pool_rows)
        for later in range(0, num_rows):
            later_begin = tl.load(offsets_ptr + later)
            later_end = tl.minimum(tl.load(offsets_ptr + later + 1), num_ids)
            reaches = (later > row) & (column < later_end - later_begin)
            kept = kept & (((tl.load(req_pool_indices_ptr + later) == pool_row) & reaches) == 0)
        ids = tl.load(flat_in_ptr + index, mask=kept, other=0)
        tl.store(pool_out_ptr + pool_row * pool_width + column, ids.to(tl.int32), mask=kept)


@checked_by(check_scatter_args)
def launch_scatter_kernel(
    *,
    flat_in: torch.Tensor,
    offsets: torch.Tensor,
    req_pool_indices: torch.Tensor,
    pool_out: torch.Tensor,
) -> None:
    """Scatter ids; see ``Backend.scatter_req_token_ids``. Safe under graph capture."""
    num_ids = int(flat_in.shape[0])
    num_rows = int(req_pool_indices.shape[0])
    if num_ids == 0 or num_rows == 0:
        return
    pool_rows, pool_width = pool_out.shape
    block = block_lanes(_BLOCK_IDS, _INTERPRETER_BLOCK_IDS)
    _scatter_kernel[persistent_grid(flat_in.device, num_ids, block)](
        flat_in_ptr=flat_in,
        offsets_ptr=offsets,
        req_pool_indices_ptr=req_pool_indices,
        pool_out_ptr=pool_out,
        num_ids=num_ids,
        num_rows=num_rows,
        pool_rows=pool_rows,
        pool_width=pool_width,
        SEARCH_STEPS=(num_rows - 1).bit_length(),
        BLOCK=block,
        num_warps=_WARPS,
    )
