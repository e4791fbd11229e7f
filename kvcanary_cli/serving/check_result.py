"""Results of ``check-capacities`` and ``suggest-flags``, as data."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvcanary_cli.serving.demand import Demand
    from kvcanary_cli.serving.values import CapacityPart, Given, Refusal, Resolution, Unknown


class Status(StrEnum):
    """Outcome of one check."""

    OK = "ok"
    FAILS = "fails"
    UNKNOWN = "unknown"


class Verdict(StrEnum):
    """Outcome of all checks."""

    OK = "ok"
    VIOLATIONS = "violations"
    NOT_CHECKED = "not_checked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One flag with another value.

    Attributes:
        name: Canonical name of the option, or of an environment variable.
        flag: Its spelling in the version at hand.
        before: Value as it was given, or as it resolved; None = unknown or not set.
        after: Value to set.
    """

    name: str
    flag: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """A change that makes one check pass, with what else it does.

    Attributes:
        changes: The flags.
        why: What it does about the check.
        cost_bytes: Memory per rank that the canary takes more, plus KV cache that is lost; None if
            it cannot be known.
        effects: What it does to other values, one sentence each.
    """

    changes: tuple[Change, ...]
    why: str
    cost_bytes: int | None = None
    effects: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One way in which the canary's buffers could be overrun, or its start refused.

    Attributes:
        code: Catalogue code, or ``""`` where the server itself refuses.
        name: ``batch_size``, ``padded_batch_size``, ``token_count``, ...
        status: Outcome.
        limit: What fits, or None.
        demand: The largest demand, or None.
        demand_source: Where it comes from.
        cause: Why it fails, why it holds, or what is missing.
        message: The server's text, or empty if it passes.
        fixes: Changes that would make it pass.
    """

    code: str
    name: str
    status: Status
    limit: int | None = None
    demand: int | None = None
    demand_source: str = ""
    cause: str = ""
    message: str = ""
    fixes: tuple[Fix, ...] = ()

    @property
    def margin(self) -> int | None:
        """What is left; negative if it does not fit."""
        if self.limit is None or self.demand is None:
            return None
        return self.limit - self.demand


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A value that two resolutions have different, and what that does."""

    name: str
    here: Any
    here_source: str
    there: Any
    there_source: str
    effect: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """Bytes per rank that the canary takes; None = unknown.

    Attributes:
        workspace: Plans and inputs of one forward.
        buffers: Canary slots beside the KV slots.
        ring: Violation ring.
        expected_tokens: Pool of expected tokens, 0 unless the verify-token assert is on.
        available: Memory that is left beside weights and KV cache, or None.
        available_source: Where that number comes from.
    """

    workspace: int | None
    buffers: int | None
    ring: int
    expected_tokens: int | None
    available: int | None
    available_source: str = ""

    @property
    def total(self) -> int | None:
        """Sum of the parts, or None if one is unknown."""
        parts = (self.workspace, self.buffers, self.ring, self.expected_tokens)
        return None if None in parts else sum(part or 0 for part in parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """All that ``check-capacities`` found.

    Attributes:
        sources: Names of the sources.
        resolution: What the server makes of its arguments.
        parts: The three capacities.
        memory: What the canary takes.
        demands: All demands that were considered.
        checks: The checks, refusals last.
        unknown: What is missing for an unknown capacity or check.
        differences: Against another source, or None if none was given.
        against: That source.
        notices: Warnings about the input.
        violations_logged: Canary violation lines in logs, per source.
        advice: What helps besides flags, one sentence each.
    """

    sources: tuple[str, ...]
    resolution: Resolution
    parts: tuple[CapacityPart, ...]
    memory: MemoryUse
    demands: tuple[Demand, ...]
    checks: tuple[Check, ...]
    unknown: tuple[Unknown, ...]
    differences: tuple[Difference, ...] | None = None
    against: str | None = None
    notices: tuple[str, ...] = ()
    violations_logged: dict[str, int] = field(default_factory=dict)
    advice: tuple[str, ...] = ()

    @property
    def failing(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.status is Status.FAILS)

    @property
    def verdict(self) -> Verdict:
        """Violations if a check fails; not checked if neither main capacity is known."""
        if self.failing:
            return Verdict.VIOLATIONS
        main = [c for c in self.checks if c.code in ("KVC-B03", "KVC-B04")]
        if main and all(check.status is Status.UNKNOWN for check in main):
            return Verdict.NOT_CHECKED
        return Verdict.OK

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        return self.resolution.refusals


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """A set of changes, verified by running the checks on it.

    Attributes:
        fix: The changes with cost and effects.
        given: The same as statements, for a resolution.
        report: The checks with these changes.
        within_budget: Whether the cost fits the budget; True without one.
    """

    fix: Fix
    given: tuple[Given, ...]
    report: CheckReport
    within_budget: bool
