"""Argument checks of ``Backend.diff_rows``; like ``abi.checks``, nothing here reads data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcanary_cli.abi.tensor_checks import (
    check_contiguous,
    check_device,
    check_dim,
    check_dtype,
    check_vector,
)

if TYPE_CHECKING:
    import torch

DIFF_FIELDS = 3
"""Table row, position, new value."""


def check_diff_args(
    *,
    rows: torch.Tensor,
    lens: torch.Tensor,
    table: torch.Tensor,
    shadow: torch.Tensor,
    entries_out: torch.Tensor,
    count_out: torch.Tensor,
    width: int,
) -> None:
    """Check the arguments of a diff launch.

    Raises:
        ValueError: One does not fit; the text names it.
    """
    import torch

    check_dim("table", table, 2)
    if table.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"kv-canary: table must have dtype int32 or int64, got {table.dtype}")
    check_contiguous("table", table)
    check_dtype("shadow", shadow, table.dtype)
    if shadow.shape != table.shape:
        raise ValueError(
            f"kv-canary: shadow must have table's shape {tuple(table.shape)}, "
            f"got {tuple(shadow.shape)}"
        )
    check_device("shadow", shadow, "table", table)
    check_contiguous("shadow", shadow)
    check_vector("rows", rows, torch.int64, None, "table", table)
    check_vector("lens", lens, torch.int64, int(rows.shape[0]), "table", table)
    check_dtype("entries_out", entries_out, torch.int64)
    check_dim("entries_out", entries_out, 2)
    if entries_out.shape[1] != DIFF_FIELDS:
        raise ValueError(
            f"kv-canary: entries_out must be [capacity, {DIFF_FIELDS}], "
            f"got {tuple(entries_out.shape)}"
        )
    check_device("entries_out", entries_out, "table", table)
    check_contiguous("entries_out", entries_out)
    check_vector("count_out", count_out, torch.int64, 1, "table", table)
    if not 0 <= width <= table.shape[1]:
        raise ValueError(
            f"kv-canary: width must be from 0 to table's row length {table.shape[1]}, got {width}"
        )
