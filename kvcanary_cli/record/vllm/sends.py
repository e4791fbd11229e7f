"""What a KV connector sends from blocks that it keeps from being freed: windows of transfers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Event = dict[str, Any]

#: Elsewhere: to another server, or a store. The scheduler is not told which.
_VIA = "store"


@dataclass(frozen=True, slots=True)
class _Send:
    """A send under way.

    Attributes:
        number: Of its id.
        slots: Slots of the blocks that it may read.
    """

    number: int
    slots: Ints


class Sends:
    """Sends by request; deferred functions alone touch them (``session.State``)."""

    def __init__(self) -> None:
        self._open: dict[str, _Send] = {}
        self._next = 1

    def begin(self, req: str, slots: Ints) -> list[Event]:
        """``req`` has ended; its ``slots`` are kept until the connector has sent them."""
        send = self._open[req] = _Send(self._next, slots)
        self._next += 1
        return [_begin(req, send)]

    def end(self, req: str) -> list[Event]:
        """The connector is done with ``req``, whether or not all arrived."""
        send = self._open.pop(req, None)
        if send is None:
            return []
        return [{"kind": "transfer_end", "id": _name(send), "req": req, "via": _VIA}]

    def lost(self) -> None:
        """See ``State``: which of them have ended was not seen."""
        self._open.clear()

    def retell(self, *, gap: bool) -> list[Event]:
        """See ``State``. Stands behind the owners, which a window is compared with."""
        return [_begin(req, send) for req, send in self._open.items()]


def _begin(req: str, send: _Send) -> Event:
    event = {"kind": "transfer_begin", "id": _name(send), "req": req, "slots": send.slots}
    return {**event, "via": _VIA}


def _name(send: _Send) -> str:
    return f"send-{send.number}"
