"""Collecting the largest fault of a launch (``abi.faults``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcanary_cli.abi.faults import Fault, new_fault_cell, pack_fault, raise_on_fault

if TYPE_CHECKING:
    import torch


class FaultLog:
    """The largest packed fault met so far; 0 = none."""

    def __init__(self) -> None:
        self.packed = 0

    def note(self, fault: Fault, value: int) -> None:
        self.packed = max(self.packed, pack_fault(fault, value))

    def finish(self, cell: torch.Tensor | None, **sizes: int) -> None:
        """Leave the fault in the caller's cell, or raise it if there is no cell.

        Raises:
            ValueError: see ``raise_on_fault``.
        """
        if cell is not None:
            cell[0] = max(int(cell[0]), self.packed)
        elif self.packed:
            own = new_fault_cell()
            own[0] = self.packed
            raise_on_fault(own, **sizes)
