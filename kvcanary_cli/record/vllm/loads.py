"""What a KV connector loads into blocks of requests: windows of transfers and their copies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Event = dict[str, Any]

_VIA = "load"


@dataclass(frozen=True, slots=True)
class _Load:
    """A load under way."""

    number: int
    positions: Ints
    slots: Ints


class Loads:
    """Loads by request."""

    def __init__(self) -> None:
        self._open: dict[str, _Load] = {}
        self._next = 1

    def begin(self, req: str, positions: Ints, slots: Ints) -> list[Event]:
        """Content of ``req`` at ``positions`` is being brought into ``slots``, in that order."""
        load = self._open[req] = _Load(self._next, positions, slots)
        self._next += 1
        event = {"kind": "transfer_begin", "id": _name(load), "req": req, "slots": slots}
        return [{**event, "via": _VIA}]

    def end(self, req: str) -> list[Event]:
        """The content of ``req`` is there."""
        load = self._open.pop(req, None)
        if load is None:
            return []
        return [
            {
                "kind": "copy",
                "src": {"req": req, "pos": load.positions.tolist()},
                "dst": load.slots,
                "id": _name(load),
                "via": _VIA,
                "by": req,
            },
            {"kind": "transfer_end", "id": _name(load), "req": req, "via": _VIA},
        ]

    def fail(self, req: str) -> list[Event]:
        """The content of ``req`` did not come."""
        load = self._open.pop(req, None)
        if load is None:
            return []
        return [{"kind": "transfer_fail", "id": _name(load), "req": req, "via": _VIA}]


def _name(load: _Load) -> str:
    return f"load-{load.number}"
