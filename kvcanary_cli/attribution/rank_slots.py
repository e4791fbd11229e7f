"""Slots by what they stand for: two ranks' allocators need not hand out the same numbers.

A slot stands for what its owner got it as, counted over the owner's slots, and, once a forward
wrote it, for its request and position. Ranks that do the same name the same ones, whatever their
numbers are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvcanary_cli.attribution.rank_digests import digest

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvcanary_cli.replay.forwards import Forward

    Ints = NDArray[np.int64]

# Odd, so that different ordinals of one name stay different.
_SPREAD = np.int64(0x1E3779B97F4A7C15)
_UNNAMED = np.int64(0)


class LogicalSlots:
    """What each slot of the FULL pool stands for on one rank.

    Args:
        num_slots: Slots of the pool.
    """

    def __init__(self, num_slots: int) -> None:
        self._stands_for: Ints = np.zeros(num_slots, dtype=np.int64)
        # By who names slots: how many they had so far.
        self._counts: dict[str, int] = {}

    def alloc(self, owner: str, slots: Ints) -> None:
        """``owner`` gets ``slots``: what they stood for is over."""
        count = self._counts.get(owner, 0)
        self._counts[owner] = count + len(slots)
        ordinals = np.arange(count, count + len(slots), dtype=np.int64)
        self._stands_for[slots] = _spread(digest("slots of", owner), ordinals)

    def named(self, name: str, slots: Ints) -> Ints:
        """[n] what ``slots`` stand for; those of which nothing is known are ``name``'s from now.

        Slots beyond the pool are another memory tier's: they stand for nothing, all alike.
        """
        if len(slots) and int(slots.max()) >= len(self._stands_for):
            return np.zeros_like(slots)
        unnamed = slots[self._stands_for[slots] == _UNNAMED]
        if len(unnamed):
            self.alloc(name, unnamed)
        stand_for: Ints = self._stands_for[slots]
        return stand_for

    def moved(self, src: Ints, dst: Ints) -> None:
        """Content was copied within the pool."""
        if len(src) == len(dst):
            self._stands_for[dst] = self._stands_for[src]

    def written(self, forward: Forward) -> None:
        """A forward writes tokens of its rows."""
        rows = forward.token_row
        slots = forward.out_cache_loc[: len(rows)]
        bases = np.array([0 if req is None else digest(req) for req in forward.reqs], dtype="i8")
        mine = (slots > 0) & (slots < len(self._stands_for))
        at = _spread(bases[rows[mine]], forward.true_positions[mine])
        self._stands_for[slots[mine]] = at


def _spread(base: Ints | int, ordinals: Ints) -> Ints:
    """[n] numbers that differ by base and by ordinal; they wrap around."""
    spread: Ints = np.asarray(base, dtype=np.int64) + ordinals * _SPREAD
    return spread
