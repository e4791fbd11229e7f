"""Replays in parallel processes of this machine, each with a pipe of its own.

A process that dies (out of memory, a crash, a kill) costs the trace that it was at: the others go
on, and a new process takes its place. On any way out no process is left behind.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections import deque
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any

from kvcanary_cli.attribution.report import Failed
from kvcanary_cli.errors import EXIT_INTERNAL, EXIT_NOTHING_CHECKED
from kvcanary_cli.fleet.job import Outcome, failure
from kvcanary_cli.fleet.worker import PROGRESS, work

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.context import BaseContext

    from kvcanary_cli.fleet.job import Job, Watch

_END_S = 10.0
#: Signals that come from outside; others are a crash of our own.
_KILLED = (signal.SIGKILL, signal.SIGTERM)


def run_in_processes(jobs: Sequence[Job], size: int, watch: Watch) -> list[Outcome]:
    """Replay jobs in up to ``size`` processes.

    Returns:
        One outcome a job, in the order of ``jobs``.
    """
    pool = _Pool(min(size, len(jobs)), watch)
    try:
        return pool.run(jobs)
    finally:
        pool.stop()


def _context() -> BaseContext:
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["kvcanary_cli.fleet.preload"])
    return context


class _Worker:
    """A process, our end of its pipe, and the job that it is at."""

    def __init__(self, context: BaseContext, threads: int) -> None:
        self.pipe: Connection[Any, Any]
        self.pipe, theirs = context.Pipe()
        self.job: Job | None = None
        # typeshed's BaseContext lacks Process, which every context has.
        self.process = context.Process(  # type: ignore[attr-defined]
            target=work, args=(theirs, threads), name="kvcanary-replay", daemon=True
        )
        self.process.start()
        theirs.close()

    def death(self) -> tuple[str, int]:
        """How the process ended, in words, and what a call with this input alone exits with."""
        self.process.join(_END_S)
        code = self.process.exitcode
        if code is None:
            return "was lost: it closed its pipe and still runs", EXIT_INTERNAL
        if code >= 0:
            return f"ended with status {code}", EXIT_INTERNAL
        number = -code
        known = {int(s): s.name for s in signal.Signals}
        told = f"was ended by {known.get(number, f'signal {number}')}"
        if number in _KILLED:
            return f"{told}: out of memory, or ended by hand", EXIT_NOTHING_CHECKED
        return told, EXIT_INTERNAL


class _Pool:
    def __init__(self, size: int, watch: Watch) -> None:
        self._context = _context()
        self._size = size
        self._watch = watch
        self._workers: list[_Worker] = []
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        self._threads = max(1, (cores or 1) // size)

    def run(self, jobs: Sequence[Job]) -> list[Outcome]:
        outcomes: dict[int, Outcome] = {}
        pending = deque(jobs)
        while len(outcomes) < len(jobs):
            self._hand_out(pending)
            busy = {worker.pipe: worker for worker in self._workers if worker.job is not None}
            for pipe in wait(list(busy)):
                outcome = self._hear(busy[pipe])  # type: ignore[index]
                if outcome is not None:
                    outcomes[outcome.number] = outcome
                    self._watch.finished(outcome.number)
        return [outcomes[job.number] for job in jobs]

    def _hand_out(self, pending: deque[Job]) -> None:
        """Give every idle worker a job; start workers while there is more to do than they can."""
        while pending:
            idle = next((worker for worker in self._workers if worker.job is None), None)
            if idle is None:
                if len(self._workers) >= self._size:
                    return
                idle = _Worker(self._context, self._threads)
                self._workers.append(idle)
            job = pending.popleft()
            idle.job = job
            # One that died before it took the job is heard of by its closed pipe.
            with contextlib.suppress(BrokenPipeError):
                idle.pipe.send(job)

    def _hear(self, worker: _Worker) -> Outcome | None:
        """Take one message; an outcome, also one for a worker that will send no more."""
        job = worker.job
        assert job is not None
        try:
            kind, value = worker.pipe.recv()
        except (EOFError, OSError):
            self._drop(worker)
            told, code = worker.death()
            return Outcome(number=job.number, failed=_died(job, told, code))
        except Exception as error:
            worker.job = None
            return Outcome(number=job.number, failed=failure(job.name, error))
        if kind == PROGRESS:
            self._watch.progress(job.number, *value)
            return None
        worker.job = None
        assert isinstance(value, Outcome)
        return value

    def _drop(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        worker.pipe.close()

    def stop(self) -> None:
        """End all workers: those that are idle by themselves, those at a job at once."""
        for worker in self._workers:
            if worker.job is not None:
                worker.process.kill()
        for worker in self._workers:
            with contextlib.suppress(OSError):
                worker.pipe.send(None)
            worker.pipe.close()
        for worker in self._workers:
            worker.process.join(_END_S)
            if worker.process.exitcode is None:
                worker.process.kill()
        self._workers.clear()


def _died(job: Job, told: str, exit_code: int) -> Failed:
    return Failed(
        path=job.name,
        message=f"{job.name}: not checked: the process that replayed it {told}",
        hint="replay it alone to see why; fewer --jobs leave more memory to each",
        exit_code=exit_code,
    )
