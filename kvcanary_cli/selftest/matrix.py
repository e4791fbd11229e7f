"""The detection matrix: for every kind how often it was found, dated, named and pinned down."""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvcanary_cli.errors import NothingCheckedError
from kvcanary_cli.inject.kinds import KINDS
from kvcanary_cli.inject.planting import build
from kvcanary_cli.replay.options import ReplayOptions
from kvcanary_cli.selftest.course import Course

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvcanary_cli.inject.clean_run import CleanRun
    from kvcanary_cli.inject.planting import FaultKind
    from kvcanary_cli.selftest.course import Drawn
    from kvcanary_cli.selftest.outcome import Outcome

#: Forwards that are replayed behind the first one that can show a fault.
_FORWARDS_BEHIND = 2


@dataclass(slots=True)
class KindLine:
    """One kind's line of the matrix; ``why_none`` says why it could not be planted."""

    kind: FaultKind
    outcomes: list[Outcome] = field(default_factory=list)
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
        seeds: Seeds a kind.
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


def draw(run: CleanRun, kind: FaultKind, seed: int) -> Drawn | None:
    """Plant one fault; None if the run offers no occasion."""
    rng = random.Random(zlib.crc32(kind.name.encode()) ^ seed)
    for _ in range(3):
        planted = kind.plant(run, rng)
        if planted is not None:
            break
    else:
        return None
    stop = None
    if not kind.several_ranks:
        behind = [f for f in run.by_kind["forward"] if f >= planted.until][:_FORWARDS_BEHIND]
        stop = run.behind_forward(behind[-1]) if behind else None
    return kind, seed, build(run, planted, stop)


def selftest(
    run: CleanRun,
    *,
    name: str,
    seeds: int,
    kinds: Sequence[str] = (),
    backend: str = "auto",
    progress: Callable[[str], None] | None = None,
) -> Matrix:
    """Plant every kind ``seeds`` times and diagnose each.

    Args:
        run: The clean run.
        name: How messages call the trace.
        seeds: Faults of each kind.
        kinds: Only these; empty = all.
        backend: Of the replay.
        progress: Told what is going on.

    Raises:
        NothingCheckedError: The trace is not clean, or nothing could be planted.
    """
    say = progress or (lambda _text: None)
    course = Course(run, ReplayOptions(backend=backend))
    findings, ownership = course.clean()
    alarms = len(findings) + len(ownership)
    if alarms:
        raise NothingCheckedError(
            f"{name}: the trace is not clean: {len(findings)} findings and {len(ownership)} broken "
            "ownership rules before anything was planted",
            hint="`kvcanary replay` shows them; a selftest needs a trace without corruption",
        )
    lines = {k: KindLine(KINDS[k]) for k in KINDS if not kinds or k in kinds}
    drawn: list[Drawn] = []
    for line in lines.values():
        missing = line.kind.missing(run)
        if missing:
            line.why_none = f"not recorded: {', '.join(missing)}"
            continue
        say(f"planting {line.kind.name}")
        mine = [d for d in (draw(run, line.kind, seed) for seed in range(seeds)) if d is not None]
        if not mine:
            line.why_none = "the run offers no occasion"
        drawn += mine
    if not drawn:
        raise NothingCheckedError(
            f"{name}: none of the kinds can be planted in this trace",
            hint="`kvcanary inject --list` says what each kind needs",
        )
    for number, outcome in enumerate(course.outcomes(drawn), 1):
        lines[outcome.kind].outcomes.append(outcome)
        if number % 50 == 0:
            say(f"{number} of {len(drawn)} faults replayed")
    return Matrix(trace=name, seeds=seeds, lines=tuple(lines.values()), false_alarms=alarms)
