"""Which cells of a table's rows differ from a shadow copy, without waiting for the device.

Three launches on one stream. The first counts the differing cells of each block of a row; a prefix
sum over the counts (torch) says where each block's entries begin; the second writes them there, so
that their order is that of rows and positions; the third takes what was written over into the
shadow. The shadow changes last, because one row may be asked for twice. Launched by the recorder
before every forward, outside of captured graphs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from kvcanary_cli.abi.checked import checked_by
from kvcanary_cli.abi.diff_checks import DIFF_FIELDS, check_diff_args
from kvcanary_cli.backends.triton.launch import block_lanes, persistent_grid

if TYPE_CHECKING:
    import torch

# 1024 cells are four a thread and 4 KiB of each table: few programs for a decode step's rows, and
# no more than one block of waste at a row's end.
_BLOCK_CELLS = 1024
_INTERPRETER_BLOCK_CELLS = 8
_WARPS = 8

_FIELDS = tl.constexpr(DIFF_FIELDS)


@triton.jit
def _load_block(
    rows_ptr,
    lens_ptr,
    table_ptr,
    shadow_ptr,
    item,
    blocks_per_row,
    table_rows,
    row_len,
    width,
    BLOCK: tl.constexpr,
):
    """Row, positions, values, and which of them differ, of block number ``item``."""
    k = item // blocks_per_row
    position = (item % blocks_per_row) * BLOCK + tl.arange(0, BLOCK).to(tl.int64)
    row = tl.load(rows_ptr + k) + tl.zeros_like(position)
    stop = tl.minimum(tl.load(lens_ptr + k), width)
    mask = (position < stop) & (row >= 0) & (row < table_rows)
    at = row * row_len + position
    value = tl.load(table_ptr + at, mask=mask, other=0)
    known = tl.load(shadow_ptr + at, mask=mask, other=0)
    return row, position, value, mask & (value != known)


@triton.jit(do_not_specialize=["items", "blocks_per_row", "table_rows", "row_len", "width"])
def _diff_count_kernel(
    rows_ptr,
    lens_ptr,
    table_ptr,
    shadow_ptr,
    counts_ptr,
    items,
    blocks_per_row,
    table_rows,
    row_len,
    width,
    BLOCK: tl.constexpr,
):
    first = tl.program_id(0).to(tl.int64)
    for item in range(first, items, tl.num_programs(0).to(tl.int64)):
        _, _, _, differs = _load_block(
            rows_ptr,
            lens_ptr,
            table_ptr,
            shadow_ptr,
            item,
            blocks_per_row,
            table_rows,
            row_len,
            width,
            BLOCK,
        )
        tl.store(counts_ptr + item, tl.sum(differs.to(tl.int64), axis=0))


@triton.jit(
    do_not_specialize=["items", "blocks_per_row", "table_rows", "row_len", "width", "capacity"]
)
def _diff_entries_kernel(
    rows_ptr,
    lens_ptr,
    table_ptr,
    shadow_ptr,
    counts_ptr,
    ends_ptr,
    entries_ptr,
    items,
    blocks_per_row,
    table_rows,
    row_len,
    width,
    capacity,
    BLOCK: tl.constexpr,
):
    first = tl.program_id(0).to(tl.int64)
    for item in range(first, items, tl.num_programs(0).to(tl.int64)):
        count = tl.load(counts_ptr + item)
        # Nearly all blocks of a step are unchanged.
        if count > 0:
            row, position, value, differs = _load_block(
                rows_ptr,
                lens_ptr,
                table_ptr,
                shadow_ptr,
                item,
                blocks_per_row,
                table_rows,
                row_len,
                width,
                BLOCK,
            )
            one = differs.to(tl.int64)
            entry = tl.load(ends_ptr + item) - count + tl.cumsum(one, axis=0) - one
            kept = differs & (entry < capacity)
            at = entries_ptr + entry * _FIELDS
            tl.store(at, row, mask=kept)
            tl.store(at + 1, position, mask=kept)
            tl.store(at + 2, value.to(tl.int64), mask=kept)


@triton.jit(do_not_specialize=["capacity", "row_len"])
def _diff_shadow_kernel(
    entries_ptr,
    count_ptr,
    shadow_ptr,
    capacity,
    row_len,
    BLOCK: tl.constexpr,
):
    first = tl.program_id(0).to(tl.int64) * BLOCK
    step = tl.num_programs(0).to(tl.int64) * BLOCK
    stored = tl.minimum(tl.load(count_ptr), capacity)
    for start in range(first, stored, step):
        entry = start + tl.arange(0, BLOCK).to(tl.int64)
        mask = entry < stored
        row = tl.load(entries_ptr + entry * _FIELDS, mask=mask, other=0)
        position = tl.load(entries_ptr + entry * _FIELDS + 1, mask=mask, other=0)
        value = tl.load(entries_ptr + entry * _FIELDS + 2, mask=mask, other=0)
        cell = value.to(shadow_ptr.dtype.element_ty)
        tl.store(shadow_ptr + row * row_len + position, cell, mask=mask)


@checked_by(check_diff_args)
def launch_diff_rows_kernels(
    *,
    rows: torch.Tensor,
    lens: torch.Tensor,
    table: torch.Tensor,
    shadow: torch.Tensor,
    entries_out: torch.Tensor,
    count_out: torch.Tensor,
    width: int,
) -> None:
    """Diff rows; see ``Backend.diff_rows``. Three launches and a prefix sum, no synchronisation."""
    import torch

    block = block_lanes(_BLOCK_CELLS, _INTERPRETER_BLOCK_CELLS)
    blocks_per_row = triton.cdiv(width, block)
    items = int(rows.shape[0]) * blocks_per_row
    if items == 0:
        count_out.zero_()
        return
    table_rows, row_len = table.shape
    capacity = int(entries_out.shape[0])
    counts = torch.empty(items, dtype=torch.int64, device=table.device)
    grid = persistent_grid(table.device, items, 1)
    shape = {
        "items": items,
        "blocks_per_row": blocks_per_row,
        "table_rows": table_rows,
        "row_len": row_len,
        "width": width,
    }
    _diff_count_kernel[grid](
        rows_ptr=rows,
        lens_ptr=lens,
        table_ptr=table,
        shadow_ptr=shadow,
        counts_ptr=counts,
        **shape,
        BLOCK=block,
        num_warps=_WARPS,
    )
    ends = torch.cumsum(counts, dim=0)
    count_out.copy_(ends[-1:])
    if capacity == 0:
        return
    _diff_entries_kernel[grid](
        rows_ptr=rows,
        lens_ptr=lens,
        table_ptr=table,
        shadow_ptr=shadow,
        counts_ptr=counts,
        ends_ptr=ends,
        entries_ptr=entries_out,
        **shape,
        capacity=capacity,
        BLOCK=block,
        num_warps=_WARPS,
    )
    _diff_shadow_kernel[persistent_grid(table.device, capacity, block)](
        entries_ptr=entries_out,
        count_ptr=count_out,
        shadow_ptr=shadow,
        capacity=capacity,
        row_len=row_len,
        BLOCK=block,
        num_warps=_WARPS,
    )
