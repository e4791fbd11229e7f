"""The other side of ``processes``: a process that replays job after job until it is told to end.

Ctrl-C reaches every process of a terminal's foreground group; here it is left to the parent, which
stops its workers.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

from kvcanary_cli.fleet.job import Outcome, failure, run_job

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from kvcanary_cli.fleet.job import Job

PROGRESS, DONE = "progress", "done"
_PROGRESS_EVERY_S = 0.1


def work(parent: Connection[Any, Any], threads: int) -> None:
    """Take jobs from ``parent`` and send back what was found, until it sends None or is gone.

    Args:
        parent: Receives ``Job``; is sent (``PROGRESS``, (bytes, bytes or None)) and (``DONE``,
            ``Outcome``).
        threads: Threads that this worker's share of the machine has room for.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, name="kvcanary-parent", daemon=True).start()
    import torch

    torch.set_num_threads(threads)
    try:
        while (job := parent.recv()) is not None:
            _send(parent, job, run_job(job, _Progress(parent)))
    except (EOFError, OSError):
        # The parent is gone, and nobody else is waiting for the result.
        return


def _end_with_parent() -> None:
    """End this process when its parent has ended, whatever it is at: a long read, for example."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _send(parent: Connection[Any, Any], job: Job, outcome: Outcome) -> None:
    try:
        parent.send((DONE, outcome))
    except OSError:
        raise
    except Exception as error:
        # It is pickled before the first byte is sent.
        parent.send((DONE, Outcome(number=job.number, failed=failure(job.name, error))))


class _Progress:
    """Tells the parent how far a replay is, a few times a second."""

    def __init__(self, parent: Connection[Any, Any]) -> None:
        self._parent = parent
        self._next = 0.0

    def __call__(self, read_bytes: int, total_bytes: int | None) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _PROGRESS_EVERY_S
            self._parent.send((PROGRESS, (read_bytes, total_bytes)))
