"""Convert a trace between its forms, without loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcanary_cli.trace.errors import TraceError
from kvcanary_cli.trace.reader import STDIN, open_trace
from kvcanary_cli.trace.writer import discard_stdout, open_writer

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from kvcanary_cli.trace.reader import TraceReader


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """What a conversion did.

    Attributes:
        source: Where it read.
        target: Where it wrote.
        events: Events written.
        stopped: Whether the reader of stdout went away first: how much of it arrived is not known.
        notes: What the reader noticed.
    """

    source: str
    target: str
    events: int
    stopped: bool
    notes: tuple[str, ...]


def convert(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    progress: Callable[[TraceReader], None] | None = None,
) -> Conversion:
    """Copy a trace to another form; every event, field and unknown field is kept.

    Args:
        source: Any form, or ``-`` for stdin.
        target: Its suffix decides the form, ``-`` is JSONL on stdout.
        overwrite: Whether ``target`` may exist.
        progress: Called with the reader after each segment.

    A reader of stdout that went away ends the conversion and is no error.

    Raises:
        TraceError: The source cannot be used, or the target cannot be written; the target is
            left as it was.
        UsageError: The target's name does not fit.
    """
    reader = open_trace(source)
    reader.wants_sha256 = False
    name = str(target)
    events, stopped = 0, False
    try:
        with open_writer(target, reader.header, overwrite=overwrite) as writer:
            for segment in reader.segments():
                writer.write(segment)
                events += len(segment)
                if progress is not None:
                    progress(reader)
    except BrokenPipeError:
        discard_stdout()
        stopped = True
    except OSError as error:
        raise TraceError(
            name, f"cannot be written: {error.strerror or error}", hint="check the path and space"
        ) from None
    return Conversion(
        source=reader.name if str(source) != STDIN else "<stdin>",
        target=name,
        events=events,
        stopped=stopped,
        notes=tuple(reader.notes.messages()),
    )
