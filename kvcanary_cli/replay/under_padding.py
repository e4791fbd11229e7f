"""Bytes that were wrong before a padding row of the same batch wrote over them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvcanary_cli.replay.lanes import get_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvcanary_cli.replay.forwards import Forward
    from kvcanary_cli.replay.lanes import Lane

    Ints = NDArray[np.int64]


class UnderPadding:
    """What TAIL does not see where a fingerprint was taken behind the forward.

    Args:
        lane: Whose slots.
    """

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._wrong: dict[tuple[str, int], int] = {}

    def clear(self) -> None:
        """Another forward begins."""
        self._wrong.clear()

    def note(self, forward: Forward | None, half: str, slots: Ints) -> None:
        """Call it before the fingerprints of ``slots``, taken behind ``forward``, are entered."""
        if forward is None or len(forward.token_row) == len(forward.out_cache_loc):
            return
        kv = self._lane.kv[half]
        hit = np.intersect1d(slots, forward.out_cache_loc[len(forward.token_row) :])
        hit = hit[(hit > 0) & ~kv.unhashed[hit]]
        stored = get_rows(self._lane.buffers()[half, "tail"], hit)[:, 3]
        before = kv.get(hit)
        for k in np.flatnonzero(before != stored).tolist():
            self._wrong[half, int(hit[k])] = int(before[k])

    def was_wrong(self, half: str, slot: int) -> bool:
        """Whether the bytes of ``slot`` were."""
        return (half, slot) in self._wrong

    def fingerprint(self, slot: int) -> int | None:
        """Of the wrong bytes; None if they were right, or nobody looked."""
        found = (self._wrong.get((half, slot)) for half in self._lane.kv)
        return next((one for one in found if one is not None), None)
