"""``kvcanary inject``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvcanary_cli.cli.output import Output
from kvcanary_cli.errors import UsageError

EPILOG = (
    "Examples:\n\n"
    "  kvcanary inject --list\n\n"
    "  kvcanary inject clean.pt -o bad.jsonl.zst --fault early_free\n\n"
    "  kvcanary inject clean.pt -o bad.pt --fault wrong_token --at 40 --seed 7"
)


def inject(
    trace: Annotated[
        Path | None,
        typer.Argument(
            metavar="TRACE", help="A clean trace: .jsonl, .jsonl.zst, .pt, a .kvtrace folder."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help="Where to; the suffix decides the form. The ground truth is written beside it.",
        ),
    ] = None,
    fault: Annotated[str | None, typer.Option(help="Kind of fault, see --list.")] = None,
    step: Annotated[
        int | None,
        typer.Option("--at", metavar="STEP", help="First step at which the fault shall be seen."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of every choice.")] = 0,
    count: Annotated[int, typer.Option(min=1, help="How many faults of the kind.")] = 1,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the output if it exists.")
    ] = False,
    unchecked: Annotated[
        bool,
        typer.Option(
            "--unchecked",
            help="Do not replay the trace first to see that it is clean (takes as long as replay).",
        ),
    ] = False,
    list_kinds: Annotated[
        bool, typer.Option("--list", help="List the kinds: class, needed records, meaning.")
    ] = False,
) -> None:
    """Put a known fault into a clean trace, and write the ground truth beside it."""
    out = Output()
    if list_kinds:
        from kvcanary_cli.report.selftest_text import kinds_table

        out.print(kinds_table(width=out.width))
        return
    if trace is None or output is None or fault is None:
        raise UsageError(
            "a trace, -o OUTPUT and --fault KIND are needed",
            hint="`kvcanary inject --list` names the kinds",
        )
    from kvcanary_cli.inject.clean_check import check_clean
    from kvcanary_cli.inject.inject import (
        fault_kind,
        inject_faults,
        load_run,
        refuse_existing,
        require_records,
        truth_dict,
        write_injected,
    )

    kind = fault_kind(fault)
    refuse_existing(str(output), overwrite=overwrite)
    run = load_run(str(trace))
    require_records(str(trace), kind, run.records)
    if not unchecked:
        out.note("replaying the trace to see that it is clean (--unchecked skips this) ...")
        check_clean(run, str(trace))
    events, built = inject_faults(run, kind, step=step, seed=seed, count=count, name=str(trace))
    truth = write_injected(
        run,
        events,
        built,
        kind,
        str(output),
        source=str(trace),
        seed=seed,
        overwrite=overwrite,
    )
    for one in built:
        told = truth_dict(kind, one)
        out.print(f"{kind.name}: {told['what']}; first seen at step {told['first_bad_step']}")
    out.print(f"{output}: {len(events)} events; ground truth in {truth}")
    if kind.several_ranks:
        out.note(f"note: replay both ranks: kvcanary replay {trace} {output}")
