"""Kernel that shortens the ledger's lists of map events (``attribution.row_table``)."""

from __future__ import annotations

from kvcanary_cli.backends.cpu.jit import kernel
from kvcanary_cli.backends.cpu.memory import (
    load_i32,
    load_i64,
    load_u8,
    store_i32,
    store_i64,
    store_u8,
)


@kernel
def drop_covered(num_rows, heads, cells, seen, out):  # type: ignore[no-untyped-def]
    """Drop the map events that newer ones of their row cover wholly, together.

    Args:
        num_rows: Rows.
        heads: Address of [num_rows] int64 first nodes, -1 = none.
        cells: Address of [nodes, 4] int32: first cell, one behind the last, owner, next node.
        seen: Address of zero bytes, one for each cell of a row; left zero.
        out: Address of [2] int64: first free node, how many were dropped; added to.
    """
    free, dropped = load_i64(out, 0), load_i64(out, 1)
    for row in range(num_rows):
        node = load_i64(heads, row)
        last = -1
        while node >= 0:
            below = load_i32(cells, node * 4 + 3)
            covered = 1
            for at in range(load_i32(cells, node * 4), load_i32(cells, node * 4 + 1)):
                if load_u8(seen, at) == 0:
                    covered = 0
                    store_u8(seen, at, 1)
            if covered != 0:
                store_i32(cells, node * 4 + 3, free)
                free = node
                dropped += 1
            else:
                if last < 0:
                    store_i64(heads, row, node)
                else:
                    store_i32(cells, last * 4 + 3, node)
                last = node
            node = below
        if last < 0:
            store_i64(heads, row, -1)
        else:
            store_i32(cells, last * 4 + 3, -1)
        node = load_i64(heads, row)
        while node >= 0:
            for at in range(load_i32(cells, node * 4), load_i32(cells, node * 4 + 1)):
                store_u8(seen, at, 0)
            node = load_i32(cells, node * 4 + 3)
    store_i64(out, 0, free)
    store_i64(out, 1, dropped)
