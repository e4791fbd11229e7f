"""Replays the traces that a command names: what every such command shares."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kvcanary_cli.cli.output import Output
from kvcanary_cli.cli.replay_progress import progress_of_many, progress_of_one
from kvcanary_cli.errors import NothingCheckedError, UsageError

if TYPE_CHECKING:
    from kvcanary_cli.attribution.diagnose import Diagnosis
    from kvcanary_cli.attribution.report import Failed, Report
    from kvcanary_cli.fleet.inputs import Input
    from kvcanary_cli.fleet.job import Job, Outcome
    from kvcanary_cli.replay.options import ReplayOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where several traces are replayed.

    Attributes:
        jobs: Processes, or tasks of the cluster, at a time; 0 = one a core, None = not stated.
        cluster: Address of a Ray cluster, None = this machine.
    """

    jobs: int | None = None
    cluster: str | None = None


HERE = Place()


def run_replays(
    names: list[str],
    options: ReplayOptions,
    out: Output,
    *,
    config: Path | None = None,
    capacity: str | None = None,
    place: Place = HERE,
) -> Report:
    """Replay traces and put the results together; of several, those that fail are listed in it.

    Raises:
        InputError: The only trace, or the configuration, cannot be used.
        NothingCheckedError: A filter that names nothing in any trace, and all were replayed.
        UsageError: The place cannot be had, or a pipe is to be replayed there.
    """
    from kvcanary_cli.attribution.report import Report
    from kvcanary_cli.fleet.inputs import expand, refuse_pipes

    inputs = expand(names)
    if len(inputs) == 1 and inputs[0].problem is not None:
        raise inputs[0].problem
    if place.cluster is not None or (len(inputs) > 1 and place.jobs not in (None, 1)):
        refuse_pipes(inputs)
    jobs = _jobs(inputs, options, config, capacity)
    with _telling_of_compilation(out):
        if len(inputs) == 1 and place.cluster is None:
            outcomes = [_run_alone(jobs[0], out)]
        else:
            outcomes = _run_many(jobs, place, options, out)
    for outcome in outcomes:
        for warning in outcome.warnings:
            out.warn(warning)
    failed = _failures(inputs, outcomes)
    diagnoses = [o.diagnosis for o in outcomes if o.diagnosis is not None]
    if len(inputs) == 1 and failed:
        from kvcanary_cli.fleet.job import raised

        raise raised(failed[0])
    if diagnoses:
        # What a filter names may stand in a trace that failed, and that failure must be told.
        _check_filters(diagnoses, options, out, refuse=not failed)
    found_in = [inputs[o.number].found_in for o in outcomes if o.diagnosis is not None]
    return Report.of(diagnoses, found_in=found_in, failed=failed)


def _jobs(
    inputs: list[Input], options: ReplayOptions, config: Path | None, capacity: str | None
) -> list[Job]:
    from kvcanary_cli.fleet.job import Job
    from kvcanary_cli.replay.capacity_limits import parse_capacity_option
    from kvcanary_cli.serving.trace_capacities import read_config

    overrides = {} if capacity is None else parse_capacity_option(capacity)
    stated = None if config is None else read_config(str(config))
    return [
        Job(
            number=number,
            name=one.name,
            found_in=one.found_in,
            several=len(inputs) > 1,
            options=options,
            config=stated,
            overrides=overrides,
            folder=os.getcwd(),
        )
        for number, one in enumerate(inputs)
        if one.problem is None
    ]


class _Notes(logging.Handler):
    """Puts log records out as remarks."""

    def __init__(self, out: Output) -> None:
        super().__init__()
        self._out = out

    def emit(self, record: logging.LogRecord) -> None:
        self._out.note(record.getMessage())


@contextmanager
def _telling_of_compilation(out: Output) -> Iterator[None]:
    """Say when a replay waits for a compiler: only the trace shows which kernels it needs."""
    log, handler = logging.getLogger("kvcanary.backends"), _Notes(out)
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.setLevel(level)
        log.removeHandler(handler)


def _run_alone(job: Job, out: Output) -> Outcome:
    """The only trace, in this process; what stops it ends the command."""
    from kvcanary_cli.fleet.job import Outcome, diagnose_job

    prepare_backend(job.options, out)
    with progress_of_one(out, job.name) as progress:
        diagnosis, warnings = diagnose_job(job, progress)
    return Outcome(number=job.number, diagnosis=diagnosis, warnings=warnings)


def _run_many(jobs: list[Job], place: Place, options: ReplayOptions, out: Output) -> list[Outcome]:
    from kvcanary_cli.fleet.job import run_here

    size = os.cpu_count() or 1 if place.jobs == 0 else place.jobs
    if place.cluster is not None:
        from kvcanary_cli.fleet.cluster import run_on_cluster

        # The machines of the cluster have backends of their own.
        with progress_of_many(out, [job.number for job in jobs]) as watch:
            return run_on_cluster(jobs, place.cluster, None if not place.jobs else size, watch)
    prepare_backend(options, out)
    with progress_of_many(out, [job.number for job in jobs]) as watch:
        if size is None or size == 1 or len(jobs) < 2:
            return run_here(jobs, watch)
        from kvcanary_cli.fleet.processes import run_in_processes

        return run_in_processes(jobs, size, watch)


def _failures(inputs: list[Input], outcomes: list[Outcome]) -> list[Failed]:
    """What was not checked, in the order of the inputs."""
    from kvcanary_cli.fleet.job import failure

    found = {o.number: o.failed for o in outcomes if o.failed is not None}
    for number, one in enumerate(inputs):
        if one.problem is not None:
            found[number] = failure(one.name, one.problem)
    return [found[number] for number in sorted(found)]


def prepare_backend(options: ReplayOptions, out: Output) -> None:
    """Say why the first run takes longer, and refuse a backend that cannot run here."""
    from kvcanary_cli.backends import get_backend

    try:
        backend = get_backend(options.backend)
    except RuntimeError as error:
        raise UsageError(str(error), hint="leave --backend out, or use --backend cpu") from error
    options.refuse_verify(backend.name)
    if backend.name == "cpu":
        from kvcanary_cli.backends.cpu.warm import compile_all, is_cached

        if not is_cached():
            out.note("compiling kernels for this machine (first run only) ...")
            compile_all()


def _check_filters(
    diagnoses: list[Diagnosis], options: ReplayOptions, out: Output, *, refuse: bool
) -> None:
    """A filter that left nothing to check must not look clean.

    Args:
        diagnoses: Of the traces that were replayed.
        options: The filters.
        out: Is warned of values that name nothing.
        refuse: Whether it is an error if none of a filter's values names anything.

    Raises:
        NothingCheckedError: It is, and so it was.
    """
    from kvcanary_cli.replay.result import Verdict
    from kvcanary_cli.report.words import safe

    results = [diagnosis.replay for diagnosis in diagnoses]
    # What an alloc or a free did wrong is found without a forward, and is of the slots and
    # requests that were asked for. Of the steps it need not be: it passes with any.
    is_found = any(diagnosis.findings or diagnosis.ownership for diagnosis in diagnoses)
    empty: list[tuple[bool, str]] = []
    if options.reqs:
        missing = options.reqs - frozenset().union(*(r.request_ids for r in results))
        names = ", ".join(map(safe, sorted(missing)))
        if missing and not (is_found and missing == options.reqs):
            text = f"--req {names}: no forward of it was checked"
            empty.append((missing == options.reqs, text))
    if options.slots:
        unseen = options.slots - frozenset().union(*(r.slots_seen for r in results))
        numbers = ", ".join(map(str, sorted(unseen)))
        if unseen and not (is_found and unseen == options.slots):
            text = f"--slot {numbers}: nothing in the trace writes or names it"
            empty.append((unseen == options.slots, text))
    if options.steps is not None and all(r.verdict == Verdict.NOT_CHECKED for r in results):
        empty.append((True, "--steps: no step of the trace lies in that range"))
    for is_all, text in empty:
        if is_all and refuse:
            hint = "kvcanary trace info TRACE lists what a trace holds"
            raise NothingCheckedError(text, hint=hint)
        out.warn(text)
