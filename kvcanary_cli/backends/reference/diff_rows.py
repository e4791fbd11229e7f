"""Which cells of a table's rows differ from a shadow copy, cell by cell."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def diff_rows_reference(
    *,
    rows: torch.Tensor,
    lens: torch.Tensor,
    table: torch.Tensor,
    shadow: torch.Tensor,
    entries_out: torch.Tensor,
    count_out: torch.Tensor,
    width: int,
) -> None:
    """Compare and take over, given checked arguments; see ``Backend.diff_rows``."""
    found: list[tuple[int, int, int]] = []
    for row, length in zip(rows.tolist(), lens.tolist(), strict=True):
        if not 0 <= row < table.shape[0]:
            continue
        for position in range(min(length, width)):
            value = int(table[row, position])
            if value != int(shadow[row, position]):
                found.append((row, position, value))
    for k, (row, position, value) in enumerate(found[: entries_out.shape[0]]):
        entries_out[k, 0], entries_out[k, 1], entries_out[k, 2] = row, position, value
        shadow[row, position] = value
    count_out[0] = len(found)
