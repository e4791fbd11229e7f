"""Scatter of token ids into the expected-token pool (specification 1.14)."""

from __future__ import annotations

from kvcanary_cli.backends.cpu.jit import kernel
from kvcanary_cli.backends.cpu.memory import load_i64, store_i32


@kernel
def scatter_ids(  # type: ignore[no-untyped-def]
    flat,
    num_ids,
    flat_step,
    offsets,
    offsets_step,
    req,
    req_step,
    bs,
    pool,
    num_rows,
    width,
    row_step,
    column_step,
):
    """Copy ids request by request; steps are strides in elements."""
    for r in range(bs):
        row = load_i64(req, r * req_step)
        if row < 0 or row >= num_rows:
            continue
        start = load_i64(offsets, r * offsets_step)
        stop = min(load_i64(offsets, (r + 1) * offsets_step), num_ids)
        for i in range(max(0, start), stop):
            if i - start >= width:
                break
            value = load_i64(flat, i * flat_step)
            store_i32(pool, row * row_step + (i - start) * column_step, value)
