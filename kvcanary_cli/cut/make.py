"""Cut some steps out of a trace, so that they replay alone and show the same damage.

What came before the first step is folded into state by replaying it, and the cut begins with that
state; where events were lost it is folded anew behind them. Only the pool's state and one segment
are held at a time.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from kvcanary_cli.cut.events import state_events
from kvcanary_cli.cut.filter import kept_event
from kvcanary_cli.cut.requests import Selection, select_requests
from kvcanary_cli.cut.state import StateReplay
from kvcanary_cli.cut.window import Window, step_changes
from kvcanary_cli.errors import InputError, NothingCheckedError, UsageError
from kvcanary_cli.replay.cut_header import both_ranges, cut_info
from kvcanary_cli.replay.gaps import Stretches
from kvcanary_cli.trace.reader import STDIN, open_trace
from kvcanary_cli.trace.writer import STDOUT, check_target, discard_stdout, open_writer

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator

    from kvcanary_cli.trace.reader import TraceReader
    from kvcanary_cli.trace.segment import Segment
    from kvcanary_cli.trace.writer import TraceWriter

FAMILY = "canary_rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """What a cut did.

    Attributes:
        source: Where it read.
        target: Where it wrote.
        steps: Steps that it holds, of those asked for.
        events: Events of the trace that it kept.
        state_events: Events in front of them that make the state.
        requests: Requests that were kept, None = all.
        file_bytes: Size of what was written; None on stdout.
        notes: What the reader of the trace noticed.
    """

    source: str
    target: str
    steps: int
    events: int
    state_events: int
    requests: tuple[str, ...] | None
    file_bytes: int | None
    notes: tuple[str, ...]


def cut_trace(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    steps: tuple[int | None, int | None],
    reqs: Iterable[str] = (),
    overwrite: bool = False,
    progress: Callable[[TraceReader], None] | None = None,
) -> Cut:
    """Write steps ``steps`` of a trace as a trace of its own.

    Args:
        source: Any form, or ``-`` for stdin.
        target: Its suffix decides the form, ``-`` is JSONL on stdout.
        steps: First and last step, both included; None = from the beginning, to the end.
        reqs: Keep only these requests and those that write what they read; empty = all. Sweeps
            and capacity checks are not kept then.
        overwrite: Whether ``target`` may exist.
        progress: Called with the reader after each segment.

    Raises:
        UsageError: The steps end before they begin, the target's name does not fit or exists, or
            ``reqs`` are given for a trace on stdin, which is read once only.
        NothingCheckedError: No step of the trace, or none of a request, lies in the range.
        InputError: The trace cannot be used, or the target cannot be written.
    """
    wanted = tuple(dict.fromkeys(reqs))
    window = Window(*steps)
    if wanted and str(source) == STDIN:
        raise UsageError(
            "a cut for requests reads the trace twice, which stdin cannot do",
            hint="save the trace to a file first, or leave --req out",
        )
    reader = open_trace(source)
    check_target(target, overwrite=overwrite)
    selection = None
    if wanted:
        selection = select_requests(reader, Window(*steps), wanted, progress)
    name = str(target)
    header = _header(reader, steps, wanted, selection)
    cutter = _Cutter(reader, window, selection)
    try:
        with ExitStack() as opened:

            def begin(*, mid_run: bool) -> TraceWriter:
                stated = {**header, "starts_mid_run": True} if mid_run else header
                return opened.enter_context(open_writer(target, stated, overwrite=overwrite))

            cutter.run(begin, progress)
    except BrokenPipeError:
        discard_stdout()
    except OSError as error:
        raise InputError(
            f"{name}: cannot be written: {error.strerror or error}",
            hint="check the path and space",
        ) from None
    return Cut(
        source=reader.name,
        target=name,
        steps=cutter.steps,
        events=cutter.kept,
        state_events=cutter.made,
        requests=None if selection is None else tuple(sorted(selection.reqs)),
        file_bytes=None if name == STDOUT else _written_bytes(Path(name)),
        notes=tuple(reader.notes.messages()),
    )


def _header(
    reader: TraceReader,
    steps: tuple[int | None, int | None],
    reqs: tuple[str, ...],
    selection: Selection | None,
) -> dict[str, Any]:
    header = reader.header
    earlier = cut_info(header)
    gaps: list[Any] = []
    if earlier is not None:
        steps = both_ranges(steps, earlier.steps)
        reqs = reqs or earlier.reqs or ()
        gaps = header.raw["cut"].get("gaps", [])
    if selection is not None:
        gaps = [list(gap) for gap in selection.gaps]
    records = list(header.raw["records"])
    return {
        **header.raw,
        "records": records if FAMILY in records else [*records, FAMILY],
        "cut": {
            "steps": list(steps),
            "reqs": list(reqs) or None,
            # Events that requests left out are no loss; these are.
            **({"gaps": gaps} if gaps else {}),
            # A trace on stdin has no digest before its end.
            "of_sha256": None if reader.bytes_total is None else reader.sha256(),
        },
    }


class _Begin(Protocol):
    """Opens the cut; ``mid_run``: its state is not all that there was."""

    def __call__(self, *, mid_run: bool) -> TraceWriter: ...


class _Cutter:
    """The pass that writes."""

    def __init__(
        self,
        reader: TraceReader,
        window: Window,
        selection: Selection | None,
    ) -> None:
        self._reader, self._window, self._selection = reader, window, selection
        self._past = None if window.first is None else StateReplay(reader.header, window.first)
        self.steps = self.kept = self.made = 0
        self._last_step: int | None = None

    def run(self, begin: _Begin, progress: Callable[[TraceReader], None] | None) -> None:
        writer: TraceWriter | None = None
        for segment in self._segments():
            start, stop = self._window.take(segment)
            if self._past is not None and start:
                self._past.feed(segment.slice(0, start))
            if start < stop:
                if writer is None:
                    writer = self._begin(begin, int(segment.index[start]))
                self._keep(writer, segment.slice(start, stop))
            if progress is not None:
                progress(self._reader)
            if self._window.ended:
                break
        if not self.steps:
            raise _no_step(self._window)

    def _segments(self) -> Iterator[Segment]:
        """The segments of the trace; behind a gap the past begins anew."""
        for number, stretch in enumerate(Stretches(self._reader)):
            if number and self._past is not None:
                self._past = self._past.behind_gap()
            yield from stretch

    def _begin(self, begin: _Begin, first_i: int) -> TraceWriter:
        """Open the cut and write the state, numbered so that the first kept event follows."""
        past, self._past = self._past, None
        if past is None:
            return begin(mid_run=False)
        writer = begin(mid_run=past.header.starts_mid_run)
        past.flush()
        self.made = sum(1 for _ in state_events(past, self._selection))
        for k, event in enumerate(state_events(past, self._selection)):
            writer.write_event({**event, "i": first_i - self.made + k})
        return writer

    def _keep(self, writer: TraceWriter, segment: Segment) -> None:
        if self._selection is None:
            count, self._last_step = step_changes(segment, self._window, self._last_step)
            self.steps += count
            self.kept += len(segment)
            writer.write(segment)
            return
        for k in range(len(segment)):
            event = kept_event(segment, k, self._selection)
            if event is None:
                continue
            self.kept += 1
            if event["kind"] == "forward" and self._window.contains(event["step"]):
                self.steps += event["step"] != self._last_step
                self._last_step = event["step"]
            writer.write_event(event)


def _no_step(window: Window) -> NothingCheckedError:
    seen = window.steps_seen
    return NothingCheckedError(
        f"no forward in {window.text()}: nothing to cut, nothing written",
        hint="the trace has no forwards"
        if seen is None
        else f"the trace has steps {seen[0]} to {seen[1]}, as far as it was read",
    )


def _written_bytes(path: Path) -> int:
    if path.is_dir():
        return sum(file.stat().st_size for file in path.iterdir())
    return path.stat().st_size
