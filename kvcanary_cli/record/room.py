"""How much a trace may still take: guessed before it is written, measured behind each segment."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

#: A trace is full when less than this part of its size is left: a guess is no measure.
_LEFT_OVER = 32


class Room:
    """Room of one trace, of a size that it may have.

    What a step takes on disk is known when its segment is there. Before that it is taken for as
    much as it takes in memory, which is several times too much: so a trace whose steps might not
    fit is sealed and measured, and goes on if they did.
    """

    def __init__(self, limit: int) -> None:
        """A trace without segments.

        Args:
            limit: Bytes that its segments may have, 0 = any number.
        """
        self._limit = limit
        self.begin()

    def begin(self) -> None:
        """A new trace."""
        self._measured = self._held = self._segments = 0
        self._is_full = False

    def is_tight(self, cost_bytes: int) -> bool:
        """Whether what is not sealed yet should be, before ``cost_bytes`` come on top of it."""
        if not self._limit or not self._held or self._is_full:
            return False
        return self._held + cost_bytes > self._limit - self._measured

    def hold(self, cost_bytes: int) -> None:
        """A step of about ``cost_bytes`` was written, and is not in a segment yet."""
        self._held += cost_bytes

    def measure(self, trace: Path) -> bool:
        """All that was held is in segments of ``trace`` now; whether it is full."""
        from kvcanary_cli.trace.manifest import segment_name

        while (segment := trace / segment_name(self._segments)).exists():
            self._measured += segment.stat().st_size
            self._segments += 1
        self._held = 0
        if self._limit:
            self._is_full = self._measured >= self._limit - self._limit // _LEFT_OVER
        return self._is_full
