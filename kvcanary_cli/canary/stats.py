"""StatsLogger: a line of totals every N outer steps (KVC-L03)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kvcanary_cli.canary.delayed_copy import DelayedHostCopy

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from kvcanary_cli.abi.constants import LaunchTag
    from kvcanary_cli.canary.state import CanaryDeviceState

logger = logging.getLogger("kvcanary.canary")


class StatsLogger:
    """Stages the totals of every N-th step and prints them at the next step."""

    def __init__(
        self,
        *,
        interval_steps: int,
        tags: Sequence[LaunchTag],
        state: CanaryDeviceState,
        stream: torch.cuda.Stream | None = None,
    ) -> None:
        """
        Args:
            interval_steps: 0 = never.
            tags: Tags of all endpoints, V halves included whether or not they are launched.
            state: Counters and ring.
            stream: See ``DelayedHostCopy``.
        """
        self._interval = interval_steps
        self._tags = tuple(tags)
        self._state = state
        self._pipe = DelayedHostCopy(stream)

    def step(self, outer_step: int, sweep_passes: int) -> None:
        staged = self._pipe.take()
        if staged is not None:
            kernels = staged["kernels"].tolist()
            active = sum(1 for tag in self._tags if kernels[tag] > 0)
            logger.info(
                f"[canary] step={staged['step']} protected_tokens={int(staged['slots'].sum())} "
                f"sweep_passes={staged['sweep_passes']} violations={int(staged['violations'])} "
                f"launch_tags_active={active}/{len(self._tags)}"
            )
        if self._interval > 0 and outer_step % self._interval == 0:
            self._pipe.stage(
                {
                    "step": outer_step,
                    "sweep_passes": sweep_passes,
                    "kernels": self._state.kernel_run_counters,
                    "slots": self._state.slot_run_counters,
                    "violations": self._state.violation_log.write_index,
                }
            )
