"""``replay --jobs N`` against ``--jobs 1`` on copies of one trace, in turns.

    python -m benchmarks.bench_many [--traces N] [--jobs N] [--pairs N]

The bound is the number of cores; what keeps it from that is the start of the processes (one import
of torch for all of them) and the end, when fewer traces are left than processes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
from pathlib import Path

from benchmarks.figures import KVCANARY, ROOT, Figure, machine, run_command, table

TRACE = ROOT / "examples" / "clean_radix.pt"


def figure(traces: int, jobs: int, pairs: int) -> Figure:
    """How many times as fast ``jobs`` processes are."""
    with tempfile.TemporaryDirectory() as folder:
        for k in range(traces):
            shutil.copy(TRACE, Path(folder) / f"{k}.pt")
        replay = [*KVCANARY, "replay", folder, "-q", "--jobs"]
        run_command([*replay, "1"])  # compiles on a cold cache
        walls = [
            (run_command([*replay, "1"]).wall_s, run_command([*replay, str(jobs)]).wall_s)
            for _ in range(pairs)
        ]
    ratios = sorted(alone / many for alone, many in walls)
    return Figure(
        f"{traces} traces, --jobs 1 / --jobs {jobs}",
        f"{statistics.median(ratios):.2f} x",
        f"cores (pairs {ratios[0]:.2f} to {ratios[-1]:.2f})",
        f"{min(jobs, os.cpu_count() or 1)} x",
        statistics.median(ratios) / min(jobs, os.cpu_count() or 1),
    )


def main() -> None:
    """Print the machine and the figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", type=int, default=8)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--pairs", type=int, default=3)
    args = parser.parse_args()
    print(machine())
    print(table([figure(args.traces, args.jobs, args.pairs)]))


if __name__ == "__main__":
    main()
