"""Sweeps of one worker: all that the prefix index holds, verified in every lane."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvcanary_cli.abi.constants import PoolKind
from kvcanary_cli.abi.plans import VerifyPlan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kvcanary_cli.canary.endpoint import Endpoint
    from kvcanary_cli.replay.collector import Collector, Tally
    from kvcanary_cli.replay.lanes import Lane
    from kvcanary_cli.replay.prefixes import SweepEntries
    from kvcanary_cli.replay.violations import ViolationChunk

    Ints = NDArray[np.int64]


class Sweeper:
    """Runs sweeps.

    Args:
        endpoints: The launches of one sweep.
        lanes: The worker's.
        collector: Works out what a launch found.
        tally: Counts.
        device: Of the backend.
    """

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        *,
        lanes: list[Lane],
        collector: Collector,
        tally: Tally,
        device: str,
    ) -> None:
        self._endpoints, self._lanes, self._collector = endpoints, lanes, collector
        self._tally, self._device = tally, device

    def run(
        self, entries: SweepEntries, lut: Ints | None, *, step: int, event: int
    ) -> list[ViolationChunk]:
        """Verify what the prefix index holds in every lane; the violations.

        Args:
            entries: What it holds.
            lut: [max_slot + 2] full-to-SWA table, None without a SWA pool.
            step, event: Of the sweep.
        """
        collector = self._collector
        collector.active, collector.forward, collector.sweep = True, None, (step, event)
        for endpoint in self._endpoints:
            lane = self._lanes[endpoint.group_index]
            plan = self._plan(lane, entries, lut)
            endpoint.launch_sweep(plan, collector)
            self._tally.sweep_entries += int(
                (plan.verify_slot_indices[: len(entries.slots)] != 0).sum()
            )
        return collector.emit()

    def _plan(self, lane: Lane, entries: SweepEntries, lut: Ints | None) -> VerifyPlan:
        import torch

        slots, prevs = entries.slots.copy(), entries.prev_slots.copy()
        if lane.kind is PoolKind.SWA and lut is not None:
            slots = lut[slots]
            prevs = np.where(prevs < 0, prevs, lut[np.maximum(prevs, 0)])
        prevs[lane.says_nothing(slots, prevs)] = 0
        if lane.unknown is not None:
            prevs[(prevs > 0) & lane.unknown[np.maximum(prevs, 0)]] = 0
            slots[lane.unknown[slots]] = 0
        count = len(slots)
        device = self._device
        plan = VerifyPlan.allocate(verify_capacity=max(1, count), device=device)
        plan.verify_slot_indices[:count] = torch.from_numpy(slots).to(device)
        plan.verify_prev_slot_indices[:count] = torch.from_numpy(prevs).to(device)
        plan.verify_expected_positions[:count] = torch.from_numpy(entries.positions).to(device)
        plan.verify_num_valid.fill_(count)
        return plan
