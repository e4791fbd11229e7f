"""EnableWarner: says, one step late, that a forward was not verified (KVC-B08)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kvcanary_cli.canary.delayed_copy import DelayedHostCopy
from kvcanary_cli.capacities.checks import verify_overflow_text

if TYPE_CHECKING:
    import torch

logger = logging.getLogger("kvcanary.canary")


class EnableWarner:
    """One per single-forward manager; one line per affected forward, without a rate limit."""

    def __init__(
        self,
        *,
        enable: torch.Tensor,
        verify_capacity: int,
        stream: torch.cuda.Stream | None = None,
    ) -> None:
        """
        Args:
            enable: [1] int32 of the manager's fixed output.
            verify_capacity: For the text.
            stream: See ``DelayedHostCopy``.
        """
        self._enable = enable
        self._capacity = verify_capacity
        self._pipe = DelayedHostCopy(stream)
        self.total = 0
        """Forwards that were skipped so far: this is what the line calls total."""

    def tick(self) -> None:
        previous = self._pipe.take()
        if previous is not None and int(previous["enable"]) == 0:
            self.total += 1
            logger.warning(verify_overflow_text(occurrences=self.total, capacity=self._capacity))
        self._pipe.stage({"enable": self._enable})
