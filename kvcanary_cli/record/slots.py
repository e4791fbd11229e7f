"""Slots whose bytes are fingerprinted, on the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]


def first_of_each(slots: Ints, bound: int) -> Ints:
    """Where each slot of the pool stands first, in order; ``bound`` is the pool's slots."""
    inside = np.flatnonzero((slots > 0) & (slots < bound))
    out: Ints = inside[np.sort(np.unique(slots[inside], return_index=True)[1])]
    return out


def each_once(slots: Ints, bound: int) -> Ints:
    """[k] the slots of the pool in the order of their first appearance."""
    out: Ints = slots[first_of_each(slots, bound)]
    return out
