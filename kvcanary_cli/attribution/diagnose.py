"""Replay a trace and say for every damage who, when and how: the whole diagnosis of one trace."""

from __future__ import annotations

import gc
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvcanary_cli.attribution.diagnoser import Diagnoser
from kvcanary_cli.attribution.ledger import NOBODY
from kvcanary_cli.attribution.refused_state import refused_state
from kvcanary_cli.attribution.result import POSSIBLE
from kvcanary_cli.attribution.silent_kinds import weigh_silent_kinds
from kvcanary_cli.replay.conclude import conclude
from kvcanary_cli.replay.gaps import replay_stretches
from kvcanary_cli.replay.result import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from kvcanary_cli.attribution.checked_events import CheckedEvents
    from kvcanary_cli.attribution.ranks import RankRecord
    from kvcanary_cli.attribution.result import Finding, OwnershipFinding
    from kvcanary_cli.replay.driver import Replay
    from kvcanary_cli.replay.options import ReplayOptions
    from kvcanary_cli.replay.result import Capacities, ReplayResult
    from kvcanary_cli.trace.header import TraceHeader
    from kvcanary_cli.trace.reader import TraceReader

    Ints = NDArray[np.int64]


# Slots of a pool whose ledger is worth a collection.
_LARGE = 1 << 16


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
    diagnosers: list[Diagnoser] = []
    ownership: list[OwnershipFinding] = []
    findings: list[Finding] = []

    def keep(diagnoser: Diagnoser) -> None:
        ownership.extend(diagnoser.follower.rules.findings)
        findings.extend(diagnoser.findings)

    def watch(header: TraceHeader) -> Diagnoser | None:
        diagnoser = Diagnoser(header, reader.notes, ranks=ranks)
        if diagnosers:
            # Its ledger is as large as the pool: what it found is kept, not itself.
            former = diagnosers.pop()
            keep(former)
            # Both go on behind the gap: what ranks must have done alike, and which steps count.
            diagnoser.record, diagnoser.checked = former.record, former.checked
            diagnoser.book.named_before = former.book.named()
            former.replay = None
            if header.pool.max_slot >= _LARGE:
                # It refers to itself, and its arrays do not count towards a collection.
                gc.collect()
        diagnosers.append(diagnoser)
        return None if options.strict_upstream else diagnoser

    def begun(replay: Replay) -> None:
        diagnosers[-1].replay = replay

        def begins(req: str) -> bool:
            histories = replay.pool.histories
            return histories is not None and histories.knows_begin(req)

        diagnosers[-1].book.begins = begins

    def met_gap() -> None:
        diagnosers[-1].ends_in_gap = True

    done = replay_stretches(reader, options, capacities, watch, progress, begun, met_gap)
    result = conclude(done.replay, reader, done.former)
    keep(diagnosers[-1])
    record = diagnosers[-1].record
    record.lost = bool(result.coverage.lost_events)
    record.done()
    last_step = diagnosers[-1].follower.steps_seen()[0]
    refused = refused_state(reader.notes.ended, None if last_step == NOBODY else last_step)
    if refused is not None and not options.strict_upstream:
        refused.id = f"F{len(findings) + 1}"
        findings.append(refused)
    weigh_silent_kinds(findings, reader.header.records, done.replay.kinds_met)
    # A cut has a range of its own.
    checked, asked = diagnosers[-1].checked, done.replay.options
    if _goes_on(done.replay):
        checked.goes_on()
    wanted = tuple(f for f in findings if _asked_for(f, asked, checked))
    return Diagnosis(
        replay=_seeing(result, wanted, diagnosers[-1].kept_by_transfers),
        ownership=tuple(o for o in ownership if _wanted(o, asked, checked)),
        findings=wanted,
        rank=record,
    )


def _seeing(
    result: ReplayResult, findings: Sequence[Finding], kept_by_transfers: int
) -> ReplayResult:
    """``result``, no longer blind to what was found all the same.

    It says which findings only the silence of families that were not recorded speaks for, and how
    many slots of ended requests are no leak only because a transfer of them was under way.
    """
    found = {finding.cls for finding in findings}
    blind = tuple(name for name in result.coverage.blind_to if name not in found)
    unseen = Counter(
        family for f in findings if f.confidence == POSSIBLE for family in dict.fromkeys(f.unseen)
    )
    notes = [
        f"{family} events were not recorded: without them {how_many(n, len(findings))} "
        "possible only, and a sound engine may leave the same trace"
        for family, n in sorted(unseen.items())
    ]
    if kept_by_transfers:
        notes.append(
            f"{kept_by_transfers} slots of requests that had ended belong to transfers that had "
            "not: whether they come back is not known"
        )
    seeing = replace(result.coverage, blind_to=blind, notes=(*result.coverage.notes, *notes))
    return replace(result, coverage=seeing)


def how_many(some: int, all_of_them: int) -> str:
    """``some`` of the findings, with the verb."""
    if all_of_them == 1:
        return "the finding is"
    if some == all_of_them:
        return f"all {some} findings are"
    return f"{some} of {all_of_them} findings {'is' if some == 1 else 'are'}"


def _goes_on(replay: Replay) -> bool:
    """Whether the trace goes on behind what was replayed, or did before it was cut."""
    steps = replay.options.steps
    is_cut_off = replay.is_cut and steps is not None and steps[1] is not None
    return is_cut_off or replay.unread_from_step is not None


def _wanted(found: OwnershipFinding, options: ReplayOptions, checked: CheckedEvents) -> bool:
    """Whether the options ask for this broken rule."""
    if options.slots and not options.slots & set(found.slots):
        return False
    if options.reqs and not options.reqs & {found.owner, found.actor}:
        return False
    if found.step is not None:
        return options.checks_step(found.step)
    return options.steps is None or found.event in checked


def _asked_for(finding: Finding, options: ReplayOptions, checked: CheckedEvents) -> bool:
    """Whether the options ask for this finding."""
    if options.slots and not options.slots & (finding.slots | finding.seam_slots):
        return False
    parties = {finding.victim, finding.culprit.req, *finding.blast_radius}
    if options.reqs and not options.reqs & parties:
        return False
    step = finding.first_bad_step
    if step is not None:
        return options.checks_step(step)
    event = finding.cause_event if finding.culprit.event is None else finding.culprit.event
    return options.steps is None or event is None or event in checked
