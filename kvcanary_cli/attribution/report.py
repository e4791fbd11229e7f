"""One call's result: every trace's diagnosis, what could not be replayed, where ranks disagree."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from kvcanary_cli.attribution.rank_compare import diverging_pairs
from kvcanary_cli.attribution.rank_folds import RankFolds
from kvcanary_cli.attribution.ring_parts import idle_parts, part_notes
from kvcanary_cli.attribution.runs import Candidate, find_runs
from kvcanary_cli.replay.result import Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcanary_cli.attribution.diagnose import Diagnosis
    from kvcanary_cli.attribution.result import Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """An input of several that was not replayed to its end: nothing of it was checked.

    Attributes:
        path: As the user named it, or as it was found.
        message: What went wrong.
        hint: What to do next, or None.
        exit_code: What a call with this input alone would end with.
        details: A traceback, if the fault is ours.
    """

    path: str
    message: str
    hint: str | None
    exit_code: int
    details: str | None = None


@dataclass(frozen=True)
class Report:
    """What a ``replay`` call found.

    Attributes:
        traces: One diagnosis per trace that was replayed, in the order given.
        divergences: Findings that only several ranks together show; what one rank's own finding
            tells already stands there only.
        divergent: For each of them the two numbers of ``traces`` that differ.
        failed: Inputs that were not checked, in the order given.
        notes: Sentences about the call as a whole.
        idle: Numbers of ``traces`` that are parts of a recording in which nothing ran, beside
            others in which it did.
    """

    traces: tuple[Diagnosis, ...]
    divergences: tuple[Finding, ...] = ()
    divergent: tuple[tuple[int, int], ...] = ()
    failed: tuple[Failed, ...] = ()
    notes: tuple[str, ...] = ()
    idle: frozenset[int] = frozenset()

    @classmethod
    def of(
        cls,
        traces: Sequence[Diagnosis],
        *,
        found_in: Sequence[str | None] | None = None,
        failed: Sequence[Failed] = (),
    ) -> Report:
        """Put diagnoses together, compare the ranks of each run and number the findings.

        Args:
            traces: Diagnoses in order.
            found_in: The subfolder that each was found in, None if it was named itself.
            failed: Inputs that could not be replayed.
        """
        folders = [None] * len(traces) if found_in is None else found_in
        candidates = [
            Candidate(d.replay.trace.path, d.rank, folder)
            for d, folder in zip(traces, folders, strict=True)
        ]
        runs = find_runs(candidates)
        pairs, folds = [], RankFolds()
        for run in runs.runs:
            for (a, b), finding in diverging_pairs([traces[k].rank for k in run]):
                finding.rank = finding.cause_rank
                if finding.rank is None:
                    finding.rank = traces[run[b]].rank.number
                if not folds.take(finding, (traces[run[a]], traces[run[b]])):
                    pairs.append(((run[a], run[b]), finding))
        folds.tell()
        traces = _seeing_ranks(traces, runs.runs)
        report = cls(
            traces=tuple(traces),
            divergences=tuple(finding for _pair, finding in pairs),
            divergent=tuple(pair for pair, _finding in pairs),
            failed=tuple(failed),
            notes=(
                *(_unclear([candidates[k] for k in group]) for group in runs.unclear),
                *part_notes(candidates),
            ),
            idle=frozenset(
                k
                for k in idle_parts(candidates, [d.replay.trace.forwards for d in traces])
                if not traces[k].replay.coverage.lost_events
                and traces[k].replay.coverage.ended_at_event is None
            ),
        )
        for number, finding in enumerate(report.findings, 1):
            finding.id = f"F{number}"
        if report.is_several:
            for diagnosis in traces:
                for finding in diagnosis.findings:
                    finding.rank = diagnosis.rank.number
        return report

    @property
    def is_several(self) -> bool:
        """Whether the call had several inputs, be they replayed or not."""
        return len(self.traces) + len(self.failed) > 1

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """All findings: each trace's in its order, then the divergences."""
        return (*(f for d in self.traces for f in d.findings), *self.divergences)

    @property
    def verdict(self) -> str:
        """The gravest verdict; clean only if every input was checked and is clean.

        A part of a recording in which nothing ran has nothing to be checked.
        """
        idle = [d for k, d in enumerate(self.traces) if k in self.idle]
        verdicts = {d.verdict for k, d in enumerate(self.traces) if k not in self.idle}
        verdicts |= {d.verdict for d in idle if d.verdict != Verdict.NOT_CHECKED}
        if self.divergences:
            verdicts.add(Verdict.CORRUPT)
        for verdict in (Verdict.CORRUPT, Verdict.CAPACITY):
            if verdict in verdicts:
                return verdict
        if verdicts == {Verdict.CLEAN} and not self.failed:
            return Verdict.CLEAN
        return Verdict.NOT_CHECKED


def _seeing_ranks(
    traces: Sequence[Diagnosis], runs: Sequence[tuple[int, ...]]
) -> Sequence[Diagnosis]:
    """The same; those that were compared with others of their run are not blind to that."""
    compared = {k for run in runs for k in run if _has_peer(traces, run, k)}
    return [_seeing(d) if k in compared else d for k, d in enumerate(traces)]


def _has_peer(traces: Sequence[Diagnosis], run: tuple[int, ...], k: int) -> bool:
    """Whether another trace of the run must agree with the k-th: replicas need not."""
    return any(other != k and traces[other].rank.dp == traces[k].rank.dp for other in run)


def _seeing(diagnosis: Diagnosis) -> Diagnosis:
    coverage = diagnosis.replay.coverage
    blind = tuple(name for name in coverage.blind_to if name != "rank_divergence")
    replay = replace(diagnosis.replay, coverage=replace(coverage, blind_to=blind))
    return replace(diagnosis, replay=replay)


def _unclear(group: Sequence[Candidate]) -> str:
    shown = ", ".join(one.path for one in group[:_SHOWN])
    more = f" and {len(group) - _SHOWN} more" if len(group) > _SHOWN else ""
    return (
        f"ranks were not compared: {shown}{more} claim the same rank more than once, and neither "
        "folder nor name tells their runs apart (replay each run by itself)"
    )


_SHOWN = 4
