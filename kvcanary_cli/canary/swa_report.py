"""SwaDivergenceReport: how far the sliding-window pool has gone its own way (KVC-L05, 5.8)."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

from kvcanary_cli.canary.delayed_copy import DelayedHostCopy

if TYPE_CHECKING:
    import torch

    from kvcanary_cli.canary.forward_batch import ForwardBatch

logger = logging.getLogger("kvcanary.canary")


def live_cell_counts(
    batch: ForwardBatch, req_to_token: torch.Tensor, lut: torch.Tensor
) -> torch.Tensor:
    """Count the batch's live table cells (position < seq_len) by what the table says of them.

    Returns:
        [2] int64: cells whose sliding-window slot is neither 0 nor the full slot, and cells that
        map to 0.
    """
    import torch

    rows = req_to_token[batch.req_pool_indices.long()].long()
    columns = torch.arange(rows.shape[1], device=rows.device)
    live = columns[None, :] < batch.seq_lens.long()[:, None]
    live &= (batch.req_pool_indices != 0)[:, None]
    translated = lut[rows.clamp(0, int(lut.shape[0]) - 1)]
    diverged = live & (translated != rows) & (translated != 0)
    return torch.stack((diverged.sum(), (live & (translated == 0)).sum()))


class SwaDivergenceReport:
    """A line of compact JSON every N outer steps, one step late."""

    def __init__(
        self,
        *,
        interval_steps: int,
        totals: torch.Tensor,
        req_to_token: torch.Tensor,
        lut: torch.Tensor | None,
        stream: torch.cuda.Stream | None = None,
    ) -> None:
        """
        Args:
            interval_steps: Positive.
            totals: [2] int32 running totals of planned entries, FULL and SWA.
            req_to_token: The request table.
            lut: Full-to-SWA table, or None: both table counts are then 0.
            stream: See ``DelayedHostCopy``.
        """
        self._interval = interval_steps
        self._totals = totals
        self._table = req_to_token
        self._lut = lut
        self._pipe = DelayedHostCopy(stream)
        self._steps = 0

    def step(self, batch: ForwardBatch) -> None:
        staged = self._pipe.take()
        if staged is not None:
            full, swa = staged["totals"].tolist()
            diverged, out_of_window = staged["cells"].tolist()
            payload = {
                "forward_ct": staged["forward_ct"],
                "verify_full": full,
                "verify_swa": swa,
                "swa_full_idx_divergence": diverged,
                "swa_out_of_window_tokens": out_of_window,
            }
            logger.info("kv_canary_swa_divergence=" + json.dumps(payload, separators=(",", ":")))
        self._steps += 1
        if self._steps % self._interval == 0:
            cells = (
                self._totals.new_zeros(2)
                if self._lut is None
                else live_cell_counts(batch, self._table, self._lut)
            )
            self._pipe.stage({"forward_ct": self._steps, "totals": self._totals, "cells": cells})
