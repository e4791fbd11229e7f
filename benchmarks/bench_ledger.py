"""What the ledger costs: a replay with the diagnosis against the same replay without it.

    python -m benchmarks.bench_ledger [--tokens N] [--pairs P]

One line a trace: the largest capture, and a made one (``scale_traces``) of some millions of tokens
over 1,000,000 slots. Both sides take turns, each in CPU time, and the ratio is the median of the
pairs': other load on the machine changes both.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import tracemalloc
from pathlib import Path

from benchmarks.figures import Figure, cpu_seconds, machine, table
from benchmarks.scale_traces import decode_heavy, header
from kvcanary_cli.attribution.diagnose import Diagnosis, diagnose_trace
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


def figure(name: str, path: Path, pairs: int) -> Figure:
    """CPU time of a replay with the ledger beside that of one without, medians of the pairs."""

    def plain() -> object:
        return replay_trace(open_trace(path), OPTIONS, NOT_CHECKED)

    def diagnosed() -> Diagnosis:
        # As `kvcanary replay` diagnoses one trace: there is no other rank to compare with.
        return diagnose_trace(open_trace(path), OPTIONS, NOT_CHECKED, ranks=False)

    plain()
    if diagnosed().verdict != "clean":
        raise SystemExit(f"{name}: the replay found something in a clean trace")
    sides = [(cpu_seconds(plain), cpu_seconds(diagnosed)) for _ in range(pairs)]
    ratios = sorted(watched / without for without, watched in sides)
    return Figure(
        f"replay with the ledger, {name}",
        f"{statistics.median(watched for _, watched in sides):.2f} s",
        f"the same without (pairs {ratios[0]:.2f} to {ratios[-1]:.2f}); goal 2",
        f"{statistics.median(without for without, _ in sides):.2f} s",
        statistics.median(ratios),
    )


def figures(tokens: int, pairs: int) -> list[Figure]:
    """Both traces', the made one of so many tokens."""
    found = [figure(LARGEST.name, LARGEST, pairs)]
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "made.pt"
        recorded = decode_heavy(
            made, tokens=tokens, slots=SLOTS, batch=BATCH, prefill=PREFILL, decode=DECODE
        )
        found.append(figure(f"{recorded:,} tokens over {SLOTS:,} slots", made, pairs))
    return found


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
    print(machine(), flush=True)
    print(table(figures(args.tokens, args.pairs)))
    print(f"ledger of {SLOTS:,} slots: {_mebibytes(SLOTS):.0f} MiB")


if __name__ == "__main__":
    main()
