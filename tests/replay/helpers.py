"""Traces from lists of events, replayed in one call."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import TYPE_CHECKING, Any

from kvcanary_cli.replay.conclude import conclude
from kvcanary_cli.replay.driver import Replay
from kvcanary_cli.replay.options import ReplayOptions
from kvcanary_cli.replay.result import Capacities
from kvcanary_cli.trace.header import parse_header
from kvcanary_cli.trace.located import LocatedSegment
from kvcanary_cli.trace.reader import TraceReader
from kvcanary_cli.trace.segment import Segment, SegmentBuilder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kvcanary_cli.replay.result import ReplayResult
    from kvcanary_cli.replay.violations import Violation

Event = dict[str, Any]
UNCHECKED = Capacities(verify=None, write_req=None, write_entry=None, source="none")


class MemoryReader(TraceReader):
    """A validated trace that never was a file.

    Args:
        header: The header's dictionary.
        events: The events' dictionaries.
        segment_events: Events of a segment; None = all in one.
    """

    def __init__(
        self, header: Event, events: Iterable[Event], segment_events: int | None = None
    ) -> None:
        super().__init__("memory")
        self.header = parse_header(header, "memory:1")
        self._events = list(events)
        self._segment_events = segment_events or max(1, len(self._events))

    def _located_segments(self) -> Iterator[LocatedSegment]:
        absent = self.header.tokens == "absent"
        for start in range(0, len(self._events), self._segment_events):
            builder = SegmentBuilder()
            for event in self._events[start : start + self._segment_events]:
                builder.append(event, tokens_absent=absent)
            yield LocatedSegment(builder.finish(), lambda k, start=start: f"event {start + k}")

    def sha256(self) -> str:
        return hashlib.sha256(json.dumps(self._events).encode()).hexdigest()


def numbered(events: Iterable[Event], first: int = 0) -> list[Event]:
    """The events with ``i`` from ``first`` on, right behind ``kind``."""
    return [
        {"kind": event["kind"], "i": first + k} | {n: v for n, v in event.items() if n != "i"}
        for k, event in enumerate(events)
    ]


def header(**changes: Any) -> Event:
    """A small pool's header; ``pool`` and further fields may be given."""
    pool = {"slots": 63, "page_size": 1, "rows": 9, "row_len": 48} | changes.pop("pool", {})
    return {
        "kind": "header",
        "format": "kvcanary-trace",
        "version": 1,
        "engine": {"name": "synthetic"},
        "pool": pool,
        "records": ["forward", "map", "alloc", "request", "history", "prefix", "transfer"],
    } | changes


def replay(
    head: Event,
    events: Iterable[Event],
    *,
    capacities: Capacities = UNCHECKED,
    segment_events: int | None = None,
    **options: Any,
) -> ReplayResult:
    """Replay events on the cpu backend, or on ``backend``."""
    return replay_with_state(
        head, events, capacities=capacities, segment_events=segment_events, **options
    )[1]


def replay_with_state(
    head: Event,
    events: Iterable[Event],
    *,
    capacities: Capacities = UNCHECKED,
    segment_events: int | None = None,
    **options: Any,
) -> tuple[Replay, ReplayResult]:
    """``replay``, and the replay itself with its lanes."""
    options.setdefault("backend", "cpu")
    reader = MemoryReader(head, events, segment_events)
    run = Replay(reader.header, ReplayOptions(**options), capacities)
    run.run(reader)
    return run, conclude(run, reader)


def violations(head: Event, events: Iterable[Event], **options: Any) -> list[Violation]:
    return list(replay(head, events, **options).violations)


def without_event(violation: Violation) -> Violation:
    """The violation with its event number blanked, to compare traces numbered differently."""
    return dataclasses.replace(violation, event=0)


def segments_one_by_one(segment: Segment) -> Iterator[Segment]:
    """Each event of ``segment`` as a segment of its own."""
    for k in range(len(segment)):
        yield segment.slice(k, k + 1)
