"""What a replay is asked to do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from kvcanary_cli.errors import UsageError


class Mode(Enum):
    """What happens at a violation: go on, or stop as the server does."""

    LOG = "log"
    RAISE = "raise"


class RealData(Enum):
    """Whether recorded KV fingerprints are checked.

    Fingerprints are recorded whole, so PARTIAL and ALL check the same recorded values; the width
    that they cover was chosen when the trace was recorded.
    """

    NONE = "none"
    PARTIAL = "partial"
    ALL = "all"


class Verify(Enum):
    """Which prefix cells a forward checks: all, or those that changed since they were found good.

    The results are the same. AUTO is INCREMENTAL on the cpu backend, and FULL elsewhere.
    """

    AUTO = "auto"
    FULL = "full"
    INCREMENTAL = "incremental"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """Options of one replay.

    Attributes:
        backend: ``auto``, ``cpu``, ``triton`` or ``reference``.
        mode: See ``Mode``.
        verify: See ``Verify``.
        real_data: See ``RealData``.
        sweep_interval: Sweep the prefix index every N steps; 0 = never; None = where the trace
            recorded a sweep.
        ring_capacity: Report only what a ring of that many rows would have kept; None = all.
        steps: First and last step to check, both included; None = all. Steps before the first
            are replayed without being checked, because they make the state.
        reqs: Report only violations of these requests; empty = all.
        slots: Report only violations of these slots; empty = all.
        strict_upstream: Only what upstream's default settings would have seen: no fingerprints,
            no token checks, no sweeps, an overflowing forward is not verified.
        compiled: Whether ordinary events are taken in compiled code; the results are the same.
            None = where there are many of them, since that code takes seconds to compile once.
        v_half: Launch the V-half endpoints too, as upstream does behind
            SGLANG_KV_CANARY_ENABLE_MHA_V.
    """

    backend: str = "auto"
    mode: Mode = Mode.LOG
    verify: Verify = Verify.AUTO
    real_data: RealData = RealData.ALL
    sweep_interval: int | None = None
    ring_capacity: int | None = None
    steps: tuple[int | None, int | None] | None = None
    reqs: frozenset[str] = frozenset()
    slots: frozenset[int] = frozenset()
    strict_upstream: bool = False
    v_half: bool = False
    compiled: bool | None = None

    def checks_step(self, step: int) -> bool:
        """Whether ``step`` lies in the range to check."""
        if self.steps is None:
            return True
        first, last = self.steps
        return (first is None or step >= first) and (last is None or step <= last)

    def refuse_verify(self, backend: str) -> None:
        """Refuse what ``verify`` asks for where it cannot be had.

        Args:
            backend: Name of the backend; ``auto`` as long as nobody knows which one that is here.

        Raises:
            UsageError: Incremental verification on the GPU, or as the engine's canary does.
        """
        if self.verify is Verify.INCREMENTAL and not self._may_leave_out(backend):
            raise UsageError(
                "--verify incremental runs on the host, and not as the engine's canary does",
                hint="leave --strict-upstream out and use --backend cpu, or use --verify full",
            )

    def _may_leave_out(self, backend: str) -> bool:
        return not self.strict_upstream and backend != "triton"

    def verifies_incrementally(self, backend: str) -> bool:
        """Whether known cells are left out on the backend of that name."""
        if not self._may_leave_out(backend):
            return False
        if self.verify is Verify.AUTO:
            return backend == "cpu"
        return self.verify is Verify.INCREMENTAL

    def past_last_step(self, step: int) -> bool:
        return self.steps is not None and self.steps[1] is not None and step > self.steps[1]
