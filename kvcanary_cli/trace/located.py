"""A segment together with where its events stand in the input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcanary_cli.trace.segment import Segment

#: A reader flushes a segment at either bound: about 8 MiB of values, or this many events.
MAX_SEGMENT_VALUES = 1 << 20
MAX_SEGMENT_EVENTS = 50_000


@dataclass(frozen=True, slots=True)
class LocatedSegment:
    """A segment; ``where(k)`` names the place of its k-th event, file and line for example."""

    segment: Segment
    where: Callable[[int], str]
