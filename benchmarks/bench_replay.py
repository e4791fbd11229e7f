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
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LARGEST = ROOT / "examples" / "clean_radix.pt"
KVCANARY = [sys.executable, "-m", "kvcanary_cli"]
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
    start = time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
    elapsed = time.perf_counter() - start
    if done.returncode not in (0, 1, 5):
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr.decode()}")
    return elapsed


def compare(name: str, ours: list[str], other_name: str, other: list[str], runs: int) -> None:
    """Run both sides alternately and print medians and the median ratio."""
    pairs = [(seconds(ours), seconds(other)) for _ in range(runs)]
    ratio = sorted(a / b for a, b in pairs)
    print(
        f"{name:<44} {statistics.median(a for a, _ in pairs):7.2f} s   "
        f"{other_name:<28} {statistics.median(b for _, b in pairs):7.2f} s   "
        f"ratio {statistics.median(ratio):6.2f} ({ratio[0]:.2f} to {ratio[-1]:.2f})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    replay = [*KVCANARY, "replay", str(LARGEST), "-q"]
    seconds([*replay, "--backend", "cpu"])  # compiles on a cold cache
    compare("kvcanary --version", [*KVCANARY, "--version"], "bare interpreter", BARE, runs)
    compare("kvcanary --help", [*KVCANARY, "--help"], "bare interpreter", BARE, runs)
    for words in QUICK:
        compare(f"kvcanary {words[0]}", [*KVCANARY, *words], "bare interpreter", BARE, runs)
    name = f"replay {LARGEST.name}, cpu backend"
    compare(name, [*replay, "--backend", "cpu"], "import torch", TORCH, runs)
    compare(
        name,
        [*replay, "--backend", "cpu"],
        "same, reference backend",
        [*replay, "--backend", "reference"],
        max(1, runs // 2),
    )


if __name__ == "__main__":
    main()
