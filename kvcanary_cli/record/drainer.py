"""Steps whose copies are under way: a bounded queue, and a thread that takes them in order."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcanary_cli.record.copies import Fence, HostCopy

Event = dict[str, Any]

#: Steps under way; a device is some steps ahead of its results, never dozens.
MAX_STEPS = 64
#: Pinned memory that they may hold.
MAX_BYTES = 64 << 20
_POLL_S = 0.001


@dataclass(frozen=True, slots=True)
class Deferred:
    """Events that are made when their copies are there.

    Attributes:
        make: Gets the copies' arrays, gives the events.
        copies: Under way.
    """

    make: Callable[..., list[Event]]
    copies: tuple[HostCopy, ...]

    @property
    def nbytes(self) -> int:
        return sum(copy.nbytes for copy in self.copies)


@dataclass(slots=True)
class Step:
    """What a step emitted.

    Attributes:
        items: Events and deferred ones, in order.
        fence: Behind its copies, None without any.
        is_step: Whether a forward was among it.
        missed_steps, missed_events: Steps before it that had no room, and what they emitted (at
            least: of what was deferred, one event each).
        fault: Why its copies will never be there: the device has failed.
    """

    items: list[Event | Deferred]
    fence: Fence | None = None
    is_step: bool = False
    missed_steps: int = 0
    missed_events: int = 0
    fault: Exception | None = None
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.nbytes = sum(item.nbytes for item in self.items if isinstance(item, Deferred))


class Drainer:
    """The queue and its thread."""

    def __init__(self, deliver: Callable[[Step], None]) -> None:
        """Start.

        Args:
            deliver: Takes each step in order when its copies are there or never will be, on the
                thread.
        """
        self._deliver = deliver
        self._queue: deque[Step] = deque()
        self._bytes = 0
        self._missed_steps = self._missed_events = 0
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._closing = False
        self._busy = False
        self._thread = threading.Thread(target=self._run, name="kvcanary-copies", daemon=True)
        self._thread.start()

    def put(self, step: Step, *, force: bool = False) -> bool:
        """Queue ``step``; False if there is no room, in which case it is missed as a whole."""
        with self._lock:
            full = len(self._queue) >= MAX_STEPS or self._bytes + step.nbytes > MAX_BYTES
            if full and self._queue and not force:
                self._missed_steps += 1
                self._missed_events += max(1, len(step.items))
                return False
            step.missed_steps, step.missed_events = self._missed_steps, self._missed_events
            self._missed_steps = self._missed_events = 0
            self._queue.append(step)
            self._bytes += step.nbytes
            self._changed.notify_all()
        return True

    @property
    def is_current(self) -> bool:
        """Whether the caller is the drainer's thread."""
        return threading.current_thread() is self._thread

    def settle(self, timeout_s: float) -> bool:
        """Wait until all that was queued has been delivered; whether it was."""
        with self._lock:
            return self._changed.wait_for(lambda: not self._queue and not self._busy, timeout_s)

    def close(self, timeout_s: float) -> int:
        """Deliver what is queued and end; how many steps are still not there."""
        with self._lock:
            self._closing = True
            self._changed.notify_all()
        if not self.is_current:
            self._thread.join(timeout_s)
        with self._lock:
            return sum(bool(step.items) for step in self._queue)

    def _run(self) -> None:
        while True:
            with self._lock:
                self._changed.wait_for(lambda: self._queue or self._closing)
                if not self._queue:
                    return
                step = self._queue[0]
            step.fault = _wait(step.fence)
            with self._lock:
                self._queue.popleft()
                self._bytes -= step.nbytes
                self._busy = True
            try:
                self._deliver(step)
            finally:
                with self._lock:
                    self._busy = False
                    self._changed.notify_all()


def _wait(fence: Fence | None) -> Exception | None:
    """Wait until ``fence`` has been passed; the device's failure if it never will be."""
    try:
        # Polled, for a fence that is waited for may hold a lock of the driver meanwhile.
        while fence is not None and not fence.passed():
            time.sleep(_POLL_S)
    except Exception as error:
        return error
    return None
