"""The progress displays of ``replay``: on stderr, on a terminal only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kvcanary_cli.cli.output import Output

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

Advance = Callable[[int, int | None], None]


@contextmanager
def progress_of_one(out: Output, name: str) -> Iterator[Advance | None]:
    """One trace: bytes read of bytes in all."""
    if not _is_shown(out):
        yield None
        return
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    from kvcanary_cli.report.words import safe

    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=out.stderr,
        transient=True,
    ) as bar:
        task = bar.add_task(safe(name), total=None)
        yield lambda read, total: bar.update(task, completed=read, total=total)


class Fleet:
    """Many traces on one bar, of which each has the same share (``fleet.job.Watch``).

    Attributes:
        done: Traces that have come to their end.
        share: Of each trace under way, how much of it has been read, 0 to 1.
    """

    def __init__(self, numbers: Sequence[int]) -> None:
        self.total = len(numbers)
        self.done = 0
        self.share: dict[int, float] = {}
        self._bar: tuple[Progress, TaskID] | None = None

    def show_on(self, bar: Progress, task: TaskID) -> None:
        self._bar = bar, task
        self._update()

    def progress(self, number: int, read_bytes: int, total_bytes: int | None) -> None:
        if total_bytes:
            self.share[number] = min(1.0, read_bytes / total_bytes)
        self._update()

    def finished(self, number: int) -> None:
        self.share.pop(number, None)
        self.done += 1
        self._update()

    @property
    def completed(self) -> float:
        """Traces read, with parts of those under way."""
        return self.done + sum(self.share.values())

    def _update(self) -> None:
        if self._bar is not None:
            bar, task = self._bar
            text = f"{self.done:,} of {self.total:,} traces"
            bar.update(task, completed=self.completed, description=text)


@contextmanager
def progress_of_many(out: Output, numbers: Sequence[int]) -> Iterator[Fleet]:
    """Many traces: how many are done."""
    fleet = Fleet(numbers)
    if not _is_shown(out):
        yield fleet
        return
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=out.stderr,
        transient=True,
    ) as bar:
        fleet.show_on(bar, bar.add_task("", total=fleet.total))
        yield fleet


def _is_shown(out: Output) -> bool:
    return not out.quiet and out.stderr.is_terminal
