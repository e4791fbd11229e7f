"""Where the time of reading a trace goes, part by part, beside a copy of what is read and made.

    python -m benchmarks.bench_reading [--tokens N] [--rounds R]

CPU time of all threads, the median of the rounds, in nanoseconds a recorded token. The parts run
one after another here; a replay runs them beside each other and beside itself.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.figures import Figure, cpu_seconds, machine, table
from benchmarks.scale_traces import decode_heavy, prefill_heavy
from kvcanary_cli.trace.bounds import Bounds
from kvcanary_cli.trace.digest import files_sha256
from kvcanary_cli.trace.notes import TraceNotes
from kvcanary_cli.trace.pt_archive import PtArchive
from kvcanary_cli.trace.pt_compiled import load_kernels
from kvcanary_cli.trace.pt_reader import load_stored
from kvcanary_cli.trace.reader import open_trace
from kvcanary_cli.trace.validate import StreamValidator, check_columns

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcanary_cli.trace.segment import Segment

_SHAPES: dict[str, Callable[..., int]] = {
    "decode-heavy": decode_heavy,
    "prefill-heavy": prefill_heavy,
}


def _median_s(work: Callable[[], object], rounds: int) -> float:
    return statistics.median(cpu_seconds(work) for _ in range(rounds))


def copy_seconds(size_bytes: int) -> float:
    """CPU seconds that a copy of so many bytes takes here, the best of three."""
    source = np.ones(min(size_bytes, 1 << 28), dtype=np.uint8)
    target = np.ones_like(source)
    best = min(cpu_seconds(lambda: np.copyto(target, source)) for _ in range(3))
    return best * size_bytes / len(source)


def widened_bytes(segment: Segment) -> int:
    """Bytes of a segment's arrays."""
    arrays = [segment.kind, segment.index, segment.row]
    for kept in segment.tables.values():
        for column in kept.columns.values():
            arrays += [a for a in (column.values, column.offsets, column.present) if a is not None]
    return sum(array.nbytes for array in arrays)


def parts(path: Path, tokens: int, rounds: int) -> list[Figure]:
    """Each part of reading one ``.pt`` trace."""
    size = path.stat().st_size
    stored = load_stored(path)
    # As a replay reads a large trace, whose kernels are loaded by then.
    load_kernels()
    located = list(stored.segments(compiled=True))
    bounds = Bounds(stored.header.pool)
    widened = sum(widened_bytes(part.segment) for part in located)

    def cut() -> None:
        for _ in stored.segments(compiled=True):
            pass

    def check() -> None:
        validator = StreamValidator(stored.header, TraceNotes())
        for part in located:
            validator.check(part, check_columns(part.segment, bounds))

    shape = path.stem
    copied = {n: 1e9 * copy_seconds(n) / tokens for n in (size, widened)}
    figures = []
    for name, work, moved in (
        ("checksums of all records", lambda: PtArchive(path), size),
        ("cutting and widening", cut, widened),
        ("checking ranges and lengths", check, widened),
        ("SHA-256", lambda: files_sha256([path]), size),
    ):
        cost = 1e9 * _median_s(work, rounds) / tokens
        figures.append(
            Figure(
                f"{shape}, {name}",
                f"{cost:.0f} ns",
                f"copy of {moved / tokens:.0f} bytes a token",
                f"{copied[moved]:.0f} ns",
                cost / copied[moved],
            )
        )
    return figures


def jsonl(folder: Path, rounds: int) -> list[Figure]:
    """Reading and checking of a JSONL trace, by event."""
    path = folder / "trace.jsonl.zst"
    decode_heavy(path, tokens=80_000)

    def read() -> int:
        reader = open_trace(path)
        return sum(map(len, reader.segments()))

    cost = 1e6 * _median_s(read, rounds) / read()
    return [Figure("JSONL (zstd), reading and checking", f"{cost:.1f} us an event", "", "", None)]


def measure(tokens: int, rounds: int) -> list[Figure]:
    """All figures, of traces of so many tokens each."""
    with tempfile.TemporaryDirectory() as folder:
        figures = []
        for shape, make in _SHAPES.items():
            path = Path(folder) / f"{shape}.pt"
            figures += parts(path, make(path, tokens=tokens), rounds)
        return figures + jsonl(Path(folder), rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    print(machine(), flush=True)
    print(table(measure(args.tokens, args.rounds)))


if __name__ == "__main__":
    main()
