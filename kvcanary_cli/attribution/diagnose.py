"""Replay a trace and say for every damage who, when and how: the whole diagnosis of one trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcanary_cli.attribution.diagnoser import Diagnoser
from kvcanary_cli.replay.conclude import conclude
from kvcanary_cli.replay.driver import Replay
from kvcanary_cli.replay.result import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from kvcanary_cli.attribution.ranks import RankRecord
    from kvcanary_cli.attribution.result import Finding, OwnershipFinding
    from kvcanary_cli.replay.options import ReplayOptions
    from kvcanary_cli.replay.result import Capacities, ReplayResult
    from kvcanary_cli.trace.reader import TraceReader

    Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """A replay with what follows from it.

    Attributes:
        replay: Violations, capacities, coverage.
        ownership: Broken ownership rules in order of detection.
        findings: Causes in order of their first bad step.
        rank: What other ranks must have done alike.
    """

    replay: ReplayResult
    ownership: tuple[OwnershipFinding, ...]
    findings: tuple[Finding, ...]
    rank: RankRecord

    @property
    def verdict(self) -> str:
        if self.findings or self.ownership:
            return Verdict.CORRUPT
        return self.replay.verdict


def diagnose_trace(
    reader: TraceReader,
    options: ReplayOptions,
    capacities: Capacities,
    progress: Callable[[], None] | None = None,
    *,
    ranks: bool = True,
) -> Diagnosis:
    """Replay one trace and explain what it shows.

    Args:
        reader: An open trace.
        options: What to check.
        capacities: Launch capacities.
        progress: Called after each segment.
        ranks: Whether to keep what other ranks must have done alike.

    Raises:
        InputError: The trace cannot be used.
    """
    diagnoser = Diagnoser(reader.header, reader.notes, ranks=ranks)
    watcher = None if options.strict_upstream else diagnoser
    replay = Replay(reader.header, options, capacities, watcher)
    diagnoser.replay = replay
    replay.run(reader, progress)
    result = conclude(replay, reader)
    diagnoser.record.lost = bool(result.coverage.lost_events)
    return Diagnosis(
        replay=result,
        ownership=tuple(o for o in diagnoser.follower.rules.findings if _wanted(o, diagnoser)),
        findings=tuple(f for f in diagnoser.findings if _asked_for(f, diagnoser)),
        rank=diagnoser.record,
    )


def _wanted(found: OwnershipFinding, diagnoser: Diagnoser) -> bool:
    """Whether the options ask for this broken rule."""
    assert diagnoser.replay is not None
    options = diagnoser.replay.options
    if options.slots and not options.slots & set(found.slots):
        return False
    if options.reqs and not options.reqs & {found.owner, found.actor}:
        return False
    if found.step is not None:
        return options.checks_step(found.step)
    return diagnoser.is_checked_event(found.event)


def _asked_for(finding: Finding, diagnoser: Diagnoser) -> bool:
    """Whether the options ask for this finding."""
    assert diagnoser.replay is not None
    options = diagnoser.replay.options
    if options.slots and not options.slots & (finding.slots | finding.seam_slots):
        return False
    parties = {finding.victim, finding.culprit.req, *finding.blast_radius}
    if options.reqs and not options.reqs & parties:
        return False
    step = finding.first_bad_step
    if step is not None:
        return options.checks_step(step)
    event = finding.cause_event if finding.culprit.event is None else finding.culprit.event
    return event is None or diagnoser.is_checked_event(event)
