"""Replays the traces that a command names: what every such command shares."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcanary_cli.cli.output import Output
from kvcanary_cli.errors import InputError, NothingCheckedError, UsageError

if TYPE_CHECKING:
    from kvcanary_cli.attribution.report import Report
    from kvcanary_cli.replay.options import ReplayOptions
    from kvcanary_cli.replay.result import Capacities, ReplayResult
    from kvcanary_cli.trace.reader import TraceReader


def run_replays(
    paths: list[str],
    options: ReplayOptions,
    out: Output,
    *,
    config: Path | None = None,
    capacity: str | None = None,
) -> Report:
    """Replay each trace in turn and put the results together.

    Raises:
        InputError: A trace or the configuration cannot be used.
        NothingCheckedError: A filter that names nothing in any trace.
    """
    from kvcanary_cli.attribution.diagnose import diagnose_trace
    from kvcanary_cli.attribution.report import Report
    from kvcanary_cli.replay.capacity_limits import parse_capacity_option, with_overrides
    from kvcanary_cli.trace.reader import open_trace

    overrides = {} if capacity is None else parse_capacity_option(capacity)
    _prepare_backend(options.backend, out)
    diagnoses = []
    names = _expand(paths)
    for path in names:
        reader = open_trace(path)
        capacities = with_overrides(_stated_capacities(reader, config, out), overrides)
        with _progress(out, reader) as advance:
            diagnoses.append(
                diagnose_trace(reader, options, capacities, advance, ranks=len(names) > 1)
            )
    _check_filters([diagnosis.replay for diagnosis in diagnoses], options, out)
    return Report.of(diagnoses)


def _stated_capacities(reader: TraceReader, config: Path | None, out: Output) -> Capacities:
    """Capacities by ``--config``, or by the header, whose faults must not stop the replay."""
    from kvcanary_cli.replay.capacity_limits import NOT_CHECKED
    from kvcanary_cli.serving.trace_capacities import capacities_of_trace

    if config is not None:
        return capacities_of_trace(reader.header, str(config))
    try:
        return capacities_of_trace(reader.header, None)
    except InputError as error:
        out.warn(f"{reader.name}: {error.message}: capacities are not checked (see --capacity)")
        return NOT_CHECKED


def _expand(paths: list[str]) -> list[str]:
    """Folders that hold traces, but are none, stand for their traces."""
    from kvcanary_cli.trace.manifest import is_trace_folder

    out: list[str] = []
    for name in paths:
        path = Path(name)
        if not path.is_dir() or is_trace_folder(path):
            out.append(name)
            continue
        inside = sorted(
            str(child)
            for child in path.iterdir()
            if child.name.endswith((".jsonl", ".jsonl.zst", ".pt", ".kvtrace"))
        )
        if not inside:
            raise InputError(
                f"{name}: the folder holds no trace",
                hint="expected a .kvtrace folder, or files .jsonl, .jsonl.zst or .pt in it",
            )
        out += inside
    return out


def _prepare_backend(name: str, out: Output) -> None:
    """Say why the first run takes longer, and refuse a backend that cannot run here."""
    from kvcanary_cli.backends import get_backend

    try:
        backend = get_backend(name)
    except RuntimeError as error:
        raise UsageError(str(error), hint="leave --backend out, or use --backend cpu") from error
    if backend.name == "cpu":
        from kvcanary_cli.backends.cpu.warm import compile_all, is_cached

        if not is_cached():
            out.note("compiling kernels for this machine (first run only) ...")
            compile_all()


@contextmanager
def _progress(out: Output, reader: TraceReader) -> Iterator[Any]:
    """A progress bar on stderr, on a terminal only."""
    if out.quiet or not out.stderr.is_terminal:
        yield None
        return
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )
    from rich.text import Text

    from kvcanary_cli.report.words import safe

    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=out.stderr,
        transient=True,
    ) as bar:
        task = bar.add_task(Text(safe(reader.name)).plain, total=reader.bytes_total)
        yield lambda: bar.update(task, completed=reader.bytes_read)


def _check_filters(results: list[ReplayResult], options: ReplayOptions, out: Output) -> None:
    """A filter that left nothing to check must not look clean."""
    from kvcanary_cli.replay.result import Verdict

    if options.reqs:
        missing = options.reqs - frozenset().union(*(r.request_ids for r in results))
        _refuse_or_warn(
            "--req", sorted(missing), len(options.reqs), "no forward of it was checked", out
        )
    if options.slots:
        unseen = options.slots - frozenset().union(*(r.slots_seen for r in results))
        _refuse_or_warn(
            "--slot",
            [str(slot) for slot in sorted(unseen)],
            len(options.slots),
            "nothing in the trace writes or names it",
            out,
        )
    if options.steps is not None and all(r.verdict == Verdict.NOT_CHECKED for r in results):
        raise NothingCheckedError("--steps: no step of the trace lies in that range")


def _refuse_or_warn(option: str, missing: list[str], asked: int, why: str, out: Output) -> None:
    """Values that name nothing: an error if they are all there is, else a warning."""
    from kvcanary_cli.report.words import safe

    if not missing:
        return
    text = f"{option} {', '.join(map(safe, missing))}: {why}"
    if len(missing) == asked:
        raise NothingCheckedError(text, hint="kvcanary trace info TRACE lists what a trace holds")
    out.warn(text)
