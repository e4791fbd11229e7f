"""Large clean traces of three shapes, written as columns by a simulated server.

python -m benchmarks.scale_traces decode OUT.pt --tokens 1000000
python -m benchmarks.scale_traces prefill OUT.kvtrace --tokens 1000000
python -m benchmarks.scale_traces context OUT.pt --context 131072 --steps 100
"""

from __future__ import annotations

import argparse
import contextlib
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.scale_server import Server
from kvcanary_cli.trace.writer import open_writer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

MAX_TOKENS, MAX_SLOTS = 200_000_000, 1_000_000


def header(*, slots: int, batch: int, row_len: int) -> dict[str, Any]:
    """Header of such a trace."""
    return {
        "kind": "header",
        "format": "kvcanary-trace",
        "version": 1,
        "engine": {"name": "sglang", "version": "0.5.23"},
        "rank": {"tp": 0, "tp_size": 1, "pp": 0, "pp_size": 1, "dp": 0, "dp_size": 1},
        "pool": {"slots": slots, "page_size": 1, "rows": batch + 1, "row_len": row_len},
        "chain": "splitmix64-mix3",
        "tokens": "raw",
        "records": ["forward", "map", "alloc", "request", "history", "prefix"],
    }


@contextlib.contextmanager
def _server(path: Path | str, *, slots: int, batch: int, row_len: int) -> Iterator[Server]:
    """A server whose whole trace is in ``path`` at the end."""
    sizes = {"slots": slots, "batch": batch, "row_len": row_len}
    with open_writer(path, header(**sizes), overwrite=True) as writer:
        server = Server(writer.write, **sizes)
        yield server
        server.flush()


def decode_heavy(
    path: Path | str,
    *,
    tokens: int,
    slots: int = 400_000,
    batch: int = 256,
    prefill: int = 256,
    decode: int = 512,
    shared: int = 64,
    groups: int = 16,
) -> int:
    """Many requests at a time that answer at length; every few steps some end and others begin.

    Args:
        path: Where to; its suffix decides the form.
        tokens: Tokens to record, at least.
        slots: Usable slots.
        batch: Requests at a time.
        prefill: Prompt tokens beside the shared ones, a quarter more or less.
        decode: Tokens of each answer, a multiple of ``groups``.
        shared: Tokens of a prompt that all share; 0 = none.
        groups: The batch is so many groups of requests that end together.

    Returns:
        Tokens recorded.
    """
    steps, members = decode // groups, max(1, batch // groups)
    row_len = shared + prefill * 5 // 4 + decode + 2
    with _server(path, slots=slots, batch=batch, row_len=row_len) as server:
        if shared:
            server.share(shared)

        def arrive() -> Ints:
            low, high = prefill * 3 // 4, prefill * 5 // 4
            lens = server.random.integers(low, high + 1, members) + shared
            rows = np.array([server.begin(int(n)) for n in lens])
            server.prefill(rows, 8192)
            return rows

        running = deque(arrive() for _ in range(batch // members))
        while server.recorded < tokens:
            server.decode(np.sort(np.concatenate(list(running))), steps)
            server.finish(running.popleft())
            running.append(arrive())
    return server.recorded


def prefill_heavy(
    path: Path | str,
    *,
    tokens: int,
    slots: int = 400_000,
    batch: int = 4,
    prefill: int = 32_768,
    decode: int = 8,
    chunk: int = 8192,
) -> int:
    """Long prompts in chunks, short answers.

    Args:
        path: Where to; its suffix decides the form.
        tokens: Tokens to record, at least.
        slots: Usable slots.
        batch: Requests at a time.
        prefill: Prompt tokens of each.
        decode: Tokens of each answer.
        chunk: Tokens of a forward.

    Returns:
        Tokens recorded.
    """
    with _server(path, slots=slots, batch=batch, row_len=prefill + decode + 2) as server:
        while server.recorded < tokens:
            rows = np.array([server.begin(prefill) for _ in range(batch)])
            server.prefill(rows, chunk)
            server.decode(rows, decode)
            server.finish(rows)
    return server.recorded


def long_context(
    path: Path | str, *, context: int, steps: int, batch: int = 8, slots: int | None = None
) -> int:
    """Requests with long contexts that decode.

    Args:
        path: Where to; its suffix decides the form.
        context: Tokens of each prompt.
        steps: DECODE forwards after the prompts.
        batch: Requests.
        slots: Usable slots; None = exactly what is needed.

    Returns:
        Tokens recorded.
    """
    needed, row_len = batch * (context + steps), context + steps + 2
    with _server(path, slots=slots or needed, batch=batch, row_len=row_len) as server:
        rows = np.array([server.begin(context) for _ in range(batch)])
        server.prefill(rows, 8192)
        server.decode(rows, steps)
    return server.recorded


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shape", choices=("decode", "prefill", "context"))
    parser.add_argument("out", type=Path)
    parser.add_argument("--tokens", type=int, default=1_000_000)
    parser.add_argument("--slots", type=int)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--context", type=int, default=32_768)
    parser.add_argument("--steps", type=int, default=100)
    args = parser.parse_args()
    if not 1 <= args.tokens <= MAX_TOKENS:
        parser.error(f"--tokens must be 1 to {MAX_TOKENS}")
    if args.slots is not None and not 1 <= args.slots <= MAX_SLOTS:
        parser.error(f"--slots must be 1 to {MAX_SLOTS}")
    sizes = {name: value for name in ("slots", "batch") if (value := getattr(args, name))}
    if args.shape == "context":
        recorded = long_context(args.out, context=args.context, steps=args.steps, **sizes)
    else:
        make = decode_heavy if args.shape == "decode" else prefill_heavy
        recorded = make(args.out, tokens=args.tokens, **sizes)
    print(f"{args.out}: {recorded} tokens recorded")


if __name__ == "__main__":
    main()
