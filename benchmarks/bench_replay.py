"""Wall clock of whole commands, as ratios of two sides run back to back.

``python benchmarks/bench_replay.py [--runs N]`` prints one table:

- ``kvcanary --help``, ``--version`` and the commands that load no torch against a bare interpreter
  start;
- ``kvcanary replay`` of the largest shipped capture on the cpu backend (warm compile cache)
  against the reference backend, and against importing torch alone.

Single seconds mean little across machines; the ratios are what to compare.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.figures import KVCANARY, ROOT, Figure, machine, run_command, table

LARGEST = ROOT / "examples" / "clean_radix.pt"
BARE = [sys.executable, "-c", "pass"]
LOW = str(ROOT / "configs" / "low_cuda_graph_max_bs.yaml")
QUICK = (
    ["explain", "KVC-B03"],
    ["check-capacities", LOW],
    ["suggest-flags", LOW, "--peak-batch-size", "12"],
)
TORCH = [sys.executable, "-c", "import torch"]


def seconds(command: list[str]) -> float:
    """Wall clock of one run."""
    return run_command(command).wall_s


def compare(name: str, ours: list[str], other_name: str, other: list[str], runs: int) -> Figure:
    """Run both sides alternately; medians, and the median of the pairs' ratios."""
    pairs = [(seconds(ours), seconds(other)) for _ in range(runs)]
    ratio = sorted(a / b for a, b in pairs)
    return Figure(
        name,
        f"{statistics.median(a for a, _ in pairs):.2f} s",
        f"{other_name} (pairs {ratio[0]:.2f} to {ratio[-1]:.2f})",
        f"{statistics.median(b for _, b in pairs):.2f} s",
        statistics.median(ratio),
    )


def figures(runs: int) -> list[Figure]:
    """All comparisons."""
    replay = [*KVCANARY, "replay", str(LARGEST), "-q"]
    ours, reference = ([*replay, "--backend", name] for name in ("cpu", "reference"))
    seconds(ours)  # compiles on a cold cache
    quick = (["--version"], ["--help"], *QUICK)
    found = [
        compare(f"kvcanary {words[0]}", [*KVCANARY, *words], "bare interpreter start", BARE, runs)
        for words in quick
    ]
    name = f"replay {LARGEST.name}, cpu backend"
    found.append(compare(name, ours, "import torch", TORCH, runs))
    found.append(compare(name, ours, "same, reference backend", reference, max(1, runs // 2)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    print(machine())
    print(table(figures(args.runs)))


if __name__ == "__main__":
    main()
