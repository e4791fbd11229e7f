"""What compiled events ask of a watcher that keeps a ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kvcanary_cli.replay.requests import Requests
    from kvcanary_cli.trace.segment import Segment

    Ints = NDArray[np.int64]


class Ledger(Protocol):
    """A watcher's side: arrays that the kernel keeps, and what it cannot look up."""

    def block(self, cells: Ints, requests: Requests) -> None:
        """Put addresses and numbers into the block, those of the cells from HAS_LEDGER on.

        Requests get the codes that the ledger has for them.
        """

    def take_back(
        self, cells: Ints, requests: Requests, segment: Segment, last_event: int | None
    ) -> None:
        """The kernel is done for now.

        Args:
            cells: The block.
            requests: Those whose codes it gave out.
            segment: Where its events stand.
            last_event: ``i`` of the last event that it took, None = it took none.
        """

    def tenant(self, row: int, req: str, event: int) -> None:
        """``req`` runs in ``row``, which the ledger did not know."""

    def make_room(self) -> None:
        """The list of map events is full."""

    def reason(self, text: str) -> int:
        """Code of the reason of a free."""

    def applied_to(self, segment: Segment) -> int:
        """Events of ``segment`` before this one were applied already."""
