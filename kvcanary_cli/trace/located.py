"""A segment together with where its events stand in the input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcanary_cli.trace.segment import Segment


@dataclass(frozen=True, slots=True)
class LocatedSegment:
    """A segment; ``where(k)`` names the place of its k-th event, file and line for example."""

    segment: Segment
    where: Callable[[int], str]
