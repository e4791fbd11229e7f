"""Replays one clean run with many faults in it, each from where it differs from the clean run.

The clean run is replayed once. Where a fault begins, the process forks: the child replays the
changed events, the parent goes on with the clean ones. Where there is no fork, each fault is
replayed from the start.
"""

from __future__ import annotations

import os
import pickle
import traceback
from typing import TYPE_CHECKING, Any

from kvcanary_cli.attribution.diagnoser import Diagnoser
from kvcanary_cli.attribution.ranks import compare_ranks
from kvcanary_cli.replay.capacity_limits import NOT_CHECKED
from kvcanary_cli.replay.driver import Replay
from kvcanary_cli.selftest.outcome import Outcome, judge
from kvcanary_cli.trace.header import TraceHeader, parse_header
from kvcanary_cli.trace.located import LocatedSegment
from kvcanary_cli.trace.notes import TraceNotes
from kvcanary_cli.trace.segment import SegmentBuilder
from kvcanary_cli.trace.validate import StreamValidator

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvcanary_cli.attribution.ranks import RankRecord
    from kvcanary_cli.attribution.result import Finding, OwnershipFinding
    from kvcanary_cli.inject.clean_run import CleanRun
    from kvcanary_cli.inject.planting import Built, FaultKind
    from kvcanary_cli.replay.options import ReplayOptions

Event = dict[str, Any]
Drawn = tuple["FaultKind", int, "Built"]


class Trial:
    """A validated replay that is fed event by event.

    Args:
        header: Of the trace.
        options: Of the replay.
    """

    def __init__(self, header: TraceHeader, options: ReplayOptions) -> None:
        self._absent = header.tokens == "absent"
        self._validator = StreamValidator(header, TraceNotes())
        self.diagnoser = Diagnoser(header, TraceNotes())
        self.replay = Replay(header, options, NOT_CHECKED, self.diagnoser)
        self.diagnoser.replay = self.replay

    def feed(self, events: Sequence[Event]) -> None:
        """Replay further events.

        Raises:
            TraceError: They make no valid trace.
        """
        if not events:
            return
        builder = SegmentBuilder()
        for event in events:
            builder.append(event, tokens_absent=self._absent)
        segment = builder.finish()
        self._validator.check(LocatedSegment(segment, lambda k: f"event {events[k]['i']}"))
        self.replay.feed(segment)

    def end(self) -> tuple[list[Finding], list[OwnershipFinding], RankRecord]:
        self.replay.flush()
        self.diagnoser.ended()
        rules = self.diagnoser.follower.rules
        return self.diagnoser.findings, rules.findings, self.diagnoser.record


class Course:
    """All faults of one clean run.

    Args:
        run: The clean run.
        options: Of the replay.
    """

    def __init__(self, run: CleanRun, options: ReplayOptions) -> None:
        self._run = run
        self._options = options
        self._header = parse_header(dict(run.header), "trace")
        self._clean_rank: RankRecord | None = None

    def clean(self) -> tuple[list[Finding], list[OwnershipFinding]]:
        """Findings of the run itself: false alarms, if it is clean."""
        trial = self._trial()
        trial.feed(self._run.events)
        findings, ownership, self._clean_rank = trial.end()
        return list(findings), list(ownership)

    def _trial(self) -> Trial:
        return Trial(self._header, self._options)

    def outcomes(self, drawn: Sequence[Drawn]) -> Iterator[Outcome]:
        """Diagnose each fault; in order of where they begin."""
        if not hasattr(os, "fork"):
            for one in drawn:
                trial = self._trial()
                trial.feed(self._run.events[: one[2].first])
                yield self._finish(trial, *one)
            return
        _one_thread()
        trial, fed = self._trial(), 0
        for one in sorted(drawn, key=lambda d: d[2].first):
            trial.feed(self._run.events[fed : one[2].first])
            fed = one[2].first
            yield self._in_child(trial, one)

    def _in_child(self, trial: Trial, one: Drawn) -> Outcome:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            try:
                answer: object = self._finish(trial, *one)
            except BaseException:
                answer = traceback.format_exc()
            with os.fdopen(writing, "wb") as pipe:
                pipe.write(pickle.dumps(answer))
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            data = pipe.read()
        os.waitpid(child, 0)
        if not data:
            raise RuntimeError(f"the replay of a {one[0].name} fault ended without an answer")
        answer = pickle.loads(data)
        if not isinstance(answer, Outcome):
            raise RuntimeError(f"{one[0].name} fault of seed {one[1]}: {answer}")
        return answer

    def _finish(self, trial: Trial, kind: FaultKind, seed: int, built: Built) -> Outcome:
        trial.feed(built.tail)
        findings, ownership, rank = trial.end()
        if kind.several_ranks and self._clean_rank is not None:
            rank.number = self._clean_rank.number + 1
            findings = [*findings, *compare_ranks([self._clean_rank, rank])]
        return judge(kind, seed, built, findings, ownership)


def _one_thread() -> None:
    """Threads of the numerical library do not survive a fork."""
    import torch

    torch.set_num_threads(1)
