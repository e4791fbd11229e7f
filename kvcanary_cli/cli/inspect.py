"""``kvcanary inspect``: what a trace says of one slot, request, step, row or event."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvcanary_cli.cli.common_options import FormatName, OutputFile, OutputFormat
from kvcanary_cli.cli.output import result_output
from kvcanary_cli.errors import UsageError

if TYPE_CHECKING:
    from kvcanary_cli.attribution.inspect_question import Question

EPILOG = (
    "Examples:\n\n"
    "  kvcanary inspect trace.pt --slot 5\n\n"
    "  kvcanary inspect trace.pt --req req-007 --format json\n\n"
    "  kvcanary inspect trace.pt --step 12\n\n"
    "  kvcanary inspect trace.pt --who-wrote 5@12"
)
DEFAULT_MAX_ROWS = 200
# int() knows more digits, and more of them, than a slot or a step has.
_SLOT_AT_STEP = re.compile(r"(-?[0-9]{1,19})@(-?[0-9]{1,19})")


class PoolName(StrEnum):
    """Choices of --pool."""

    full = "full"
    swa = "swa"
    draft = "draft"


def inspect(
    trace: Annotated[
        str,
        typer.Argument(
            metavar="TRACE",
            help="A trace (.jsonl, .jsonl.zst, .pt, .kvtrace folder, URL, - for stdin).",
        ),
    ],
    slot: Annotated[
        int | None, typer.Option(help="A slot's whole life: owners, writes, reads, copies.")
    ] = None,
    req: Annotated[
        str | None, typer.Option(help="A request's rows, steps, slots and events.")
    ] = None,
    step: Annotated[
        int | None, typer.Option(help="A step's batch: what each row read and wrote.")
    ] = None,
    row: Annotated[
        int | None, typer.Option(help="A request table row: who ran in it, what set its cells.")
    ] = None,
    at: Annotated[
        int | None,
        typer.Option(metavar="EVENT", help="The pool right after an event: owners and rows."),
    ] = None,
    who_wrote: Annotated[
        str | None,
        typer.Option(metavar="SLOT@STEP", help="Who wrote what a slot held at a step."),
    ] = None,
    pool: Annotated[
        PoolName, typer.Option(help="Which pool --slot and --who-wrote mean.")
    ] = PoolName.full,
    max_rows: Annotated[
        int, typer.Option(min=0, help="Lines of the table, 0 = all.")
    ] = DEFAULT_MAX_ROWS,
    output_format: OutputFormat = FormatName.text,
    output: OutputFile = None,
) -> None:
    """Ask a trace one question: a slot, a request, a step, a row, an event."""
    asked = {
        name: value
        for name, value in (
            ("slot", slot),
            ("req", req),
            ("step", step),
            ("row", row),
            ("at", at),
            ("who_wrote", who_wrote),
        )
        if value is not None
    }
    if len(asked) != 1:
        found = ", ".join(f"--{name.replace('_', '-')}" for name in asked) or "none"
        raise UsageError(
            "inspect answers one question: expected one of --slot, --req, --step, --row, --at, "
            f"--who-wrote, found {found}",
            hint="for example kvcanary inspect TRACE --slot 5",
        )
    ((name, value),) = asked.items()
    if pool is not PoolName.full and name not in ("slot", "who_wrote"):
        raise UsageError("--pool goes with --slot and --who-wrote")
    question = _question(name, value, pool.value)

    from kvcanary_cli.attribution.inspect_pass import ask
    from kvcanary_cli.report import inspect_json, inspect_text
    from kvcanary_cli.trace.reader import open_trace

    reader = open_trace(trace)
    ask(reader, question)
    answer = question.answer()
    with result_output(output) as out:
        if output_format is FormatName.json:
            lost = reader.notes.lost_events
            out.write(inspect_json.json_parts(answer, asked, reader.name, lost))
            return
        for note in reader.notes.messages():
            out.warn(note)
        for part in inspect_text.render(answer, width=out.width, max_rows=max_rows or None):
            out.print(part)


def _question(name: str, value: Any, pool: str) -> Question:
    from kvcanary_cli.attribution.inspect_pool import PoolAt
    from kvcanary_cli.attribution.inspect_req import RequestLife, RowLife, StepTable
    from kvcanary_cli.attribution.inspect_slot import SlotLife, WhoWrote

    if name == "who_wrote":
        slot, step = _slot_at_step(value)
        return WhoWrote(slot, step, pool)
    if name == "slot":
        return SlotLife(value, pool)
    makers: dict[str, Any] = {"req": RequestLife, "step": StepTable, "row": RowLife, "at": PoolAt}
    question: Question = makers[name](value)
    return question


def _slot_at_step(text: str) -> tuple[int, int]:
    """Slot and step of ``--who-wrote``.

    Raises:
        UsageError: It is not SLOT@STEP.
    """
    found = _SLOT_AT_STEP.fullmatch(text)
    if found is None:
        raise UsageError(
            f"--who-wrote: expected SLOT@STEP with whole numbers, found {text!r}",
            hint="for example --who-wrote 5@12",
        )
    return int(found[1]), int(found[2])
