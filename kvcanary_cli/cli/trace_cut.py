"""``kvcanary trace cut``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvcanary_cli.cli.output import Output
from kvcanary_cli.cli.steps import parse_steps
from kvcanary_cli.errors import UsageError

if TYPE_CHECKING:
    from kvcanary_cli.cut.make import Cut

CUT_EPILOG = (
    "Examples:\n\n"
    "  kvcanary trace cut trace.pt -o bug.jsonl.zst --steps 38:45\n\n"
    "  kvcanary trace cut trace.pt -o bug.jsonl --steps 38:45 --req req-007\n\n"
    "  kvcanary trace cut recording.kvtrace -o - --steps 38: | kvcanary replay -"
)
_SHOWN_REQUESTS = 8


def cut(
    trace: Annotated[
        Path,
        typer.Argument(
            help="The trace: .jsonl, .jsonl.zst, .pt, a .kvtrace folder, or - for JSONL on stdin."
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "-o",
            "--output",
            help="Where to; the suffix decides the form (.jsonl, .jsonl.zst, .pt, .kvtrace), "
            "- is JSONL on stdout.",
        ),
    ],
    steps: Annotated[
        str, typer.Option(metavar="A:B", help="Keep steps A to B, both included; either may lack.")
    ],
    req: Annotated[
        list[str] | None,
        typer.Option(
            help="Keep only this request, and those that write what it reads (repeatable). "
            "Capacity checks and sweeps are not kept then."
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the output if it exists.")
    ] = False,
) -> None:
    """Cut steps out of a trace, with the state that they need to show the same damage."""
    from kvcanary_cli.cut.make import cut_trace

    wanted = parse_steps(steps)
    if wanted is None or wanted == (None, None):
        raise UsageError("--steps: expected a first or a last step", hint="for example 40:50")
    out = Output()
    result = cut_trace(trace, output, steps=wanted, reqs=req or (), overwrite=overwrite)
    for note in result.notes:
        out.warn(note)
    say = out.note if result.target == "-" else out.print
    say(_line(result))
    if result.requests is not None:
        say(_request_line(result))
        out.note("note: a cut for requests keeps neither capacity checks nor sweeps")


def _line(result: Cut) -> str:
    from kvcanary_cli.report.trace_text import bytes_text
    from kvcanary_cli.report.words import count

    size = "" if result.file_bytes is None else f", {bytes_text(result.file_bytes)}"
    return (
        f"{result.target}: {count(result.steps, 'step')}, {count(result.events, 'event')} "
        f"behind {count(result.state_events, 'event')} of state{size}"
    )


def _request_line(result: Cut) -> str:
    from kvcanary_cli.report.words import count
    from kvcanary_cli.trace.fields import printable

    assert result.requests is not None
    shown = ", ".join(printable(name) for name in result.requests[:_SHOWN_REQUESTS])
    more = ", ..." if len(result.requests) > _SHOWN_REQUESTS else ""
    return f"kept {count(len(result.requests), 'request')}: {shown}{more}"
