"""Plan buffers of one single-forward manager, reused from forward to forward."""

from __future__ import annotations

from kvcanary_cli.abi.plans import VerifyPlan, WritePlan


class PlanBuffers:
    """One verify plan and one write plan per group.

    The server allocates plans afresh in every forward. The plan step sets all that is read, so
    that reuse gives the same results; growth is by powers of two, so that a replay with exact
    sizes allocates a logarithmic number of times.
    """

    __slots__ = ("_device", "_none", "_verify", "_write")

    def __init__(self, *, num_groups: int, device: str) -> None:
        self._device = device
        self._verify: list[VerifyPlan | None] = [None] * num_groups
        self._write: list[WritePlan | None] = [None] * num_groups
        self._none: VerifyPlan | None = None

    def verify_plan(self, group_index: int, capacity: int, *, exact: bool) -> VerifyPlan:
        """A plan of exactly ``capacity`` entries, or with ``exact`` of at least as many."""
        plan = self._verify[group_index]
        if plan is not None and _fits(plan.capacity, capacity, exact):
            return plan
        plan = VerifyPlan.allocate(
            verify_capacity=_rounded(capacity) if exact else capacity, device=self._device
        )
        self._verify[group_index] = plan
        return plan

    def no_verify_plan(self) -> VerifyPlan:
        """A plan for a plan step whose verify entries nobody wants."""
        if self._none is None:
            self._none = VerifyPlan.allocate(verify_capacity=1, device=self._device)
        return self._none

    def write_plan(self, group_index: int, capacity: int, *, exact: bool) -> WritePlan:
        """A plan of exactly ``capacity`` rows, or with ``exact`` of at least as many."""
        plan = self._write[group_index]
        if plan is not None and _fits(plan.capacity, capacity, exact):
            return plan
        plan = WritePlan.allocate(
            write_req_capacity=_rounded(capacity) if exact else capacity, device=self._device
        )
        self._write[group_index] = plan
        return plan


def _fits(have: int, want: int, exact: bool) -> bool:
    return have >= want if exact else have == want


def _rounded(capacity: int) -> int:
    return 1 << max(0, capacity - 1).bit_length()
