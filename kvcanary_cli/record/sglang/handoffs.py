"""KV that a prefill server sends and a decode server receives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvcanary_cli.record.sglang.scene import Scene

    Ints = NDArray[np.int64]
    Event = dict[str, Any]

#: SGLang's ``KVPoll``.
_FAILED, _SUCCESS = 0, 4
_MAX_OPEN = 4096


@dataclass(slots=True)
class _Window:
    """A transfer that has begun.

    Attributes:
        name: Its id in the trace.
        req: SGLang's request.
        slots: Slots that it reads or writes, once they are known on the host.
        positions: Their positions in the request; None where nothing lands here.
    """

    name: str
    req: Any
    positions: Ints | None
    slots: Ints | None = None


class Handoffs:
    """Turns transfers between servers into events, from their begin to what the engine learns."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._number = 0
        #: By the identity of the sender or receiver that the engine polls, which is kept alive so
        #: that no other gets its identity.
        self._open: dict[int, tuple[Any, list[_Window]]] = {}

    # The prefill server.

    def enter_send(self, _scheduler: Any, req: Any, *_args: Any, **_kwargs: Any) -> int:
        return int(req.start_send_idx)

    def leave_send(
        self,
        start: int | None,
        _res: Any,
        raised: bool,
        _scheduler: Any,
        req: Any,
        *_a: Any,
        **_k: Any,
    ) -> None:
        """A part of the prompt was handed to the sender."""
        stop = int(req.start_send_idx)
        row = req.kv.req_pool_idx
        if raised or start is None or row is None or stop <= start:
            return
        slots = self._scene.table.cells(int(row), start, stop)
        self._begin(req, req.disagg_kv_sender, slots, None, "out")

    # The decode server.

    def enter_metadata(
        self, _queue: Any, decode_req: Any, kv_indices: Any, *_args: Any, **kwargs: Any
    ) -> None:
        """The prefill server is about to be told where to write."""
        destination = kwargs.get("destination")
        if destination is not None and getattr(destination, "name", "DEVICE") != "DEVICE":
            return
        req = decode_req.req
        self._scene.requests.enter(req)
        stop = int(req.kv.kv_committed_len)
        positions = np.arange(stop - len(kv_indices), stop, dtype=np.int64)
        self._begin(req, decode_req.kv_receiver, kv_indices, positions, "in")

    # Both.

    def on_poll(
        self, _token: Any, polls: Any, raised: bool, pollers: Any, *_args: Any, **_kwargs: Any
    ) -> None:
        """The engine has learned how far its transfers are."""
        if raised or not self._open:
            return
        for poller, state in zip(pollers, polls, strict=False):
            if int(state) in (_FAILED, _SUCCESS):
                _, windows = self._open.pop(id(poller), (None, []))
                for window in windows:
                    self._end(window, landed=int(state) == _SUCCESS)

    def on_staged_poll(
        self, token: Any, polls: Any, raised: bool, decode_reqs: Any, *args: Any, **kwargs: Any
    ) -> None:
        """The same where received KV is staged first."""
        pollers = kwargs.get("pollers") or [one.kv_receiver for one in decode_reqs]
        self.on_poll(token, polls, raised, pollers)

    def _begin(
        self, req: Any, poller: Any, slots: Any, positions: Ints | None, direction: str
    ) -> None:
        if not len(slots):
            return
        self._number += 1
        window = _Window(f"rdma-{direction}-{self._number}", req, positions)
        _, windows = self._open.setdefault(id(poller), (poller, []))
        windows.append(window)
        if len(self._open) > _MAX_OPEN:
            # Of requests that were dropped: their windows stay open in the trace, too.
            del self._open[next(iter(self._open))]
        name = str(req.rid)

        def begun(values: Ints) -> list[Event]:
            window.slots = values
            event = {"kind": "transfer_begin", "id": window.name, "req": name, "slots": values}
            return [{**event, "via": "rdma", "direction": direction}]

        self._scene.session.defer(begun, slots)

    def _end(self, window: _Window, *, landed: bool) -> None:
        req = str(window.req.rid)
        if landed and window.positions is not None:
            self._scene.tell_history(window.req)

        def ended() -> list[Event]:
            events: list[Event] = []
            # Without slots its begin was in a step that was dropped.
            if landed and window.positions is not None and window.slots is not None:
                source = {"req": req, "pos": window.positions.tolist()}
                event = {"kind": "copy", "src": source, "dst": window.slots, "id": window.name}
                events.append({**event, "via": "rdma", "by": req, "canary": True})
            kind = "transfer_end" if landed else "transfer_fail"
            return [*events, {"kind": kind, "id": window.name}]

        self._scene.session.defer(ended)
