"""A replay of events in memory: of a clean run, and of what a fault makes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvcanary_cli.attribution.diagnoser import Diagnoser
from kvcanary_cli.replay.capacity_limits import NOT_CHECKED
from kvcanary_cli.replay.driver import Replay
from kvcanary_cli.trace.located import LocatedSegment
from kvcanary_cli.trace.notes import TraceNotes
from kvcanary_cli.trace.segment import SegmentBuilder
from kvcanary_cli.trace.validate import StreamValidator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcanary_cli.attribution.ranks import RankRecord
    from kvcanary_cli.attribution.result import Finding, OwnershipFinding
    from kvcanary_cli.replay.options import ReplayOptions
    from kvcanary_cli.trace.header import TraceHeader

Event = dict[str, Any]
_SEGMENT_EVENTS = 4096


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
        for start in range(0, len(events), _SEGMENT_EVENTS):
            self._feed(events[start : start + _SEGMENT_EVENTS])

    def _feed(self, events: Sequence[Event]) -> None:
        builder = SegmentBuilder()
        for event in events:
            builder.append(event, tokens_absent=self._absent)
        segment = builder.finish()
        self._validator.check(LocatedSegment(segment, lambda k: f"event {events[k]['i']}"))
        self.replay.feed(segment)

    def end(self) -> tuple[list[Finding], list[OwnershipFinding], RankRecord]:
        """Findings, broken ownership rules, and what other ranks must have done alike."""
        self.replay.flush()
        self.diagnoser.ended()
        rules = self.diagnoser.follower.rules
        return self.diagnoser.findings, rules.findings, self.diagnoser.record
