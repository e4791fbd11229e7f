"""``kvcanary replay``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvcanary_cli.cli.common_options import Backend, BackendName, OutputFile
from kvcanary_cli.cli.output import Output, result_output
from kvcanary_cli.cli.replay_run import Place, run_replays
from kvcanary_cli.cli.steps import parse_steps
from kvcanary_cli.errors import (
    EXIT_CLEAN,
    EXIT_FOUND,
    EXIT_INPUT,
    EXIT_INTERNAL,
    EXIT_NOTHING_CHECKED,
    EXIT_USAGE,
    UsageError,
)

if TYPE_CHECKING:
    from kvcanary_cli.attribution.report import Report

EPILOG = (
    "Examples:\n\n"
    "  kvcanary replay trace.pt\n\n"
    "  kvcanary replay trace.pt --steps 40:50 --req req-007\n\n"
    "  kvcanary replay rank0.pt rank1.pt --format json -o result.json\n\n"
    "  kvcanary replay recordings/ --jobs 8\n\n"
    "  kvcanary replay --explain-class use_after_free"
)
DEFAULT_MAX_ROWS = 40
#: Of several inputs that failed, which one's exit code is the call's.
_GRAVEST_FIRST = (EXIT_INTERNAL, EXIT_INPUT, EXIT_USAGE, EXIT_NOTHING_CHECKED)


class ModeName(StrEnum):
    """Choices of --mode."""

    log = "log"
    raise_ = "raise"


class VerifyName(StrEnum):
    """Choices of --verify."""

    auto = "auto"
    full = "full"
    incremental = "incremental"


class RealDataName(StrEnum):
    """Choices of --kv-canary-real-data."""

    none = "none"
    partial = "partial"
    all = "all"


class ReplayFormat(StrEnum):
    """Choices of --format."""

    text = "text"
    json = "json"
    jsonl = "jsonl"
    sarif = "sarif"
    junit = "junit"


def _explain_class(context: typer.Context, name: str | None) -> None:
    """Print the page of a root-cause class and end."""
    if name is None:
        return
    import difflib

    wanted = context.params.get("output_format", ReplayFormat.text)
    if wanted not in (ReplayFormat.text, ReplayFormat.json):
        raise UsageError(
            f"--explain-class: no --format {wanted}", hint="--format text and json have the page"
        )

    from kvcanary_cli.attribution.classes import class_pages
    from kvcanary_cli.report import class_page_json
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
    if wanted is ReplayFormat.json:
        out.write(class_page_json.json_parts(page))
        raise typer.Exit
    for line in page_lines(page, out.width):
        out.print(line)
    raise typer.Exit


def replay(
    traces: Annotated[
        list[str],
        typer.Argument(
            metavar="TRACE",
            help="Traces (.jsonl, .jsonl.zst, .pt, .kvtrace folder, - for stdin), folders of "
            "them, or URLs of either (s3://, gs://, hf://, ...).",
        ),
    ],
    config: Annotated[
        Path | None,
        typer.Option(help="What the server was told (YAML, script, log, ...), for the capacities."),
    ] = None,
    capacity: Annotated[
        str | None,
        typer.Option(help="Capacities by hand: verify=N,write_req=N,write_entry=N, any of them."),
    ] = None,
    backend: Backend = BackendName.auto,
    mode: Annotated[
        ModeName, typer.Option(help="log: note and go on; raise: stop where the server would.")
    ] = ModeName.log,
    verify: Annotated[
        VerifyName,
        typer.Option(
            help="full: check every prefix cell in every forward; incremental: only what changed, "
            "with the same results. auto: incremental on the cpu backend."
        ),
    ] = VerifyName.auto,
    kv_canary_real_data: Annotated[
        RealDataName,
        typer.Option(
            help="Check recorded KV fingerprints; partial and all check the same recorded values."
        ),
    ] = RealDataName.all,
    v_half: Annotated[
        bool,
        typer.Option(
            "--v-half", help="Check the V half too, where its fingerprints were recorded."
        ),
    ] = False,
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
        ReplayFormat,
        typer.Option("--format", help="text for people, the others for programs.", is_eager=True),
    ] = ReplayFormat.text,
    output: OutputFile = None,
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
            # Behind --format, which is eager, and before missing traces are missed.
            callback=_explain_class,
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            "-j",
            "--jobs",
            min=0,
            metavar="N",
            help="Replay several traces in N processes, 0 = one a core; with --cluster: N tasks "
            "at a time.",
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Replay on a Ray cluster: HOST:PORT, ray://HOST:PORT, auto, or local.",
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
    from kvcanary_cli.fleet.job import raised
    from kvcanary_cli.replay.options import Mode, RealData, ReplayOptions, Verify

    if log_lines and output_format is not ReplayFormat.text:
        raise UsageError("--log-lines is a text form: leave --format out")
    options = ReplayOptions(
        backend=backend.value,
        mode=Mode(mode.value),
        verify=Verify(verify.value),
        real_data=RealData(kv_canary_real_data.value),
        sweep_interval=sweep_interval,
        ring_capacity=ring_capacity,
        steps=parse_steps(steps),
        reqs=frozenset(req or ()),
        slots=frozenset(slot or ()),
        strict_upstream=strict_upstream,
        v_half=v_half,
    )
    options.refuse_verify(options.backend)
    with result_output(output, quiet=quiet) as out:
        report = run_replays(
            traces,
            options,
            out,
            config=config,
            capacity=capacity,
            place=Place(jobs=jobs, cluster=cluster),
        )
        for failed in report.failed:
            out.error(raised(failed))
        for note in report.notes:
            out.warn(note)
        _render(
            report,
            out,
            code := exit_code(report, exit_zero=exit_zero),
            output_format=output_format,
            log_lines=log_lines,
            quiet=quiet,
            verbose=verbose,
            max_rows=max_rows or None,
        )
    raise typer.Exit(code)


def exit_code(report: Report, *, exit_zero: bool) -> int:
    """Exit status for this report (docs/output.md)."""
    from kvcanary_cli.replay.result import Verdict

    verdict = report.verdict
    if verdict in (Verdict.CORRUPT, Verdict.CAPACITY) and not exit_zero:
        return EXIT_FOUND
    if report.failed:
        codes = {failed.exit_code for failed in report.failed}
        return next(code for code in _GRAVEST_FIRST if code in codes)
    return EXIT_NOTHING_CHECKED if verdict == Verdict.NOT_CHECKED else EXIT_CLEAN


def _render(
    report: Report,
    out: Output,
    code: int,
    *,
    output_format: ReplayFormat,
    log_lines: bool,
    quiet: bool,
    verbose: bool,
    max_rows: int | None,
) -> None:
    from kvcanary_cli.report import log_lines as lines
    from kvcanary_cli.report import replay_json, replay_junit, replay_sarif, replay_text
    from kvcanary_cli.report.closing_line import closing_line
    from kvcanary_cli.report.words import count

    if output_format is ReplayFormat.json:
        out.write(replay_json.json_parts(report))
        return
    if output_format is ReplayFormat.jsonl:
        out.write(replay_json.jsonl_parts(report))
        return
    if output_format is ReplayFormat.sarif:
        out.write(replay_sarif.sarif_parts(report, code))
        return
    if output_format is ReplayFormat.junit:
        out.write(replay_junit.junit_parts(report))
        return
    if log_lines:
        out.write(lines.log_lines(report))
        silent = sum(not finding.violations for finding in report.findings)
        if silent:
            verb = "shows" if silent == 1 else "show"
            out.note(
                f"{count(silent, 'finding')} {verb} no violation and so no line: "
                "leave out --log-lines"
            )
        return
    if quiet:
        out.print(closing_line(report))
        return
    for part in replay_text.render(report, width=out.width, max_rows=max_rows, verbose=verbose):
        out.print(part)
