"""Reading ahead: the next segment is made ready by a thread while the caller works on this one."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

T = TypeVar("T")
_POLL_S = 0.1


class _End:
    """The iterator has ended, or raised."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


def read_ahead(items: Iterator[T]) -> Iterator[T]:
    """The same items in the same order; one is held back while the caller has another.

    An exception comes out where it would have come without the thread. A caller that stops early
    waits for the item that is being made, and no longer.
    """
    ready: queue.Queue[T | _End] = queue.Queue(maxsize=1)
    stopped = threading.Event()

    def put(item: T | _End) -> None:
        while not stopped.is_set():
            try:
                ready.put(item, timeout=_POLL_S)
            except queue.Full:
                continue
            return

    def run() -> None:
        error: BaseException | None = None
        try:
            for item in items:
                put(item)
                del item
                if stopped.is_set():
                    return
        except BaseException as raised:
            error = raised
        put(_End(error))

    thread = threading.Thread(target=run, name="kvcanary-read", daemon=True)
    thread.start()
    try:
        while True:
            item = ready.get()
            if isinstance(item, _End):
                if item.error is not None:
                    raise item.error
                return
            yield item
            del item
    finally:
        stopped.set()
        thread.join()
