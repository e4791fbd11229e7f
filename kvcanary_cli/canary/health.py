"""HealthChecker: every launch tag that should run did run (KVC-R01, specification 5.5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcanary_cli.canary.delayed_copy import DelayedHostCopy

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import torch

    from kvcanary_cli.abi.constants import LaunchTag

HEALTH_INTERVAL_STEPS = 100


def expected_tags(
    tags: Iterable[LaunchTag], *, enable_mha_v: bool, sweep_interval: int, is_draft: bool
) -> tuple[LaunchTag, ...]:
    """Tags of existing endpoints that must run: no V half behind a closed gate, no sweep where
    none is due (drafts have no prefix cache)."""
    sweeps = sweep_interval > 0 and not is_draft
    return tuple(
        tag for tag in tags if (enable_mha_v or not tag.is_v_half) and (sweeps or not tag.is_sweep)
    )


class HealthChecker:
    """Compares the launch counters of every hundredth step with those of the hundredth before.

    It raises in mode log too. A sweep interval above 100 leaves a window without a sweep, so that
    its tags look stalled although nothing is wrong.
    """

    def __init__(
        self,
        *,
        tags: Sequence[LaunchTag],
        kernel_run_counters: torch.Tensor,
        stream: torch.cuda.Stream | None = None,
    ) -> None:
        self._tags = tuple(tags)
        self._counters = kernel_run_counters
        self._previous = [0] * int(kernel_run_counters.shape[0])
        self._pipe = DelayedHostCopy(stream)

    def step(self, outer_step: int) -> None:
        """Look at the counters staged one step ago; stage anew if ``outer_step`` is due.

        Raises:
            RuntimeError: KVC-R01.
        """
        staged = self._pipe.take()
        if staged is not None:
            self._compare(staged["counters"].tolist(), outer_step)
        if outer_step >= HEALTH_INTERVAL_STEPS and outer_step % HEALTH_INTERVAL_STEPS == 0:
            self._pipe.stage({"counters": self._counters})

    def _compare(self, counters: list[int], outer_step: int) -> None:
        previous, self._previous = self._previous, counters
        stalled = [tag.name for tag in self._tags if counters[tag] <= previous[tag]]
        if stalled:
            raise RuntimeError(
                "kv-canary: kernel_run_counter did not increase since previous check for "
                f"tags=[{', '.join(stalled)}] at step={outer_step}; canary path is not executing"
            )
