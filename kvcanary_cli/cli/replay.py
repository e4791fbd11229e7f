"""``kvcanary replay``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvcanary_cli.cli.output import Output, open_result_file
from kvcanary_cli.errors import (
    EXIT_CLEAN,
    EXIT_FOUND,
    EXIT_NOTHING_CHECKED,
    InputError,
    NothingCheckedError,
    UsageError,
)

if TYPE_CHECKING:
    from kvcanary_cli.attribution.report import Report
    from kvcanary_cli.replay.options import ReplayOptions
    from kvcanary_cli.replay.result import Capacities, ReplayResult
    from kvcanary_cli.trace.header import TraceHeader
    from kvcanary_cli.trace.reader import TraceReader

EPILOG = (
    "Examples:\n\n"
    "  kvcanary replay trace.pt\n\n"
    "  kvcanary replay trace.pt --steps 40:50 --req req-007\n\n"
    "  kvcanary replay rank0.pt rank1.pt --format json -o result.json\n\n"
    "  kvcanary replay --explain-class use_after_free"
)
DEFAULT_MAX_ROWS = 40


class BackendName(StrEnum):
    """Choices of --backend."""

    auto = "auto"
    cpu = "cpu"
    triton = "triton"
    reference = "reference"


class ModeName(StrEnum):
    """Choices of --mode."""

    log = "log"
    raise_ = "raise"


class RealDataName(StrEnum):
    """Choices of --kv-canary-real-data."""

    none = "none"
    partial = "partial"
    all = "all"


class FormatName(StrEnum):
    """Choices of --format."""

    text = "text"
    json = "json"
    jsonl = "jsonl"


def _explain_class(name: str | None) -> None:
    """Print the page of a root-cause class and end."""
    if name is None:
        return
    import difflib

    from kvcanary_cli.attribution.classes import class_pages
    from kvcanary_cli.report.class_page_text import page_lines

    pages = class_pages()
    page = pages.get(name.strip().lower().replace("-", "_"))
    if page is None:
        near = difflib.get_close_matches(name.lower(), pages, n=1)
        raise UsageError(
            f"--explain-class: no class is called {name!r}",
            hint=f"did you mean {near[0]}?" if near else f"one of {', '.join(pages)}",
        )
    out = Output()
    for line in page_lines(page, out.width):
        out.print(line)
    raise typer.Exit


def replay(
    traces: Annotated[
        list[Path],
        typer.Argument(
            metavar="TRACE...",
            help="Traces (.jsonl, .jsonl.zst, .pt, .kvtrace folder, - for stdin), or a folder "
            "of them.",
        ),
    ],
    config: Annotated[
        Path | None,
        typer.Option(help="Server arguments as YAML, for the launch capacities."),
    ] = None,
    capacity: Annotated[
        str | None,
        typer.Option(help="Capacities by hand: verify=N,write_req=N,write_entry=N, any of them."),
    ] = None,
    backend: Annotated[
        BackendName, typer.Option(help="Where plan, verify and write run.")
    ] = BackendName.auto,
    mode: Annotated[
        ModeName, typer.Option(help="log: note and go on; raise: stop where the server would.")
    ] = ModeName.log,
    kv_canary_real_data: Annotated[
        RealDataName,
        typer.Option(
            help="Check recorded KV fingerprints; partial and all check the same recorded values."
        ),
    ] = RealDataName.all,
    sweep_interval: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Sweep the prefix index every N steps, 0 = never. Default: where the trace "
            "recorded a sweep.",
        ),
    ] = None,
    ring_capacity: Annotated[
        int | None,
        typer.Option(min=1, help="Keep only what a ring of N rows would. Default: everything."),
    ] = None,
    steps: Annotated[
        str | None, typer.Option(metavar="A:B", help="Check steps A to B, both included.")
    ] = None,
    req: Annotated[
        list[str] | None, typer.Option(help="Report only this request (repeatable).")
    ] = None,
    slot: Annotated[
        list[int] | None, typer.Option(help="Report only this slot (repeatable).")
    ] = None,
    max_rows: Annotated[
        int, typer.Option(min=0, help="Rows of each table, 0 = all.")
    ] = DEFAULT_MAX_ROWS,
    strict_upstream: Annotated[
        bool,
        typer.Option(
            "--strict-upstream",
            help="Only what the engine's canary would have seen with its default settings.",
        ),
    ] = False,
    output_format: Annotated[
        FormatName, typer.Option("--format", help="text for people, json and jsonl for programs.")
    ] = FormatName.text,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write the result to this file.")
    ] = None,
    log_lines: Annotated[
        bool,
        typer.Option(
            "--log-lines", help="Print violations as the server logs them, one line a launch."
        ),
    ] = False,
    explain_class: Annotated[
        str | None,
        typer.Option(
            metavar="CLASS",
            help="Print what a root-cause class means, shows and needs (no trace is read).",
            callback=_explain_class,
            is_eager=True,
        ),
    ] = None,
    exit_zero: Annotated[
        bool, typer.Option("--exit-zero", help="Exit 0 even if something was found.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("-q", "--quiet", help="Only the summary line; no remarks.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Launch counters and file digest as well.")
    ] = False,
) -> None:
    """Replay recorded forward batches through the canary: what does not fit or match."""
    from kvcanary_cli.replay.options import Mode, RealData, ReplayOptions

    if log_lines and output_format is not FormatName.text:
        raise UsageError("--log-lines is a text form: leave --format out")
    options = ReplayOptions(
        backend=backend.value,
        mode=Mode(mode.value),
        real_data=RealData(kv_canary_real_data.value),
        sweep_interval=sweep_interval,
        ring_capacity=ring_capacity,
        steps=parse_steps(steps),
        reqs=frozenset(req or ()),
        slots=frozenset(slot or ()),
        strict_upstream=strict_upstream,
    )
    file = None if output is None else open_result_file(output)
    try:
        out = Output(file, quiet=quiet)
        report = run_replays(
            [str(path) for path in traces], options, out, config=config, capacity=capacity
        )
        _render(
            report,
            out,
            output_format=output_format,
            log_lines=log_lines,
            quiet=quiet,
            verbose=verbose,
            max_rows=max_rows or None,
        )
    finally:
        if file is not None:
            file.close()
    raise typer.Exit(exit_code(report, exit_zero=exit_zero))


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
    from kvcanary_cli.replay.capacity import parse_capacity_option
    from kvcanary_cli.trace.reader import open_trace

    overrides = {} if capacity is None else parse_capacity_option(capacity)
    arguments = None if config is None else _read_config(config)
    _prepare_backend(options.backend, out)
    diagnoses = []
    for path in _expand(paths):
        reader = open_trace(path)
        capacities = _capacities(reader.header, config, arguments, overrides)
        with _progress(out, reader) as advance:
            diagnoses.append(diagnose_trace(reader, options, capacities, advance))
    _check_filters([diagnosis.replay for diagnosis in diagnoses], options)
    return Report.of(diagnoses)


def exit_code(report: Report, *, exit_zero: bool) -> int:
    """Exit status for this report (docs/output.md)."""
    from kvcanary_cli.replay.result import Verdict

    verdict = report.verdict
    if verdict == Verdict.NOT_CHECKED:
        return EXIT_NOTHING_CHECKED
    found = verdict != Verdict.CLEAN
    return EXIT_FOUND if found and not exit_zero else EXIT_CLEAN


def _render(
    report: Report,
    out: Output,
    *,
    output_format: FormatName,
    log_lines: bool,
    quiet: bool,
    verbose: bool,
    max_rows: int | None,
) -> None:
    from kvcanary_cli.report import log_lines as lines
    from kvcanary_cli.report import replay_json, replay_text

    if output_format is FormatName.json:
        out.write(replay_json.json_parts(report))
        return
    if output_format is FormatName.jsonl:
        out.write(replay_json.jsonl_parts(report))
        return
    if log_lines:
        out.write(lines.log_lines(report))
        return
    if quiet:
        out.print(replay_text.summary_line(report))
        return
    for part in replay_text.render(report, width=out.width, max_rows=max_rows, verbose=verbose):
        out.print(part)


def parse_steps(text: str | None) -> tuple[int | None, int | None] | None:
    """First and last step of ``--steps A:B``; None = no bound.

    Raises:
        UsageError: It is no range.
    """
    if text is None:
        return None
    first, colon, last = text.partition(":")
    if not colon:
        last = first
    bounds = []
    for part in (first.strip(), last.strip()):
        if part and not part.lstrip("-").isdigit():
            raise UsageError(
                f"--steps: expected A:B with whole numbers, found {text!r}",
                hint="for example --steps 40:50 (both included), --steps 40: or --steps 40",
            )
        bounds.append(int(part) if part else None)
    if None not in bounds and bounds[0] > bounds[1]:  # type: ignore[operator]
        raise UsageError(f"--steps: {text} ends before it begins")
    return bounds[0], bounds[1]


def _expand(paths: list[str]) -> list[str]:
    """Folders that hold traces, but are none, stand for their traces."""
    out: list[str] = []
    for name in paths:
        path = Path(name)
        if not path.is_dir() or (path / "manifest.json").exists():
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


def _read_config(path: Path) -> dict[str, Any]:
    import yaml

    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(value, dict):
        raise InputError(
            f"{path}: expected server arguments as 'name: value' lines, "
            f"found {type(value).__name__}"
        )
    return value


def _capacities(
    header: TraceHeader,
    config: Path | None,
    arguments: dict[str, Any] | None,
    overrides: dict[str, int],
) -> Capacities:
    from kvcanary_cli.replay.capacity import NOT_CHECKED, from_serving_args, with_overrides

    base = NOT_CHECKED
    if config is not None and arguments is not None:
        base = from_serving_args(arguments, header, source=f"config: {config}", where=str(config))
        if not base.known:
            raise InputError(
                f"{config}: holds none of the arguments that the capacities follow from",
                hint="for example max_running_requests, cuda_graph_max_bs, max_prefill_tokens, "
                "chunked_prefill_size",
            )
    elif header.serving_args is not None:
        base = from_serving_args(
            header.serving_args, header, source="serving_args", where="the trace's serving_args"
        )
    return with_overrides(base, overrides)


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


def _check_filters(results: list[ReplayResult], options: ReplayOptions) -> None:
    """A filter that left nothing to check must not look clean."""
    from kvcanary_cli.replay.result import Verdict

    if options.reqs:
        missing = options.reqs - frozenset().union(*(r.request_ids for r in results))
        if missing == options.reqs:
            raise NothingCheckedError(
                f"--req {', '.join(sorted(missing))}: no forward of that request was checked",
                hint="kvcanary trace info TRACE lists what a trace holds",
            )
    if options.steps is not None and all(r.verdict == Verdict.NOT_CHECKED for r in results):
        raise NothingCheckedError("--steps: no step of the trace lies in that range")
