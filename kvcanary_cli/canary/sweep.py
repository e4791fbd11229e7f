"""Sweeps: every N outer steps, verify the TAIL rows of what the prefix cache holds (3.4, 5.6)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kvcanary_cli.abi.constants import PoolKind
from kvcanary_cli.abi.plans import VerifyPlan
from kvcanary_cli.canary.prefix_walk import walk_prefix_cache

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from kvcanary_cli.canary.buffer_group import CanaryBufferGroup
    from kvcanary_cli.canary.endpoint import Endpoint, LaunchObserver
    from kvcanary_cli.canary.prefix_walk import SweepEntries

logger = logging.getLogger("kvcanary.canary")


def build_sweep_plan(
    entries: SweepEntries,
    *,
    swa_window_size: int,
    full_to_swa_index_mapping: torch.Tensor | None,
    device: torch.device | str = "cpu",
) -> VerifyPlan:
    """Make a verify plan of exactly the walked slots; expected tokens are left unset.

    Args:
        entries: From the walk, full-pool slots.
        swa_window_size: Window of the group; above 0 slots and predecessors are translated.
        full_to_swa_index_mapping: [n] int64, needed with a window.
        device: Where the plan lives.

    Raises:
        AssertionError: KVC-R16.
        IndexError: A slot beyond the table.
    """
    import torch

    count = len(entries.slots)
    plan = VerifyPlan.allocate(verify_capacity=max(1, count), device=device)
    slots = torch.tensor(entries.slots, dtype=torch.int64, device=device)
    prev = torch.tensor(entries.prev_slots, dtype=torch.int64, device=device)
    if swa_window_size > 0:
        if full_to_swa_index_mapping is None:
            raise AssertionError("full_to_swa_index_mapping is required when SWA is enabled")
        slots = _translate(slots, full_to_swa_index_mapping)
        prev = _translate(prev, full_to_swa_index_mapping)
    plan.verify_slot_indices[:count] = slots
    plan.verify_prev_slot_indices[:count] = prev
    plan.verify_expected_positions[:count] = torch.tensor(
        entries.positions, dtype=torch.int64, device=device
    )
    plan.verify_num_valid.fill_(count)
    return plan


def _translate(slots: torch.Tensor, lut: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.where(slots < 0, slots, lut[slots.clamp(min=0)])


class SweepOrchestrator:
    """Knows when a sweep is due and runs it over all groups."""

    def __init__(
        self,
        *,
        interval_steps: int,
        groups: Sequence[CanaryBufferGroup],
        endpoints: Sequence[Endpoint],
        enable_mha_v: bool,
        swa_window_size: int,
        observer: LaunchObserver | None = None,
        device: str = "cpu",
    ) -> None:
        self._interval = interval_steps
        self._groups = tuple(groups)
        self._endpoints = [
            [
                e
                for e in endpoints
                if e.group_index == index
                and e.tag.is_sweep
                and (enable_mha_v or not e.tag.is_v_half)
            ]
            for index in range(len(groups))
        ]
        self._window = swa_window_size
        self._observer = observer
        self._device = device
        self._last: int | None = None
        self.passes = 0
        """Sweeps that were launched; says nothing about violations."""

    def maybe_sweep(self, counter: int, prefix_index: object | None) -> bool:
        """Sweep if due: at the first step, then whenever the interval has passed.

        Args:
            counter: Outer step counter before its increment.
            prefix_index: The prefix cache; None = nothing runs, though the interval starts anew.

        Returns:
            Whether a sweep was launched.
        """
        if self._interval <= 0:
            return False
        if self._last is not None and counter - self._last < self._interval:
            return False
        self._last = counter
        if prefix_index is None:
            return False
        self.sweep(prefix_index)
        logger.info(f"[canary] sweep succeeded {self.passes} times (last_step={counter})")
        return True

    def sweep(self, prefix_index: object) -> None:
        """Sweep now, whether or not it is due.

        Raises:
            NotImplementedError: KVC-R06.
        """
        for index, group in enumerate(self._groups):
            plan = build_sweep_plan(
                walk_prefix_cache(prefix_index),
                swa_window_size=self._window if group.kind is PoolKind.SWA else 0,
                full_to_swa_index_mapping=group.swa_index_lut,
                device=self._device,
            )
            for endpoint in self._endpoints[index]:
                endpoint.launch_sweep(plan, self._observer)
        self.passes += 1
