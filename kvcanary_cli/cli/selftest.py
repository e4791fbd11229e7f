"""``kvcanary selftest``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvcanary_cli.cli.common_options import (
    Backend,
    BackendName,
    FormatName,
    OutputFile,
    OutputFormat,
)
from kvcanary_cli.cli.output import result_output
from kvcanary_cli.cli.replay_run import prepare_backend
from kvcanary_cli.errors import EXIT_CLEAN, EXIT_FOUND, EXIT_INTERNAL

EPILOG = (
    "Examples:\n\n"
    "  kvcanary selftest clean.pt\n\n"
    "  kvcanary selftest clean.pt --seeds 50 --kinds early_free,late_write\n\n"
    "  kvcanary selftest clean.pt --format json -o matrix.json"
)


def selftest(
    trace: Annotated[
        Path,
        typer.Argument(
            metavar="TRACE", help="A clean trace: .jsonl, .jsonl.zst, .pt, a .kvtrace folder."
        ),
    ],
    seeds: Annotated[int, typer.Option(min=1, help="Faults of each kind, all different.")] = 10,
    kinds: Annotated[
        str | None, typer.Option(metavar="KIND,...", help="Only these kinds of faults.")
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Processes at once.  [default: one a core]"),
    ] = None,
    backend: Backend = BackendName.auto,
    output_format: OutputFormat = FormatName.text,
    output: OutputFile = None,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="No progress on stderr.")] = False,
) -> None:
    """Put every kind of fault into a clean trace, many times, and count what is found."""
    from kvcanary_cli.inject.inject import fault_kind, load_run
    from kvcanary_cli.replay.options import ReplayOptions
    from kvcanary_cli.report.selftest_text import matrix_json, render_matrix
    from kvcanary_cli.selftest.matrix import selftest as run_selftest

    wanted = [name.strip() for name in (kinds or "").split(",") if name.strip()]
    for name in wanted:
        fault_kind(name, option="--kinds")
    with result_output(output, quiet=quiet) as out:
        prepare_backend(ReplayOptions(backend=backend.value), out)
        matrix = run_selftest(
            load_run(str(trace)),
            name=str(trace),
            seeds=seeds,
            kinds=wanted,
            backend=backend.value,
            jobs=jobs,
            progress=out.note,
        )
        if output_format is FormatName.json:
            out.write(matrix_json(matrix))
        else:
            for part in render_matrix(matrix, width=out.width):
                out.print(part)
    if matrix.lost:
        raise typer.Exit(EXIT_INTERNAL)
    raise typer.Exit(EXIT_FOUND if matrix.missed else EXIT_CLEAN)
