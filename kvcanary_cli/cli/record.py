"""``kvcanary record``: run a server and write traces of what it does to its KV cache."""

from __future__ import annotations

import os
import re
from enum import StrEnum
from typing import Annotated, Any

import typer

from kvcanary_cli.cli.output import Output
from kvcanary_cli.cli.serving_options import AFTER_DASHES, LaunchCommand
from kvcanary_cli.errors import UsageError

EPILOG = (
    "Examples:\n\n"
    "  kvcanary record -o run.kvtrace -- python -m sglang.launch_server --model-path M\n\n"
    "  kvcanary record -o run.kvtrace --kv-hash partial --ring 2GiB -- python serve.py\n\n"
    "  kvcanary record -o run.kvtrace --ring 10min --trigger canary --trigger signal -- "
    "python serve.py\n\n"
    "Signals go to the server (with --trigger signal SIGUSR2 does not), and its exit status is "
    "this command's."
)
_TIME = re.compile(r"(\d+)\s*(s|sec|min|h)")
_SECONDS = {"s": 1, "sec": 1, "min": 60, "h": 3600}
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


class TriggerName(StrEnum):
    """What makes a ring be kept."""

    signal = "signal"
    canary = "canary"


class RecordCommand(LaunchCommand):
    """A command whose ``--`` precedes the server's own command."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "-- COMMAND..."]


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
    return _some(int(number), option, text) * factor


def _some(number: int, option: str, text: str) -> int:
    """``number``, which may not be 0: that would mean that there is no limit."""
    if not number:
        raise UsageError(
            f"{option} must be more than nothing, found '{text}'",
            hint=f"leave {option} out to set no limit",
        )
    return number


def _ring(text: str | None) -> tuple[int, int]:
    """A ring's bytes and seconds, of which one is 0."""
    if text is None:
        return 0, 0
    stripped = text.strip()
    match = _TIME.fullmatch(stripped)
    if match is not None:
        return 0, _some(int(match[1]), "--ring", stripped) * _SECONDS[match[2]]
    if re.fullmatch(r"\d+\s*m", stripped):
        raise UsageError(
            f"--ring {stripped}: minutes or megabytes?",
            hint=f"write {stripped[:-1].strip()}min or {stripped[:-1].strip()}MB",
        )
    if _SIZE.fullmatch(stripped) is None:
        raise UsageError(f"--ring must be a size or a time, found '{text}'", hint="2GiB, 10min")
    return _bytes(stripped, "--ring"), 0


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
        typer.Option(
            "--max-bytes",
            metavar="SIZE",
            help="Stop when a rank's trace is this large; a ring stays within it, and goes on.",
        ),
    ] = None,
    ring: Annotated[
        str | None,
        typer.Option(
            "--ring",
            metavar="SIZE|TIME",
            help="Keep about the last 2GiB, or the last 10min, of each rank.",
        ),
    ] = None,
    trigger: Annotated[
        list[TriggerName] | None,
        typer.Option(
            "--trigger",
            help="Keep the ring as it is on SIGUSR2, or when the engine's own canary reports "
            "something, and go on in a new one (repeatable).",
        ),
    ] = None,
    start_after: Annotated[
        int,
        typer.Option("--start-after", metavar="N", help="Let N forwards of each rank pass first."),
    ] = 0,
) -> None:
    """Run the server behind -- unchanged, and record what it does to its KV cache."""
    from kvcanary_cli.record.launch import check_place, run
    from kvcanary_cli.record.options import RecordOptions

    command: list[str] = ctx.meta.get(AFTER_DASHES, [])
    if not command:
        raise UsageError(
            "no command to record",
            hint="kvcanary record -o run.kvtrace -- python -m sglang.launch_server ...",
        )
    if os.path.lexists(output):
        raise UsageError(f"{output} exists already", hint="give another name, or remove it")
    ring_bytes, ring_seconds = _ring(ring)
    options = RecordOptions(
        path=output,
        tokens=tokens.value,
        kv_hash=kv_hash.value,
        kv_hash_every=kv_hash_every,
        max_bytes=_bytes(max_bytes, "--max-bytes"),
        ring_bytes=ring_bytes,
        ring_seconds=ring_seconds,
        triggers=tuple(name.value for name in trigger or ()),
        start_after=start_after,
    )
    check_place(options)
    status = run(command, options)
    if not os.path.isdir(output):
        Output().warn(
            f"{output}: nothing was recorded: no engine that kvcanary knows ran there, or it said "
            "above why it could not be recorded"
        )
    if status:
        raise typer.Exit(status)
