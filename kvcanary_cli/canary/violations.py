"""ViolationManager: from the ring to the log or to one exception, one step late (5.5)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kvcanary_cli.canary.config import CanaryMode
from kvcanary_cli.canary.delayed_copy import DelayedHostCopy
from kvcanary_cli.canary.violation_text import ViolationRow, violation_block

if TYPE_CHECKING:
    import torch

    from kvcanary_cli.canary.state import ViolationLog

logger = logging.getLogger("kvcanary.canary")


class ViolationManager:
    """Reports each stored row once, in ring order.

    Once the ring is full nothing further is printed, though the total keeps growing.
    """

    def __init__(
        self,
        *,
        mode: CanaryMode,
        violation_log: ViolationLog,
        stream: torch.cuda.Stream | None = None,
    ) -> None:
        self._mode = mode
        self._log = violation_log
        self._pipe = DelayedHostCopy(stream)
        self._reported = 0
        self._raised = False

    def step(self, outer_step: int) -> None:
        """Report what the previous step saw, then look at the ring's index again.

        Raises:
            RuntimeError: In mode raise, once: the blocks of all new rows, joined by newlines.
        """
        previous = self._pipe.take()
        if previous is not None and bool(previous["any"]) and not self._raised:
            self._report(outer_step)
        self._pipe.stage({"any": self._log.write_index > 0})

    def _report(self, outer_step: int) -> None:
        total = int(self._log.write_index.item())
        rows = self._log.rows(self._reported)
        self._reported += len(rows)
        blocks = [
            violation_block(
                ViolationRow.from_ring(row),
                total_violations=total,
                ring_overflow=total > self._log.capacity,
                step_when_pumped=outer_step,
            )
            for row in rows
        ]
        if not blocks:
            return
        if self._mode is CanaryMode.RAISE:
            self._raised = True
            raise RuntimeError("\n".join(blocks))
        for block in blocks:
            logger.warning("%s", block)
