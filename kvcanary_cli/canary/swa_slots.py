"""Full-pool slots seen as sliding-window-pool slots (specification 3.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcanary_cli.abi.faults import FAULT_VALUE_BIAS, FAULT_VALUE_BITS, Fault

if TYPE_CHECKING:
    import torch


def translate_out_cache_loc(
    out_cache_loc: torch.Tensor, lut: torch.Tensor, fault: torch.Tensor
) -> torch.Tensor:
    """Translate the slots that a forward writes.

    The server indexes the table directly, so that -1 picks its last cell, which holds -1. Here a
    negative slot stays -1 whatever the table ends with, and a slot beyond the table, which would
    be an index error there, is not written and leaves a fault.

    Args:
        out_cache_loc: [n] int64, full-pool slots.
        lut: [m] int64, m >= 1.
        fault: [1] int64, see ``abi.faults``.

    Returns:
        [n] int64, 0 where the table has no slot, -1 where nothing is to be written.
    """
    import torch

    if out_cache_loc.numel() == 0:
        return out_cache_loc
    cells = int(lut.shape[0])
    translated = lut[out_cache_loc.clamp(0, cells - 1)]
    beyond = out_cache_loc >= cells
    unwritten = (out_cache_loc < 0) | beyond
    result = torch.where(unwritten, torch.full_like(translated, -1), translated)
    packed = (int(Fault.SWA_SLOT) << FAULT_VALUE_BITS) + out_cache_loc + FAULT_VALUE_BIAS
    worst = torch.where(beyond, packed, torch.zeros_like(packed)).max()
    fault.copy_(torch.maximum(fault, worst))
    return result
