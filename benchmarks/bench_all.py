"""All CPU benchmarks, one table: ``make bench``.

    python -m benchmarks.bench_all [--seconds S] [--peer-python PATH] [--out FILE]

Each line is a figure, what it is held to, and the ratio of the two. Under ten minutes on two
cores that do nothing else; ``--seconds`` scales the part that grows.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import bench_ledger, bench_many, bench_reading, bench_replay, bench_scale
from benchmarks.figures import ROOT, Figure, machine, run_command, table

if TYPE_CHECKING:
    from collections.abc import Callable

#: Where ``bench_kernels --setup-peer`` and the tests with real engines put an environment that has
#: the public package.
PEERS = tuple(
    ROOT / "build" / folder / "bin" / "python" for folder in ("peer", "engines/sglang-0.5.23")
)
_KERNEL = re.compile(
    r"^(?P<op>write|verify|plan) +(?P<peer_n>[\d,]+) +(?P<our_n>[\d,]+) +(?P<peer>[\d,]+) +"
    r"(?P<ours>[\d.,]+) +(?P<ratio>[\d,]+)",
    re.MULTILINE,
)


def kernels(peer_python: Path) -> list[Figure]:
    """Time of the kernels beside the public reference, from ``bench_kernels``."""
    script = ROOT / "benchmarks" / "bench_kernels.py"
    sizes = ["--sizes", "10000", "--pairs", "1"]
    output = run_command(
        [sys.executable, str(script), "--peer-python", str(peer_python), *sizes]
    ).output
    return [
        Figure(
            f"{match['op']}, {match['our_n']} entries",
            f"{match['ours']} ns an entry",
            f"public torch reference, {match['peer_n']} entries",
            f"{match['peer']} ns",
            _number(match["ours"]) / _number(match["peer"]),
        )
        for match in _KERNEL.finditer(output)
    ]


def _cpu_s() -> float:
    """CPU seconds of this process and of those that it started and that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=4.0, help="of a command that grows")
    parser.add_argument("--peer-python", type=Path, metavar="PATH", help="has the public package")
    parser.add_argument("--out", type=Path, help="write the table there as well")
    args = parser.parse_args()
    started = time.perf_counter()
    head = machine()
    print(head, flush=True)
    figures: list[Figure] = []

    def add(name: str, part: Callable[[], list[Figure]]) -> None:
        begun, cpu_begun = time.perf_counter(), _cpu_s()
        print(f"{name} ...", flush=True)
        figures.extend(part())
        taken = time.perf_counter() - begun
        print(f"  {taken:.0f} s, {_cpu_s() - cpu_begun:.0f} s of CPU", flush=True)

    add("start-up and whole commands", lambda: bench_replay.figures(runs=2))
    jobs = os.cpu_count() or 1
    add("several traces", lambda: [bench_many.figure(traces=2 * jobs, jobs=jobs, pairs=1)])
    add("reading", lambda: bench_reading.measure(tokens=200_000, rounds=3))
    add("ledger", lambda: bench_ledger.figures(tokens=4_000_000, pairs=3))
    with tempfile.TemporaryDirectory() as folder:
        add("scale", lambda: bench_scale.measure(Path(folder), args.seconds))
    skipped = ""
    peers = PEERS if args.peer_python is None else (args.peer_python,)
    peer = next((python for python in peers if python.exists()), None)
    if peer is not None:
        add("kernels beside the public reference", lambda: kernels(peer))
    else:
        skipped = (
            "kernels beside the public reference: skipped, its environment is not there; "
            "`python benchmarks/bench_kernels.py --setup-peer build/peer` makes it"
        )
    minutes = (time.perf_counter() - started) / 60
    text = "\n".join(
        line
        for line in (
            head,
            table(figures),
            skipped,
            f"{minutes:.1f} minutes in all, {_cpu_s() / 60:.1f} of CPU",
        )
        if line
    )
    print(text)
    if args.out is not None:
        args.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
