"""Replays as tasks on a Ray cluster.

Every node needs the same kvcanary and sees the traces under the same names: on a shared file
system, or by URL.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from typing import TYPE_CHECKING, Any

from kvcanary_cli.attribution.report import Failed
from kvcanary_cli.errors import EXIT_INPUT, EXIT_NOTHING_CHECKED, InputError, UsageError
from kvcanary_cli.fleet.job import Outcome, run_job

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvcanary_cli.fleet.job import Job, Watch

LOCAL = "local"
_KNOCK_S = 10.0
# A wait for tasks lasts no longer, so that Ctrl-C is not kept waiting.
_POLL_S = 0.2


def load_ray() -> Any:
    """The ``ray`` module.

    Raises:
        UsageError: It is not installed.
    """
    # Nobody asked for statistics about this machine to be sent anywhere.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise UsageError(
            f"--cluster needs Ray, which is not installed ({error})",
            hint="pip install 'kvcanary[ray]'",
        ) from error
    return ray


def run_on_cluster(
    jobs: Sequence[Job], address: str, size: int | None, watch: Watch
) -> list[Outcome]:
    """Replay jobs on a cluster.

    Args:
        jobs: The jobs.
        address: As ``ray.init`` takes it: ``HOST:PORT``, ``ray://HOST:PORT``, ``auto``, or
            ``local`` for one on this machine that ends with the call.
        size: Jobs at a time; None = as many as the cluster has room for.
        watch: Told of each job's end; Ray tasks do not say how far they are.

    Returns:
        One outcome a job, in the order of ``jobs``.

    Raises:
        UsageError: Ray is not installed.
        InputError: The cluster cannot be reached.
    """
    ray = load_ray()
    with _signals_as_raised():
        _connect(ray, address, size)
        try:
            return _run(ray, jobs, len(jobs) if size is None else size, watch)
        finally:
            ray.shutdown()


@contextlib.contextmanager
def _signals_as_raised() -> Iterator[None]:
    """Let through what a signal handler raises, also out of Ray's compiled code.

    That code knows KeyboardInterrupt only, and makes a SystemError of any other.
    """
    try:
        yield
    except SystemError as error:
        cause = error.__cause__
        if cause is None or isinstance(cause, Exception):
            raise
        raise cause from None


@contextlib.contextmanager
def _interrupt_held() -> Iterator[None]:
    """Keep Ctrl-C until Ray's compiled code has returned; its handler runs behind that.

    What a handler raises in the middle of a wait may end the process instead.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)
    if came:
        signal.raise_signal(signal.SIGINT)


def _knock(address: str) -> None:
    """See whether anybody listens at a stated port: Ray itself would try for minutes.

    Raises:
        OSError: Nobody does.
    """
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_KNOCK_S).close()


def _connect(ray: Any, address: str, size: int | None) -> None:
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address == LOCAL:
        options |= {"include_dashboard": False, "num_cpus": size}
    try:
        _knock(address)
        ray.init(address=address, **options)
    except (OSError, OverflowError, ValueError, RuntimeError) as error:
        sentence = " ".join(str(error).split())
        raise InputError(
            f"--cluster {address}: cannot be reached: {sentence}",
            hint="ADDRESS is HOST:PORT of the head node, ray://HOST:PORT, auto, or local",
        ) from error


def _run(ray: Any, jobs: Sequence[Job], size: int, watch: Watch) -> list[Outcome]:
    # Ray would try a task whose worker died again, and again kill what stands beside it.
    task = ray.remote(num_cpus=1, max_retries=0)(run_job)
    waiting = list(reversed(jobs))
    running: dict[Any, Job] = {}
    outcomes: dict[int, Outcome] = {}
    try:
        while waiting or running:
            while waiting and len(running) < size:
                job = waiting.pop()
                running[task.remote(job)] = job
            with _interrupt_held():
                done, _ = ray.wait(list(running), num_returns=1, timeout=_POLL_S)
            for reference in done:
                job = running.pop(reference)
                outcomes[job.number] = _outcome(ray, reference, job)
                watch.finished(job.number)
    finally:
        for reference in running:
            ray.cancel(reference, force=True)
    return [outcomes[job.number] for job in jobs]


def _outcome(ray: Any, reference: Any, job: Job) -> Outcome:
    try:
        outcome = ray.get(reference)
    except Exception as error:
        return Outcome(number=job.number, failed=_lost(ray, job, error))
    assert isinstance(outcome, Outcome)
    return outcome


def _lost(ray: Any, job: Job, error: Exception) -> Failed:
    """A task without a result: its worker died, or could not begin."""
    sentence = " ".join(str(error).split(" Check ")[0].split())
    begun = not isinstance(error, ray.exceptions.RayTaskError | ImportError)
    if begun:
        return Failed(
            path=job.name,
            message=f"{job.name}: not checked: the worker that replayed it was lost "
            f"({type(error).__name__}: {sentence[:300]})",
            hint="replay it alone to see why; a worker that runs out of memory is ended, too",
            exit_code=EXIT_NOTHING_CHECKED,
        )
    return Failed(
        path=job.name,
        message=f"{job.name}: not checked: the worker could not begin: {sentence[-300:]}",
        hint="install this version of kvcanary on every machine of the cluster",
        exit_code=EXIT_INPUT,
    )
