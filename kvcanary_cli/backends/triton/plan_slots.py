"""Slots of request rows, translated into the group's pool: shared by both plan kernels (3.1)."""

from __future__ import annotations

import triton
import triton.language as tl

from kvcanary_cli.backends.triton.fault_cell import SWA_SLOT, note_fault


@triton.jit
def load_slots(
    req_to_token_ptr,
    lut_ptr,
    pool_rows,
    row_len,
    lut_len,
    columns,
    mask,
    noted,
    HAS_LUT: tl.constexpr,
):
    """Load ``req_to_token[pool_rows, columns]`` where ``mask`` and translate it.

    Returns:
        [n] int64 slots, 0 where masked off or where the table does not know the slot, which is
        merged into ``noted``; negative slots pass untranslated.
    """
    slots = tl.load(req_to_token_ptr + pool_rows * row_len + columns, mask=mask, other=0).to(
        tl.int64
    )
    if HAS_LUT:
        translated = mask & (slots >= 0)
        known = translated & (slots < lut_len)
        noted = note_fault(noted, translated & (known == 0), slots, SWA_SLOT)
        targets = tl.load(lut_ptr + slots, mask=known, other=0)
        slots = tl.where(translated, targets, slots)
    return slots, noted
