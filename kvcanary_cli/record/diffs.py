"""Finds what changed in the rows of a table, where the table is, against a shadow copy there.

The shadow begins with zeros, as the table of a trace does: pages that nobody touches cost nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvcanary_cli.record.copies import to_device, turns_on

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    #: Numbers on the host, or a tensor.
    Rows = Sequence[int] | Ints | torch.Tensor

#: A decode step changes a cell a row, a long prefill some thousands in one.
_CAPACITY = 8192
_FIELDS = 3


class RowDiff:
    """The shadow of one table and the buffers of its diffs.

    Attributes:
        capacity: Changes that a launch without waiting can tell.
    """

    def __init__(self, table: Any, capacity: int = _CAPACITY) -> None:
        """Nothing is known of ``table`` but zeros.

        Args:
            table: [rows, row_len] int32 or int64, contiguous, a tensor or array. Other tables are
                compared on the host, with numpy.
            capacity: Changes that the buffers hold.
        """
        self.capacity = capacity
        self._table = _as_tensor(table)
        self._told: NDArray[Any] | None = None
        self._buffers: tuple[torch.Tensor, torch.Tensor] | None = None
        if self._table is None:
            self._odd = table
            self._told = np.zeros(tuple(table.shape), dtype=np.int64)
            return
        import torch

        from kvcanary_cli.backends import get_backend

        self.on_host = self._table.device.type == "cpu"
        self._backend = get_backend("cpu" if self.on_host else "triton")
        self._shadow = torch.zeros_like(self._table)
        self._turns = turns_on(self._table)
        # The first launch compiles, or loads, the kernels: here and not within a step.
        self.changes([0], [0])

    @property
    def can_launch(self) -> bool:
        """Whether the kernels can take the table."""
        return self._told is None

    def changes(self, rows: Rows, lengths: Rows) -> Ints:
        """What changed in the first cells of some rows since it was last told; waits for it.

        Args:
            rows: Row numbers.
            lengths: How many cells of each.

        Returns:
            [n, 3] table row, position, new value, in the order of ``rows`` and positions.
        """
        if self._told is not None:
            return self._changes_by_numpy(rows, lengths)
        if self._buffers is None:
            self._buffers = self._new_buffers()
        entries, count = self._buffers
        parts: list[Ints] = []
        while True:
            self._launch(rows, lengths, entries, count)
            found = int(count.item())
            parts.append(entries[: min(found, self.capacity)].cpu().numpy().copy())
            if found <= self.capacity:
                break
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def launch(
        self, rows: Rows, lengths: Rows, longest: int | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The same without waiting: [capacity, 3] entries and [1] count, on the device.

        Where the count is above the capacity the rest stays untold.

        Args:
            rows, lengths: As of ``changes``; tensors of the table's device are not looked at.
            longest: Cells of a row beyond which nothing is compared; None = the longest length,
                or where that is not known on the host the whole row.
        """
        entries, count = self._new_buffers()
        self._launch(rows, lengths, entries, count, longest)
        return entries, count

    def grow(self, count: int) -> None:
        """Make room for ``count`` changes at a time."""
        while self.capacity < count:
            self.capacity *= 2
        self._buffers = None

    def forget(self, known: int = 0) -> None:
        """Nothing is known any more but cells of the value ``known``."""
        if self._told is not None:
            self._told[:] = known
        else:
            self._turns.begin()
            self._shadow.fill_(known)
            self._turns.end()

    def _new_buffers(self) -> tuple[torch.Tensor, torch.Tensor]:
        import torch

        device = self._shadow.device
        return (
            torch.empty((self.capacity, _FIELDS), dtype=torch.int64, device=device),
            torch.empty(1, dtype=torch.int64, device=device),
        )

    def _launch(
        self,
        rows: Rows,
        lengths: Rows,
        entries: torch.Tensor,
        count: torch.Tensor,
        longest: int | None = None,
    ) -> None:
        assert self._table is not None
        if longest is None:
            known = self.on_host or not hasattr(lengths, "detach")
            longest = to_cells(lengths).max(initial=0) if known else self._table.shape[1]
        self._turns.begin()
        self._backend.diff_rows(
            rows=self._to_table(rows),
            lens=self._to_table(lengths),
            table=self._table,
            shadow=self._shadow,
            entries_out=entries,
            count_out=count,
            width=min(max(0, int(longest)), int(self._table.shape[1])),
        )
        self._turns.end()

    def _to_table(self, values: Rows) -> torch.Tensor:
        import torch

        if torch.is_tensor(values) and values.device == self._shadow.device:
            return values.to(torch.int64).reshape(-1).contiguous()
        return to_device(to_cells(values), self._shadow.device)

    def _changes_by_numpy(self, rows: Rows, lengths: Rows) -> Ints:
        assert self._told is not None
        found = []
        for row, length in zip(to_cells(rows).tolist(), to_cells(lengths).tolist(), strict=True):
            if not 0 <= row < self._told.shape[0] or length <= 0:
                continue
            now = to_cells(self._odd[row, :length])
            at = np.flatnonzero(now != self._told[row, : len(now)])
            found.append(np.stack([np.full(len(at), row), at, now[at]], axis=1))
        for part in found:
            self._told[part[:, 0], part[:, 1]] = part[:, 2]
        empty = np.zeros((0, _FIELDS), dtype=np.int64)
        return np.concatenate([empty, *found]).astype(np.int64)


def to_cells(values: Any) -> Ints:
    """Integers of a tensor, array or sequence as a one-dimensional int64 copy on the host."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    return np.array(values, dtype=np.int64).reshape(-1)


def _as_tensor(table: Any) -> torch.Tensor | None:
    """``table`` as a tensor over the same memory, if the kernels can take it."""
    import torch

    tensor: torch.Tensor
    if isinstance(table, np.ndarray):
        if table.dtype not in (np.int32, np.int64) or not table.flags.c_contiguous:
            return None
        if not table.flags.writeable:
            return None
        tensor = torch.from_numpy(table)
    elif hasattr(table, "detach"):
        tensor = table.detach()
    else:
        return None
    fits = tensor.dtype in (torch.int32, torch.int64) and tensor.is_contiguous()
    return tensor if fits and tensor.dim() == 2 else None
