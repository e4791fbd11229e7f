"""What a replay tells whoever watches it: each event, each forward, each violation, in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kvcanary_cli.replay.forwards import Forward
    from kvcanary_cli.replay.violations import ViolationChunk
    from kvcanary_cli.trace.segment import Segment


class Watcher(Protocol):
    """Follows a replay. Calls come in trace order, on the host."""

    def event(self, segment: Segment, k: int, kind: str, row: int) -> None:
        """Event ``k`` of ``segment``, any kind but ``forward``, before it is applied."""

    def begun(
        self,
        forward: Forward,
        read_slots: NDArray[np.int64],
        reader_rows: NDArray[np.int64],
        written: list[NDArray[np.int64]],
    ) -> None:
        """A forward has read its prefixes and is about to write.

        Args:
            forward: The forward.
            read_slots: [n] FULL-pool slots of its prefix entries, in plan order.
            reader_rows: [n] batch row of each.
            written: For each lane of the worker, [len(forward.token_row)] physical slot of each
                token, negative = not written.
        """

    def finished(self, forward: Forward, found: list[ViolationChunk]) -> None:
        """The forward's TAIL has run; ``found`` are its violations."""

    def swept(self, step: int, event: int, found: list[ViolationChunk]) -> None:
        """A sweep has run."""

    def ended(self) -> None:
        """The trace has been read to its end, or to where the replay stopped."""
