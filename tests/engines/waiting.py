"""Waits by what is done, not by the clock: how fast a machine is proves nothing."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_now = time.monotonic
_POLL_S, _LOOK_S = 0.2, 5.0
#: What has written nothing for so long hangs; importing an engine writes nothing for minutes.
STALLED_S = 900.0


class Patience:
    """Ends when nothing below a folder has changed for too long."""

    def __init__(self, folder: Path, stalled_s: float = STALLED_S) -> None:
        """Look at the folder.

        Args:
            folder: Where whoever is waited for writes what it does.
            stalled_s: How long nothing may change.
        """
        self._folder, self._stalled_s = folder, stalled_s
        self._seen = self._look()
        self._since = self._looked = _now()

    def is_over(self) -> bool:
        """Whether nothing has changed for too long; looks now and then only."""
        now = _now()
        if now - self._looked < min(_LOOK_S, self._stalled_s):
            return False
        seen, self._looked = self._look(), now
        if seen != self._seen:
            self._seen, self._since = seen, now
        return now - self._since > self._stalled_s

    def _look(self) -> tuple[int, int]:
        count = size = 0
        for path in self._folder.rglob("*"):
            try:
                size += path.stat().st_size
            except OSError:  # it was there a moment ago
                continue
            count += 1
        return count, size


def wait_until(
    is_done: Callable[[], bool], folder: Path, said: Callable[[], str], stalled_s: float = STALLED_S
) -> None:
    """Wait until ``is_done()``, which may raise where it never will be.

    Args:
        is_done: Asked again and again.
        folder: Where whoever is waited for writes what it does.
        said: What to show if it has stopped doing anything.
        stalled_s: How long it may write nothing.
    """
    patience = Patience(folder, stalled_s)
    while not is_done():
        assert not patience.is_over(), f"nothing was written for {stalled_s:.0f} s\n{said()}"
        time.sleep(_POLL_S)
