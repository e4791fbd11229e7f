"""A live trace that every reader accepts, whatever the engine's memory holds.

An engine whose tables are corrupt may name slots, rows or positions that its pool does not have. A
trace with such an event is refused as a whole, so that it ends right before the first one, and says
why. Events are checked as a reader checks them, segment by segment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcanary_cli.trace.bounds import Bounds
from kvcanary_cli.trace.folder_writer import FolderWriter
from kvcanary_cli.trace.validate import check_columns

if TYPE_CHECKING:
    from pathlib import Path

    from kvcanary_cli.trace.header import TraceHeader
    from kvcanary_cli.trace.segment import Segment

_WHERE = ("step", "row", "start", "req", "owner", "reason")


class EngineStateError(Exception):
    """The engine's state does not fit its own pool.

    Attributes:
        index: ``i`` of the event that says so, which is not written.
    """

    def __init__(self, what: str, index: int) -> None:
        super().__init__(what)
        self.index = index


class CheckedWriter(FolderWriter):
    """Writes a live folder up to the first event that a reader would refuse."""

    def __init__(self, target: Path, header: TraceHeader) -> None:
        super().__init__(target, header, live=True)
        self._bounds = Bounds(header.pool)

    def _write(self, segment: Segment) -> None:
        problems = check_columns(segment, self._bounds)
        if problems.event is None:
            super()._write(segment)
            return
        if problems.event:
            super()._write(segment.slice(0, problems.event))
        event = segment.event(problems.event)
        where = ", ".join(f"{name} {event[name]}" for name in _WHERE if name in event)
        raise EngineStateError(f"{problems.what} ({where})" if where else problems.what, event["i"])
