"""Reading ahead: the next segment is made ready by a thread while the caller works on this one."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

T = TypeVar("T")


class _End:
    """The iterator has ended, or raised."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


def read_ahead(items: Iterator[T], ahead: int = 1) -> Iterator[T]:
    """The same items in the same order; some are made, or held back, while the caller has another.

    The one behind them is not begun before the caller has taken one of them. An exception comes out
    where it would have come without the thread. A caller that stops early waits for the item that
    is being made, and no longer.

    Args:
        ahead: How many, so that one more exist at a time.
    """
    ready: queue.SimpleQueue[T | _End] = queue.SimpleQueue()
    wanted = threading.Semaphore(ahead)
    stopped = threading.Event()

    def run() -> None:
        error: BaseException | None = None
        try:
            while wanted.acquire() and not stopped.is_set():
                item = next(items, ready)
                if item is ready:
                    break
                ready.put(item)  # type: ignore[arg-type]
                del item
        except BaseException as raised:
            error = raised
        ready.put(_End(error))

    thread = threading.Thread(target=run, name="kvcanary-read", daemon=True)
    thread.start()
    try:
        while True:
            item = ready.get()
            wanted.release()
            if isinstance(item, _End):
                if item.error is not None:
                    raise item.error
                return
            yield item
            del item
    finally:
        stopped.set()
        wanted.release()
        thread.join()
