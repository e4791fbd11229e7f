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

from benchmarks import bench_many, bench_reading, bench_replay, bench_scale
from benchmarks.figures import ROOT, Figure, machine, run_command, table

if TYPE_CHECKING:
    from collections.abc import Callable

#: Where ``bench_kernels --setup-peer`` puts the environment by default.
PEER = ROOT / "build" / "peer" / "bin" / "python"
_RATIO = re.compile(r"^(?P<name>[^:]+): .*?\bratio (?P<ratio>[0-9.]+)", re.MULTILINE)
_KERNEL = re.compile(
    r"^(?P<op>write|verify|plan) +(?P<peer_n>[\d,]+) +(?P<our_n>[\d,]+) +(?P<peer>[\d,]+) +"
    r"(?P<ours>[\d.,]+) +(?P<ratio>[\d,]+)",
    re.MULTILINE,
)


def ledger() -> list[Figure]:
    """What the diagnosis costs, from ``bench_ledger``."""
    command = [sys.executable, "-m", "benchmarks.bench_ledger", "--tokens", "200000"]
    output = run_command([*command, "--pairs", "1"]).output
    found = [
        Figure(
            f"replay with the ledger, {match['name']}",
            f"{match['ratio']} x",
            "the same without",
            "1 x",
            float(match["ratio"]),
        )
        for match in _RATIO.finditer(output)
    ]
    if not found:
        raise SystemExit(f"bench_ledger printed no ratio:\n{output}")
    return found


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
            float(match["ours"].replace(",", "")) / float(match["peer"].replace(",", "")),
        )
        for match in _KERNEL.finditer(output)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=4.0, help="of a command that grows")
    parser.add_argument("--peer-python", type=Path, default=PEER, metavar="PATH")
    parser.add_argument("--out", type=Path, help="write the table there as well")
    args = parser.parse_args()
    started = time.perf_counter()
    head = machine()
    print(head, flush=True)
    figures: list[Figure] = []

    def add(name: str, part: Callable[[], list[Figure]]) -> None:
        print(f"{name} ...", flush=True)
        figures.extend(part())

    add("start-up and whole commands", lambda: bench_replay.figures(runs=2))
    jobs = os.cpu_count() or 1
    add("several traces", lambda: [bench_many.figure(traces=2 * jobs, jobs=jobs, pairs=1)])
    add("reading", lambda: bench_reading.measure(tokens=200_000, rounds=3))
    add("ledger", ledger)
    with tempfile.TemporaryDirectory() as folder:
        add("scale", lambda: bench_scale.measure(Path(folder), args.seconds))
    skipped = ""
    if args.peer_python.exists():
        add("kernels beside the public reference", lambda: kernels(args.peer_python))
    else:
        skipped = (
            "kernels beside the public reference: skipped, its environment is not there; "
            "`python benchmarks/bench_kernels.py --setup-peer build/peer` makes it"
        )
    minutes = (time.perf_counter() - started) / 60
    times = os.times()
    cpu_minutes = (times.user + times.system + times.children_user + times.children_system) / 60
    text = "\n".join(
        line
        for line in (
            head,
            table(figures),
            skipped,
            f"{minutes:.1f} minutes in all, {cpu_minutes:.1f} of CPU",
        )
        if line
    )
    print(text)
    if args.out is not None:
        args.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
