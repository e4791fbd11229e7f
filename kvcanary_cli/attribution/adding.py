"""How those hand on a finding who meet it without a canary violation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kvcanary_cli.attribution.damage import Cause

    Ints = NDArray[np.int64]


class Add(Protocol):
    """Takes a finding that no canary violation shows, as ``FindingBook.add`` does."""

    def __call__(
        self,
        cause: Cause,
        victim: str | None,
        step: int | None,
        slots: Ints,
        positions: Ints,
        *,
        read: bool = True,
        lane: tuple[str, str] = ("target", "FULL"),
    ) -> None:
        """Enter ``cause`` with its victim, step, slots [n] and positions.

        Args:
            cause: Why.
            victim: Request that read or lost data, None if none is known.
            step: Step that shows it, None outside one.
            slots, positions: What is damaged; positions may be empty.
            read: Whether ``victim`` read, or was fed, the damage.
            lane: Worker and pool of the slots.
        """
