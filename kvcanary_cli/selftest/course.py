"""Replays one clean run with many faults in it, each from where it differs from the clean run.

The clean run is replayed once. Where a fault begins, the process forks: the child replays the
changed events, the parent goes on with the clean ones. Where there is no fork, each fault is
replayed from the start.
"""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from kvcanary_cli.attribution.classes import class_pages
from kvcanary_cli.attribution.rank_compare import compare_ranks
from kvcanary_cli.backends import get_backend
from kvcanary_cli.inject.kinds import KINDS
from kvcanary_cli.inject.trial import Trial
from kvcanary_cli.selftest.forked import Lost, can_fork, run_forked, run_here
from kvcanary_cli.selftest.outcome import Outcome, judge
from kvcanary_cli.trace.header import parse_header

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from kvcanary_cli.attribution.ranks import RankRecord
    from kvcanary_cli.attribution.result import Finding, OwnershipFinding
    from kvcanary_cli.inject.clean_run import CleanRun
    from kvcanary_cli.replay.options import ReplayOptions
    from kvcanary_cli.selftest.draw import Drawn

#: Faults that the parent replays itself before it forks: what they load is loaded once, for all.
_REHEARSED = 1


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
        class_pages()
        trial = self._trial()
        trial.feed(self._run.events)
        findings, ownership, self._clean_rank = trial.end()
        return list(findings), list(ownership)

    def _trial(self) -> Trial:
        return Trial(self._header, self._options)

    def outcomes(self, drawn: Sequence[Drawn], jobs: int) -> Iterator[tuple[Drawn, Outcome | Lost]]:
        """Diagnose each fault; in the order in which they are done.

        Args:
            drawn: The faults.
            jobs: How many at once.

        Raises:
            TaskError: A replay raised, for example because an injected trace is no valid one.
        """
        ordered = sorted(drawn, key=lambda d: d.first)
        if can_fork():
            _one_thread()
            _load_kernels(self._options.backend)
            for task in islice(self._from_start(ordered), _REHEARSED):
                task()
            answers = run_forked(self._going_on(ordered), jobs)
        else:
            answers = run_here(self._from_start(ordered))
        for number, answer in answers:
            yield ordered[number], answer

    def _from_start(self, drawn: Sequence[Drawn]) -> Iterator[Callable[[], Outcome]]:
        for one in drawn:
            trial = self._trial()
            trial.feed(self._run.events[: one.first])
            yield partial(self._finish, trial, one)

    def _going_on(self, drawn: Sequence[Drawn]) -> Iterator[Callable[[], Outcome]]:
        trial, fed = self._trial(), 0
        for one in drawn:
            trial.feed(self._run.events[fed : one.first])
            fed = one.first
            yield partial(self._finish, trial, one)

    def _finish(self, trial: Trial, one: Drawn) -> Outcome:
        kind, built = KINDS[one.kind], one.unpack()
        trial.feed(built.tail)
        findings, ownership, rank = trial.end()
        if kind.several_ranks and self._clean_rank is not None:
            rank.number = self._clean_rank.number + 1
            findings = [*findings, *compare_ranks([self._clean_rank, rank])]
        return judge(kind, one.seed, built, findings, ownership)


def _one_thread() -> None:
    """Threads of the numerical library do not survive a fork."""
    import torch

    torch.set_num_threads(1)


def _load_kernels(backend: str) -> None:
    """Load what a replay loads when damage first needs it, or each child would."""
    if get_backend(backend).name == "cpu":
        from kvcanary_cli.backends.cpu.warm import compile_all

        compile_all()
