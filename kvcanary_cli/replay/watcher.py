"""What a replay tells whoever watches it: each event, each forward, each violation, in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvcanary_cli.replay.forwards import Forward
    from kvcanary_cli.replay.violations import ViolationChunk
    from kvcanary_cli.replay.watched_ledger import Ledger
    from kvcanary_cli.trace.segment import Segment


@dataclass(frozen=True, slots=True)
class Reads:
    """Prefix entries of a forward in the FULL pool, in plan order.

    Those that were told before, and for which neither slot nor owner changed since, may be left
    out; those that the watcher marked in ``again`` are not.

    Attributes:
        slots: [n] slots.
        batch_rows: [n] batch row of each.
        positions: [n] position of each.
        again: [n] for the watcher to mark: to be told of each time that they are read.
    """

    slots: NDArray[np.int64]
    batch_rows: NDArray[np.int64]
    positions: NDArray[np.int64]
    again: NDArray[np.bool_]

    @classmethod
    def none(cls) -> Reads:
        empty = np.empty(0, dtype=np.int64)
        return cls(empty, empty, empty, np.empty(0, dtype=np.bool_))


class Watcher(Protocol):
    """Follows a replay. Calls come in trace order, on the host."""

    def ledger(self) -> Ledger | None:
        """What compiled code keeps for this watcher, None if it must be told of every event."""

    def event(self, segment: Segment, k: int, kind: str, row: int) -> None:
        """Event ``k`` of ``segment``, any kind but ``forward``, before it is applied."""

    def begun(
        self,
        forward: Forward,
        reads: Reads,
        written: list[NDArray[np.int64]],
    ) -> None:
        """A forward has read its prefixes and is about to write.

        Args:
            forward: The forward.
            reads: What it reads.
            written: For each lane of the worker, [len(forward.token_row)] physical slot of each
                token, negative = not written.
        """

    def finished(self, forward: Forward, found: list[ViolationChunk]) -> None:
        """The forward's TAIL has run; ``found`` are its violations."""

    def swept(self, step: int, event: int, found: list[ViolationChunk]) -> None:
        """A sweep has run."""

    def ended(self) -> None:
        """The trace has been read to its end, or to where the replay stopped."""
