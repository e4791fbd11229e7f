"""How many slots were owned at each forward: minimum, median, maximum and a short series."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from kvcanary_cli.trace.segment import Segment

#: Points of a series; while it is collected there are up to twice as many.
SERIES_POINTS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolUse:
    """Owned slots, sampled after every forward; slots whose owner was never seen do not count.

    Attributes:
        minimum: Fewest.
        median: Lower median.
        maximum: Most.
        series: Largest number in each of up to 2 x ``SERIES_POINTS`` equal stretches of forwards.
    """

    minimum: int
    median: int
    maximum: int
    series: tuple[int, ...]


class PoolUseCounter:
    """Follows alloc, free and own; memory is one byte and one counter for each slot.

    Args:
        max_slot: Largest slot number.
    """

    def __init__(self, max_slot: int) -> None:
        self._owned = np.zeros(max_slot + 1, dtype=np.bool_)
        self._count = 0
        #: How often each number of owned slots was seen.
        self._histogram = np.zeros(max_slot + 2, dtype=np.int64)
        self._series: list[int] = []
        self._stride = 1
        self._in_last = 0

    def add(self, segment: Segment) -> None:
        """Follow the next segment."""
        names = segment.kind_names
        codes = [names.index(n) for n in ("alloc", "free", "own", "forward") if n in names]
        for k in np.flatnonzero(np.isin(segment.kind, codes)).tolist():
            kind = names[segment.kind[k]]
            if kind == "forward":
                self._sample()
                continue
            slots = segment.tables[kind].get_ints("slots", int(segment.row[k]))
            if slots is None:
                continue
            value = kind != "free"
            changed = np.unique(slots[self._owned[slots] != value])
            self._owned[changed] = value
            self._count += len(changed) if value else -len(changed)

    def _sample(self) -> None:
        self._histogram[self._count] += 1
        if self._in_last == 0:
            if len(self._series) == 2 * SERIES_POINTS:
                pairs = zip(self._series[::2], self._series[1::2], strict=True)
                self._series = [max(pair) for pair in pairs]
                self._stride *= 2
            self._series.append(self._count)
        else:
            self._series[-1] = max(self._series[-1], self._count)
        self._in_last = (self._in_last + 1) % self._stride

    def result(self) -> PoolUse | None:
        """The use so far, or None without any forward."""
        seen = np.flatnonzero(self._histogram)
        if not len(seen):
            return None
        below = np.cumsum(self._histogram)
        median = int(np.searchsorted(below, (int(below[-1]) + 1) // 2))
        return PoolUse(
            minimum=int(seen[0]),
            median=median,
            maximum=int(seen[-1]),
            series=tuple(self._series),
        )
