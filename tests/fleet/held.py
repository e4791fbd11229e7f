"""A named pipe in the place of a trace: whoever opens it waits until it is let go."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class Held:
    """The pipe, held open by this process, which never writes to it."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = path
        # Without a writer, a reader would wait in open(), and could not be found there.
        self._descriptor = os.open(path, os.O_RDWR)

    def close(self) -> None:
        os.close(self._descriptor)

    def holder(self) -> int:
        """Wait until another process has opened it; its number."""
        while True:
            for pid in _processes():
                if pid != os.getpid() and self.is_open_in(pid):
                    return pid
            time.sleep(0.05)

    def is_open_in(self, pid: int) -> bool:
        try:
            opened = [os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir()]
        except OSError:
            # It has ended meanwhile, or belongs to somebody else.
            return False
        return str(self.path) in opened


def _processes() -> Iterator[int]:
    return (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())
