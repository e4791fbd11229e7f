"""What the ledger costs: a replay with the diagnosis against the same replay without it.

Run ``python -m benchmarks.bench_ledger``; it takes a few minutes and prints one line a trace: the
largest capture, and a made one (``scale_traces``) of some millions of tokens over 1,000,000 slots.
Both sides take turns, each in CPU time, and the ratio is that of a pair: other load on the machine
changes both.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import tracemalloc
from pathlib import Path

from benchmarks.figures import cpu_seconds
from benchmarks.scale_traces import decode_heavy, header
from kvcanary_cli.attribution.diagnose import diagnose_trace
from kvcanary_cli.attribution.diagnoser import Diagnoser
from kvcanary_cli.replay.capacity_limits import NOT_CHECKED
from kvcanary_cli.replay.driver import replay_trace
from kvcanary_cli.replay.options import ReplayOptions
from kvcanary_cli.trace.header import parse_header
from kvcanary_cli.trace.notes import TraceNotes
from kvcanary_cli.trace.reader import open_trace

CAPTURES = Path(__file__).parents[1] / "tests" / "data" / "captures"
LARGEST = CAPTURES / "clean_radix.jsonl.zst"
SLOTS = 1_000_000
# Of the made trace: long prompts, and decode steps of a full batch that many events describe.
BATCH, PREFILL, DECODE = 256, 2048, 64
OPTIONS = ReplayOptions(backend="cpu")


def measure(name: str, path: Path, pairs: int) -> str:
    """One line about a trace: median CPU seconds of both sides, ratios of the pairs."""

    def plain() -> object:
        return replay_trace(open_trace(path), OPTIONS, NOT_CHECKED)

    # As `kvcanary replay` diagnoses one trace: there is no other rank to compare with.
    diagnosis = diagnose_trace(open_trace(path), OPTIONS, NOT_CHECKED, ranks=False)
    if diagnosis.verdict != "clean":
        raise SystemExit(f"{name}: the replay found something in a clean trace")
    plain()
    sides = [
        (
            cpu_seconds(plain),
            cpu_seconds(
                lambda: diagnose_trace(open_trace(path), OPTIONS, NOT_CHECKED, ranks=False)
            ),
        )
        for _ in range(pairs)
    ]
    ratios = sorted(watched / without for without, watched in sides)
    return (
        f"{name}: {diagnosis.replay.trace.forwards} forwards, replay "
        f"{statistics.median(s[0] for s in sides):.2f} s, with the ledger "
        f"{statistics.median(s[1] for s in sides):.2f} s, ratio {statistics.median(ratios):.2f} "
        f"({ratios[0]:.2f} to {ratios[-1]:.2f})"
    )


def _mebibytes(slots: int) -> float:
    """What a diagnosis holds for a pool of one lane before the first event."""
    described = parse_header(header(slots=slots, batch=BATCH, row_len=PREFILL + DECODE), "made")
    tracemalloc.start()
    diagnoser = Diagnoser(described, TraceNotes(), ranks=False)
    diagnoser.follower.lane("target", "FULL")
    held, _peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return held / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=4_000_000, help="Of the made trace.")
    parser.add_argument("--pairs", type=int, default=5)
    args = parser.parse_args()
    print(measure(LARGEST.name, LARGEST, args.pairs), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "made.pt"
        recorded = decode_heavy(
            made, tokens=args.tokens, slots=SLOTS, batch=BATCH, prefill=PREFILL, decode=DECODE
        )
        print(measure(f"{recorded:,} tokens over {SLOTS:,} slots", made, args.pairs), flush=True)
    print(f"ledger of {SLOTS:,} slots: {_mebibytes(SLOTS):.0f} MiB")


if __name__ == "__main__":
    main()
