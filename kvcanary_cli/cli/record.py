"""``kvcanary record``: run a server and write traces of what it does to its KV cache."""

from __future__ import annotations

import os
import re
from enum import StrEnum
from typing import Annotated

import typer

from kvcanary_cli.cli.output import Output
from kvcanary_cli.cli.serving_options import AFTER_DASHES, LaunchCommand
from kvcanary_cli.errors import UsageError

EPILOG = (
    "Examples:\n\n"
    "  kvcanary record -o run.kvtrace -- python -m sglang.launch_server --model-path M\n\n"
    "  kvcanary record -o run.kvtrace --kv-hash partial --ring 2GiB -- python serve.py\n\n"
    "Signals go to the server, and its exit status is this command's."
)
_SIZE = re.compile(r"(\d+)\s*([KMGT]?)(i?)B?", re.IGNORECASE)


class TokenMode(StrEnum):
    """How token ids are recorded."""

    salted = "salted"
    raw = "raw"
    absent = "absent"


class HashMode(StrEnum):
    """How much of a slot's KV bytes is fingerprinted."""

    none = "none"
    partial = "partial"
    all = "all"


class RecordCommand(LaunchCommand):
    """A command whose ``--`` precedes the server's own command."""


def _bytes(text: str | None, option: str) -> int:
    if text is None:
        return 0
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(
            f"{option} must be a size such as 500MB or 2GiB, found '{text}'",
        )
    number, unit, binary = match.groups()
    factor: int = (1024 if binary else 1000) ** " KMGT".index(unit.upper() or " ")
    return int(number) * factor


def record(
    ctx: typer.Context,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="NAME.kvtrace", help="Folder for the traces.")
    ],
    tokens: Annotated[
        TokenMode,
        typer.Option(
            "--tokens",
            help="salted: keyed hashes; equal tokens stay equal, the key is in NAME.kvtrace.key.",
        ),
    ] = TokenMode.salted,
    kv_hash: Annotated[
        HashMode,
        typer.Option("--kv-hash", help="Fingerprint KV bytes: 16 bytes of a slot, or all."),
    ] = HashMode.none,
    kv_hash_every: Annotated[
        int,
        typer.Option(
            "--kv-hash-every", metavar="N", help="Fingerprint what is read in every N-th forward."
        ),
    ] = 1,
    max_bytes: Annotated[
        str | None,
        typer.Option("--max-bytes", metavar="SIZE", help="Stop when a rank's trace is this large."),
    ] = None,
    ring: Annotated[
        str | None,
        typer.Option("--ring", metavar="SIZE", help="Keep about the last SIZE of each rank."),
    ] = None,
    start_after: Annotated[
        int,
        typer.Option("--start-after", metavar="N", help="Let N forwards of each rank pass first."),
    ] = 0,
) -> None:
    """Run the server behind -- unchanged, and record what it does to its KV cache."""
    from kvcanary_cli.record.launch import run
    from kvcanary_cli.record.options import RecordOptions

    command: list[str] = ctx.meta.get(AFTER_DASHES, [])
    if not command:
        raise UsageError(
            "no command to record",
            hint="kvcanary record -o run.kvtrace -- python -m sglang.launch_server ...",
        )
    if os.path.lexists(output):
        raise UsageError(f"{output} exists already", hint="give another name, or remove it")
    options = RecordOptions(
        path=output,
        tokens=tokens.value,
        kv_hash=kv_hash.value,
        kv_hash_every=kv_hash_every,
        max_bytes=_bytes(max_bytes, "--max-bytes"),
        ring_bytes=_bytes(ring, "--ring"),
        start_after=start_after,
    )
    status = run(command, options)
    if not os.path.isdir(output):
        Output().warn(f"{output}: nothing was recorded: no engine that kvcanary knows ran there")
    if status:
        raise typer.Exit(status)
