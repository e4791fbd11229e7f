"""PhaseChecker: the four operations of an inner forward come in order (specification 5.3).

The server keeps this state on the device, so that graph replay is checked too. A library call has
no graph to replay, so the state lives on the host and the error is raised at the call.
"""

from __future__ import annotations

import logging
from enum import IntEnum

logger = logging.getLogger("kvcanary.canary")


class Phase(IntEnum):
    IDLE = 0
    AFTER_PRE_OUT = 1
    AFTER_PRE_MAYBE_IN = 2
    AFTER_POST_MAYBE_IN = 3


class PhaseMismatchError(AssertionError):
    """KVC-R09; ``fail_line`` is the KVC-R10 line that was logged before it."""

    def __init__(self, fail_line: str) -> None:
        super().__init__("SimplePhaseChecker: phase mismatch")
        self.fail_line = fail_line


class PhaseChecker:
    """Follows the phase always; complains only after ``enable``."""

    __slots__ = ("_caller_tags", "enabled", "phase")

    def __init__(self) -> None:
        self.phase = Phase.IDLE
        self.enabled = False
        self._caller_tags: dict[str, int] = {}

    def enable(self) -> None:
        """Reset to IDLE and check from now on (end of start-up)."""
        self.phase = Phase.IDLE
        self.enabled = True

    def step(self, caller: str, expect: Phase, following: Phase) -> None:
        """Move to ``following``.

        Args:
            caller: Name of the operation; callers are numbered from 1 in order of first use.
            expect: Phase that must hold now.
            following: Phase that holds afterwards, even if the check failed.

        Raises:
            PhaseMismatchError: KVC-R09, after logging KVC-R10.
        """
        tag = self._caller_tags.setdefault(caller, len(self._caller_tags) + 1)
        actual, self.phase = self.phase, following
        if self.enabled and actual is not expect:
            line = (
                f"[SimplePhaseChecker FAIL] caller_tag={tag} expect={int(expect)} "
                f"next={int(following)} actual={int(actual)}"
            )
            logger.error(line)
            raise PhaseMismatchError(line)
