"""A live trace that every reader accepts, whatever the engine's memory holds.

An engine whose tables are corrupt may name slots, rows or positions that its pool does not have. A
trace with such an event is refused as a whole, so that it ends right before the first one, and says
why. Events are checked as a reader checks them, segment by segment.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from kvcanary_cli.record.ledger import UNKNOWN_OWNER
from kvcanary_cli.trace.bounds import Bounds
from kvcanary_cli.trace.folder_writer import FolderWriter
from kvcanary_cli.trace.validate import check_columns

if TYPE_CHECKING:
    from pathlib import Path

    from kvcanary_cli.trace.header import TraceHeader
    from kvcanary_cli.trace.problems import OutOfRange
    from kvcanary_cli.trace.segment import Segment

_WHERE = ("step", "row", "start", "req", "owner", "reason")
# Fields of a forward that have a value for each token, not for each row.
_BY_TOKEN = frozenset({"positions", "out_cache_loc", "input_ids"})


class EngineStateError(Exception):
    """The engine's state does not fit its own pool.

    Attributes:
        index: ``i`` of the event that says so, which is not written.
        refused: What ``recording_ended`` says of it (docs/trace-format.md).
    """

    def __init__(self, what: str, index: int, refused: dict[str, Any]) -> None:
        super().__init__(what)
        self.index = index
        self.refused = refused


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
        what = f"{problems.what} ({where})" if where else problems.what
        raise EngineStateError(what, event["i"], refused_event(event, problems.out_of_range))


def refused_event(event: dict[str, Any], wrong: OutOfRange | None) -> dict[str, Any]:
    """The event as far as a report needs it: its kind, who and where, and the number at fault."""
    out: dict[str, Any] = {"event": event["kind"]}
    out |= {name: event[name] for name in ("step", "row") if name in event}
    req = event.get("req", event.get("owner", event.get("by", event.get("child"))))
    if event["kind"] == "own":
        req = event["from"]
    if wrong is not None:
        out |= {"field": wrong.field, "value": wrong.value, "expected": wrong.expected}
        if "reqs" in event and wrong.item is not None:
            row = _batch_row(event, wrong)
            req = None if row is None else event["reqs"][row]
    return out if req in (None, UNKNOWN_OWNER) else out | {"req": req}


def _batch_row(event: dict[str, Any], wrong: OutOfRange) -> int | None:
    """The row of a forward's batch that the number at fault belongs to, None = a padding row."""
    assert wrong.item is not None
    bs = len(event["reqs"])
    row = wrong.item
    if wrong.field in _BY_TOKEN:
        tokens = event.get("extend_seq_lens")
        if tokens is None:
            # Rows without lengths of their own write as many tokens each.
            row = wrong.item * bs // max(len(event[wrong.field]), bs)
        else:
            row = bisect_right(list(accumulate(tokens)), wrong.item)
    return row if row < bs else None
