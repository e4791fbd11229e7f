"""``kvcanary trace``: look at, check and convert traces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvcanary_cli.cli.common_options import FormatName, OutputFormat
from kvcanary_cli.cli.output import Output
from kvcanary_cli.cli.trace_cut import CUT_EPILOG, cut
from kvcanary_cli.errors import KvCanaryError, NothingCheckedError

if TYPE_CHECKING:
    from kvcanary_cli.trace.info import TraceInfo

trace_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Look at, check and convert traces.",
    epilog=(
        "Examples:\n\n"
        "  kvcanary trace info trace.pt\n\n"
        "  kvcanary trace validate rank*.jsonl.zst\n\n"
        "  kvcanary trace convert trace.pt trace.jsonl"
    ),
)

_FORMS = ".jsonl, .jsonl.zst, .pt, a .kvtrace folder, a URL of one, or - for JSONL on stdin"


@trace_app.command(
    epilog=(
        "Examples:\n\n"
        "  kvcanary trace info trace.pt\n\n"
        "  kvcanary trace info run.kvtrace --format json\n\n"
        "  zstd -dc trace.jsonl.zst | kvcanary trace info -"
    )
)
def info(
    trace: Annotated[
        str, typer.Argument(help=f"The trace: {_FORMS}; or a folder of them, as record makes.")
    ],
    format_: OutputFormat = FormatName.text,
) -> None:
    """Say what a trace holds: engine, events, steps, requests, pool use, what is missing."""
    from kvcanary_cli.fleet.inputs import expand
    from kvcanary_cli.report.trace_json import info_object, infos_object
    from kvcanary_cli.report.trace_text import info_lines, infos_line
    from kvcanary_cli.trace.info import collect_info
    from kvcanary_cli.trace.reader import open_trace

    out = Output()
    results: list[TraceInfo] = []
    failures: list[KvCanaryError] = []
    inputs = expand([trace])
    for one in inputs:
        try:
            if one.problem is not None:
                raise one.problem
            result = collect_info(open_trace(one.name))
        except KvCanaryError as error:
            failures.append(error)
            continue
        if format_ is FormatName.text:
            if results:
                out.print("")
            for line in info_lines(result):
                out.print(line)
            for note in result.notes.messages():
                out.warn(note if len(inputs) == 1 else f"{one.name}: {note}")
        results.append(result)
    if format_ is FormatName.json and results:
        content = info_object(results[0]) if len(inputs) == 1 else infos_object(results)
        out.write([json.dumps(content, indent=2), "\n"])
    elif len(results) > 1:
        out.print("")
        out.print(infos_line(results))
    for failure in failures[:-1]:
        out.error(failure)
    if failures:
        raise failures[-1]


@trace_app.command(
    epilog=(
        "Examples:\n\n"
        "  kvcanary trace validate trace.pt\n\n"
        "  kvcanary trace validate rank0.jsonl rank1.jsonl --format json\n\n"
        "Exit codes: 0 all traces can be used, 4 one cannot, 5 they hold no events."
    )
)
def validate(
    traces: Annotated[list[str], typer.Argument(help=f"The traces, each {_FORMS}.")],
    format_: OutputFormat = FormatName.text,
) -> None:
    """Check that traces can be used: whole, well-formed, and in line with their own headers."""
    from kvcanary_cli.report.trace_json import validation_object
    from kvcanary_cli.report.trace_text import validation_line
    from kvcanary_cli.trace.errors import TraceError
    from kvcanary_cli.trace.info import validate as validate_trace
    from kvcanary_cli.trace.reader import open_trace

    out = Output()
    results, failures = [], []
    for trace in traces:
        try:
            result = validate_trace(open_trace(trace))
        except TraceError as error:
            failures.append(error)
            continue
        results.append(result)
        if format_ is FormatName.text:
            if result.events:
                out.print(validation_line(result))
            for note in result.notes:
                out.warn(f"{result.path}: {note}")
    if format_ is FormatName.json and not failures:
        out.write([json.dumps(validation_object(results), indent=2), "\n"])
    for failure in failures[:-1]:
        out.error(failure)
    if failures:
        raise failures[-1]
    empty = [result.path for result in results if not result.events]
    if empty:
        raise NothingCheckedError(
            f"{', '.join(empty)}: no events: nothing was checked",
            hint="was the recorder on while the server ran?",
        )


@trace_app.command(
    epilog=(
        "Examples:\n\n"
        "  kvcanary trace convert trace.jsonl trace.pt\n\n"
        "  kvcanary trace convert recording.kvtrace recording.jsonl.zst\n\n"
        "  kvcanary trace convert trace.pt - | head -n 3"
    )
)
def convert(
    source: Annotated[str, typer.Argument(metavar="IN", help=f"The trace: {_FORMS}.")],
    target: Annotated[
        Path,
        typer.Argument(
            metavar="OUT",
            help="Where to; the suffix decides the form (.jsonl, .jsonl.zst, .pt, .kvtrace), "
            "- is JSONL on stdout.",
        ),
    ],
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace OUT if it exists.")
    ] = False,
) -> None:
    """Convert a trace to another form without loss."""
    from kvcanary_cli.report.trace_text import conversion_line
    from kvcanary_cli.trace.convert import convert as convert_trace

    out = Output()
    result = convert_trace(source, target, overwrite=overwrite)
    for note in result.notes:
        out.warn(note)
    if result.target == "-":
        out.note(conversion_line(result))
    else:
        out.print(conversion_line(result))


trace_app.command("cut", epilog=CUT_EPILOG)(cut)
