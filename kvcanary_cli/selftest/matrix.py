"""The detection matrix: for every kind how often it was found, dated, named and pinned down."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from kvcanary_cli.errors import NothingCheckedError
from kvcanary_cli.inject.clean_check import require_clean
from kvcanary_cli.inject.kinds import KINDS
from kvcanary_cli.replay.options import ReplayOptions
from kvcanary_cli.selftest.course import Course
from kvcanary_cli.selftest.draw import KindDraw, draw_kind
from kvcanary_cli.selftest.forked import Lost, can_fork, num_cpus, run_forked, run_here

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from kvcanary_cli.inject.clean_run import CleanRun
    from kvcanary_cli.inject.planting import FaultKind
    from kvcanary_cli.selftest.draw import Drawn
    from kvcanary_cli.selftest.outcome import Outcome

_SAY_EVERY = 100


@dataclass(frozen=True, slots=True)
class LostFault:
    """A fault that was not judged because its process died; ``why`` says how."""

    kind: str
    seed: int
    why: str


@dataclass(slots=True)
class KindLine:
    """One kind's line of the matrix.

    Attributes:
        kind: The kind.
        outcomes: Judged faults, by seed.
        lost: Faults that were not judged.
        draws: Draws that were made; fewer faults than seeds mean that the others were repetitions.
        why_none: Why none could be planted.
    """

    kind: FaultKind
    outcomes: list[Outcome] = field(default_factory=list)
    lost: list[LostFault] = field(default_factory=list)
    draws: int = 0
    why_none: str | None = None

    def count(self, name: str) -> int:
        return sum(bool(getattr(outcome, name)) for outcome in self.outcomes)

    @property
    def runs(self) -> int:
        return len(self.outcomes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """Result of a selftest.

    Attributes:
        trace: Name of the trace.
        seeds: Faults asked for of each kind.
        lines: One for each kind.
        false_alarms: Findings and broken ownership rules of the clean trace.
    """

    trace: str
    seeds: int
    lines: tuple[KindLine, ...]
    false_alarms: int

    @property
    def runs(self) -> int:
        return sum(line.runs for line in self.lines)

    def total(self, name: str) -> int:
        return sum(line.count(name) for line in self.lines)

    @property
    def missed(self) -> int:
        return self.runs - self.total("detected")

    @property
    def lost(self) -> list[LostFault]:
        return [fault for line in self.lines for fault in line.lost]


def selftest(
    run: CleanRun,
    *,
    name: str,
    seeds: int,
    kinds: Sequence[str] = (),
    backend: str = "auto",
    jobs: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> Matrix:
    """Plant every kind ``seeds`` times and diagnose each.

    Args:
        run: The clean run.
        name: How messages call the trace.
        seeds: Faults of each kind, all different; fewer where the run offers fewer.
        kinds: Only these; empty = all.
        backend: Of the replay.
        jobs: Processes at once, None = one a core; the result does not depend on it.
        progress: Told what is going on.

    Raises:
        NothingCheckedError: The trace is not clean, or nothing could be planted.
    """
    say = progress or (lambda _text: None)
    jobs = num_cpus() if jobs is None else jobs
    course = Course(run, ReplayOptions(backend=backend))
    findings, ownership = course.clean()
    alarms = len(findings) + len(ownership)
    require_clean(
        name,
        findings,
        ownership,
        hint="`kvcanary replay` shows them; a selftest needs a trace without corruption",
    )
    lines = {k: KindLine(KINDS[k]) for k in KINDS if not kinds or k in kinds}
    drawn: list[Drawn] = []
    for line, faults in _draw_all(run, list(lines.values()), seeds, jobs):
        line.draws = faults.draws
        if not faults.faults:
            line.why_none = "the run offers no occasion"
        drawn += faults.faults
        say(f"{line.kind.name}: {len(faults.faults)} faults in {faults.draws} draws")
    if not drawn:
        raise NothingCheckedError(
            f"{name}: none of the kinds can be planted in this trace",
            hint="`kvcanary inject --list` says what each kind needs",
        )
    for number, (one, answer) in enumerate(course.outcomes(drawn, jobs), 1):
        if isinstance(answer, Lost):
            lines[one.kind].lost.append(LostFault(one.kind, one.seed, answer.why))
        else:
            lines[one.kind].outcomes.append(answer)
        if number % _SAY_EVERY == 0:
            say(f"{number} of {len(drawn)} faults replayed")
    for line in lines.values():
        line.outcomes.sort(key=lambda outcome: outcome.seed)
        line.lost.sort(key=lambda fault: fault.seed)
    return Matrix(trace=name, seeds=seeds, lines=tuple(lines.values()), false_alarms=alarms)


def _draw_all(
    run: CleanRun, lines: Sequence[KindLine], seeds: int, jobs: int
) -> Iterator[tuple[KindLine, KindDraw]]:
    """The faults of each kind whose records the trace has."""
    able = []
    for line in lines:
        missing = line.kind.missing(run)
        if missing:
            line.why_none = f"not recorded: {', '.join(missing)}"
        else:
            able.append(line)
    if able:
        # Worked out here once, or each child would do it again.
        run.prepare()
    tasks = [partial(draw_kind, run, line.kind, seeds) for line in able]
    for number, answer in run_forked(tasks, jobs) if can_fork() else run_here(tasks):
        line = able[number]
        if isinstance(answer, Lost):
            # Drawing is small work: what was killed with its process is done again here.
            answer = draw_kind(run, line.kind, seeds)
        yield line, answer
