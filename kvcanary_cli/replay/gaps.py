"""A trace that lost events, replayed in stretches without a gap.

What happened in a gap may have written any slot, mapped any cell and moved any owner. So each gap
ends one replay and begins another, as for a trace that starts mid-run: what slots, rows and owners
hold is unknown until the trace tells it again. Counts and findings go on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from kvcanary_cli.replay.conclude import Stretch, stretch_of
from kvcanary_cli.replay.driver import Replay

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from kvcanary_cli.replay.options import ReplayOptions
    from kvcanary_cli.replay.result import Capacities
    from kvcanary_cli.replay.watcher import Watcher
    from kvcanary_cli.trace.header import TraceHeader
    from kvcanary_cli.trace.reader import TraceReader
    from kvcanary_cli.trace.segment import Segment

    Ints = NDArray[np.int64]
    #: Makes the watcher of a stretch; gets the header that it is replayed with.
    NewWatcher = Callable[[TraceHeader], Watcher | None]

#: What a replay counts and finds, other than its state of the pool. A test holds that every
#: attribute of a replay is either named here or known to be state.
CARRIED = (
    "violations",
    "tally",
    "findings",
    "steps",
    "forwards",
    "checked_steps",
    "checked_forwards",
    "kv_hashes",
    "sweeps",
    "events",
    "kinds_met",
    "requests",
    "requests_checked",
    "unsupported",
    "skipped_sweeps",
    "slots_copied_unknown",
    "uncompared",
    "kv_layer",
    "_last_step",
    "_last_checked",
    "_past",
)


@dataclass(slots=True)
class Gapped:
    """What the stretches of a trace came to.

    Attributes:
        replay: The last stretch's, whose counts and findings are all stretches'.
        former: What is kept of the stretches before.
    """

    replay: Replay
    former: tuple[Stretch, ...]


def replay_stretches(
    reader: TraceReader,
    options: ReplayOptions,
    capacities: Capacities,
    new_watcher: NewWatcher,
    progress: Callable[[], None] | None = None,
    begun: Callable[[Replay], None] | None = None,
    met_gap: Callable[[], None] | None = None,
) -> Gapped:
    """Replay a trace, stretch by stretch.

    Args:
        reader: An open trace.
        options: What to check.
        capacities: Launch capacities.
        new_watcher: Makes the watcher of each stretch.
        progress: Called after each segment.
        begun: Told of each stretch's replay before it runs.
        met_gap: Called before the watcher is told that its stretch has ended in a gap.

    Raises:
        InputError: The trace cannot be used.
    """
    stretches = Stretches(reader, met_gap)
    header = reader.header
    former: list[Stretch] = []
    replay: Replay | None = None
    for segments in stretches:
        before = replay
        replay = Replay(header, options, capacities, new_watcher(header))
        if before is not None:
            former.append(stretch_of(before))
            for name in CARRIED:
                setattr(replay, name, getattr(before, name))
        if begun is not None:
            begun(replay)
        replay.run(reader, progress, segments)
        if replay.stopped_at_step is not None or replay.unread_from_step is not None:
            break
        header = replace(header, starts_mid_run=True)
    assert replay is not None
    return Gapped(replay, tuple(former))


class Stretches:
    """The segments of a trace, cut at its gaps. Each stretch is read before the next.

    Args:
        reader: An open trace.
        met_gap: Called where a stretch ends in a gap, before its last segment is followed.
    """

    def __init__(self, reader: TraceReader, met_gap: Callable[[], None] | None = None) -> None:
        self._segments, self._met_gap = reader.segments(), met_gap
        self._listed = _listed_gaps(reader.header)
        self._last: int | None = None
        self._held: Segment | None = None
        self._goes_on = True

    def __iter__(self) -> Iterator[Iterator[Segment]]:
        while self._goes_on:
            self._goes_on = False
            yield self._stretch()

    def _stretch(self) -> Iterator[Segment]:
        while True:
            segment, self._held = self._held, None
            if segment is None:
                segment = next(self._segments, None)
            if segment is None:
                return
            if not len(segment):
                yield segment
                continue
            at = self._first_gap(segment.index)
            if at is None:
                self._last = int(segment.index[-1])
                yield segment
                continue
            # The rest begins the next stretch, and its first event follows nothing lost there.
            self._held = segment.slice(at, len(segment))
            self._last = int(segment.index[at]) - 1
            self._goes_on = True
            if at:
                yield segment.slice(0, at)
            if self._met_gap is not None:
                self._met_gap()
            return

    def _first_gap(self, index: Ints) -> int | None:
        """First event of a segment, whose numbers grow, before which events were lost."""
        last = int(index[0]) - 1 if self._last is None else self._last
        if self._listed is None and int(index[-1]) - last == len(index):
            return None
        before = np.empty_like(index)
        before[1:] = index[:-1]
        before[0] = index[0] - 1 if self._last is None else self._last
        if self._listed is None:
            # Two's complement: right even where the numbers are 2**63 apart.
            lost = index - before != 1
        else:
            lost = np.zeros(len(index), dtype=np.bool_)
            for after_i, before_i in self._listed:
                lost |= (before <= after_i) & (index >= before_i)
        found = np.flatnonzero(lost)
        return int(found[0]) if len(found) else None


def _listed_gaps(header: TraceHeader) -> list[tuple[int, int]] | None:
    """Gaps that a cut for requests names, which leaves events out on purpose; None = all are."""
    cut = header.raw.get("cut")
    if not isinstance(cut, dict) or cut.get("reqs") is None:
        return None
    gaps = cut.get("gaps")
    return [
        (gap[0], gap[1])
        for gap in (gaps if isinstance(gaps, list) else [])
        if isinstance(gap, list) and [type(i) for i in gap] == [int, int]
    ]
