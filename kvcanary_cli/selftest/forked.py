"""Runs tasks in forked children, a few at a time: each starts from the state of its moment.

A child's changes are its own, so that many of them can go on from one replay. Where a process
cannot fork, ``run_here`` does the same work in turn.
"""

from __future__ import annotations

import gc
import os
import pickle
import selectors
import signal
import traceback
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Lost:
    """A task whose child ended without an answer; ``why`` says how."""

    why: str


class TaskError(RuntimeError):
    """A task raised; the text is its traceback."""


@dataclass(slots=True)
class _Child:
    number: int
    pid: int
    data: bytearray = field(default_factory=bytearray)


def num_cpus() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def can_fork() -> bool:
    """Whether children can go on from this process; a CUDA context does not survive a fork."""
    if not hasattr(os, "fork"):
        return False
    import torch

    return not torch.cuda.is_initialized()  # type: ignore[no-untyped-call]


def run_here(tasks: Iterable[Callable[[], Any]]) -> Iterator[tuple[int, Any]]:
    """Run each task in this process; its number and its answer."""
    for number, task in enumerate(tasks):
        yield number, task()


def run_forked(tasks: Iterable[Callable[[], Any]], jobs: int) -> Iterator[tuple[int, Any]]:
    """Run each task in a child of its own, at most ``jobs`` at once.

    The next task is taken from ``tasks`` only when a child is free to run it: an iterator may
    change the state that its tasks start from in between.

    Args:
        tasks: What to run; answers must be picklable.
        jobs: Children at once.

    Yields:
        A task's number and its answer, as they come in; ``Lost`` where the child died.

    Raises:
        TaskError: A task raised.
    """
    running: dict[int, _Child] = {}
    waiting = enumerate(tasks)
    more = True
    with selectors.DefaultSelector() as pipes, _frozen():
        try:
            while more or running:
                while more and len(running) < jobs:
                    number, task = next(waiting, (-1, None))
                    if task is None:
                        more = False
                        break
                    reading, pid = _start(task)
                    running[reading] = _Child(number, pid)
                    pipes.register(reading, selectors.EVENT_READ)
                for key, _events in pipes.select() if running else ():
                    child = running[key.fd]
                    chunk = os.read(key.fd, _READ_BYTES)
                    if chunk:
                        child.data += chunk
                        continue
                    pipes.unregister(key.fd)
                    os.close(key.fd)
                    del running[key.fd]
                    yield child.number, _answer(child)
        finally:
            for reading, child in running.items():
                os.close(reading)
                with suppress(ProcessLookupError):
                    os.kill(child.pid, signal.SIGKILL)
                os.waitpid(child.pid, 0)


def _start(task: Callable[[], Any]) -> tuple[int, int]:
    """Fork a child for ``task``: where its answer comes from, and its process id."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return reading, pid
    os.close(reading)
    status = 1
    try:
        # Whatever the parent, or a library in it, does when it is asked to end is not for a child.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        gc.disable()
        try:
            told = (True, task())
        except BaseException:
            told = (False, traceback.format_exc())
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(pickle.dumps(told, protocol=pickle.HIGHEST_PROTOCOL))
        status = 0
    finally:
        # The parent's buffers and exit handlers are not the child's to run.
        os._exit(status)


def _answer(child: _Child) -> Any:
    _pid, status = os.waitpid(child.pid, 0)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        return Lost(f"its process was ended by signal {-code} ({signal.Signals(-code).name})")
    if code > 0 or not child.data:
        return Lost(f"its process ended with status {code} and no answer")
    # What our own child wrote.
    done, value = pickle.loads(child.data)
    if not done:
        raise TaskError(value)
    return value


@contextmanager
def _frozen() -> Iterator[None]:
    """Keep the collector off what exists already: it would copy every page into each child."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
