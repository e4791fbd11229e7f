"""One trace's replay as a value: what is asked goes out, what was found comes back.

Only these cross between processes and machines, never a trace.
"""

from __future__ import annotations

import contextlib
import os
import traceback
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from kvcanary_cli import __version__
from kvcanary_cli.attribution.report import Failed
from kvcanary_cli.errors import InputError, KvCanaryError, as_known

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from kvcanary_cli.attribution.diagnose import Diagnosis
    from kvcanary_cli.replay.options import ReplayOptions
    from kvcanary_cli.replay.result import Capacities
    from kvcanary_cli.serving.trace_capacities import Config
    from kvcanary_cli.trace.reader import TraceReader


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One trace to replay.

    Attributes:
        number: Its place among the inputs.
        name: Path or URL; a relative path is one of ``folder``.
        found_in: The folder that it was found in, None if it was named itself.
        several: Whether there are other inputs, ranks of its run perhaps.
        options: What to check.
        config: What the server was told, instead of the trace's header; or None.
        overrides: Capacities by hand.
        folder: The folder that the command was called in.
        version: kvcanary's version there; another one might find something else.
    """

    number: int
    name: str
    found_in: str | None
    several: bool
    options: ReplayOptions
    config: Config | None
    overrides: Mapping[str, int]
    folder: str
    version: str = __version__


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a job: a diagnosis, or why there is none.

    Attributes:
        number: The job's.
        diagnosis: What was found, None if it failed.
        failed: What went wrong, None if it did not.
        warnings: What the user must be told beside the result.
    """

    number: int
    diagnosis: Diagnosis | None = None
    failed: Failed | None = None
    warnings: tuple[str, ...] = ()


class Watch(Protocol):
    """Is told how far the replays are."""

    def progress(self, number: int, read_bytes: int, total_bytes: int | None) -> None:
        """Job ``number`` has read so much of its input; ``total_bytes`` None = unknown."""

    def finished(self, number: int) -> None:
        """Job ``number`` has come to its end, good or bad."""


def run_job(job: Job, progress: Callable[[int, int | None], None] | None = None) -> Outcome:
    """Replay a job's trace, whatever happens.

    Args:
        job: The job.
        progress: Called with bytes read and bytes in all, after each segment.

    Returns:
        The diagnosis, or the failure: this raises no ``Exception``.
    """
    try:
        if job.version != __version__:
            raise InputError(
                f"{job.name}: kvcanary {job.version} asks, kvcanary {__version__} would replay it",
                hint="install the same version on every machine of the cluster",
            )
        with _inside(job.folder):
            diagnosis, warnings = diagnose_job(job, progress)
    except Exception as error:
        return Outcome(number=job.number, failed=failure(job.name, error))
    return Outcome(number=job.number, diagnosis=diagnosis, warnings=warnings)


def failure(name: str, error: Exception) -> Failed:
    """Any exception as the failure of the input called ``name``."""
    known = as_known(error)
    ours = known is not error
    return Failed(
        path=name,
        # Ours say nothing of the input, which is one of several.
        message=f"{name}: {known.message}" if ours else known.message,
        hint=known.hint,
        exit_code=known.exit_code,
        details="".join(traceback.format_exception(error)) if ours else None,
    )


def diagnose_job(
    job: Job, progress: Callable[[int, int | None], None] | None = None
) -> tuple[Diagnosis, tuple[str, ...]]:
    """Replay a job's trace.

    Returns:
        The diagnosis, and warnings.

    Raises:
        KvCanaryError: The trace or its capacities cannot be used.
    """
    from kvcanary_cli.attribution.diagnose import diagnose_trace
    from kvcanary_cli.attribution.ranks import may_have_peers
    from kvcanary_cli.replay.capacity_limits import with_overrides
    from kvcanary_cli.trace.reader import open_trace

    reader = open_trace(job.name)
    # Beside what is imported from here on, which takes longer.
    reader.start_digest()
    stated, warnings = _stated_capacities(reader, job.config)

    def advance() -> None:
        if progress is not None:
            progress(reader.bytes_read, reader.bytes_total)

    diagnosis = diagnose_trace(
        reader,
        job.options,
        with_overrides(stated, dict(job.overrides)),
        advance,
        ranks=job.several and (job.found_in is None or may_have_peers(reader.header)),
    )
    return diagnosis, warnings


def _stated_capacities(
    reader: TraceReader, config: Config | None
) -> tuple[Capacities, tuple[str, ...]]:
    """Capacities by ``--config``, or by the header, whose faults must not stop the replay."""
    from kvcanary_cli.replay.capacity_limits import NOT_CHECKED
    from kvcanary_cli.serving.trace_capacities import capacities_of_trace

    if config is not None:
        return capacities_of_trace(reader.header, config), ()
    try:
        return capacities_of_trace(reader.header, None), ()
    except InputError as error:
        warning = f"{reader.name}: {error.message}: capacities are not checked (see --capacity)"
        return NOT_CHECKED, (warning,)


@contextlib.contextmanager
def _inside(folder: str) -> Iterator[None]:
    """Work where the command was called, if that folder is there on this machine."""
    if os.path.abspath(folder) == os.getcwd() or not os.path.isdir(folder):
        yield
        return
    with contextlib.chdir(folder):
        yield


def raised(failed: Failed) -> KvCanaryError:
    """The failure as an error again, for a call with this input alone."""
    error = KvCanaryError(failed.message, hint=failed.hint)
    error.exit_code = failed.exit_code
    return error


def run_here(jobs: Sequence[Job], watch: Watch) -> list[Outcome]:
    """Replay one after another in this process."""
    outcomes = []
    for job in jobs:
        outcomes.append(run_job(job, partial(watch.progress, job.number)))
        watch.finished(job.number)
    return outcomes
