"""Whole commands measured, and figures beside what they are held to, as one table."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

KVCANARY = (sys.executable, "-m", "kvcanary_cli")
ROOT = Path(__file__).resolve().parents[1]
#: Exit codes of a command that did its work: clean, findings, nothing to check.
_DONE = (0, 1, 5)
#: Starts a command from a small process: what starts it counts as the most memory that it had.
_MEASURE = """
import json, os, subprocess, sys, time
start = time.perf_counter()
process = subprocess.Popen(sys.argv[2:])
_, status, used = os.wait4(process.pid, 0)
wall_s = time.perf_counter() - start
ended = os.waitstatus_to_exitcode(status)
found = [ended, wall_s, used.ru_utime + used.ru_stime, used.ru_maxrss]
os.write(int(sys.argv[1]), json.dumps(found).encode())
"""


@dataclass(frozen=True, slots=True)
class Run:
    """One finished command.

    Attributes:
        wall_s: Seconds on the clock.
        cpu_s: Seconds of CPU of all its threads; on a shared machine this is the one to compare.
        peak_bytes: Most resident memory, mapped pages of files included.
        output: What it printed.
    """

    wall_s: float
    cpu_s: float
    peak_bytes: int
    output: str


def run_command(command: Sequence[str]) -> Run:
    """Run a command to its end.

    Raises:
        SystemExit: It failed.
    """
    ours, theirs = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", _MEASURE, str(theirs), *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=ROOT,
        text=True,
        pass_fds=(theirs,),
    )
    os.close(theirs)
    output, _ = process.communicate()
    with open(ours, encoding="utf-8") as measured:
        status, wall_s, cpu_s, peak = json.loads(measured.read())
    if status not in _DONE:
        raise SystemExit(f"{' '.join(command)} ended with {status}:\n{output}")
    scale = 1 if sys.platform == "darwin" else 1024
    return Run(wall_s, cpu_s, peak * scale, output)


def cpu_seconds(work: Callable[[], object]) -> float:
    """CPU seconds, of all threads of this process, that a call takes."""
    start = time.process_time()
    work()
    return time.process_time() - start


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured number beside its bound or peer.

    Attributes:
        name: What was measured.
        value: The number, with its unit.
        against: Bound or peer by name.
        other: Its number.
        ratio: Which of the two stands over which is in ``against``; None = nothing to compare.
    """

    name: str
    value: str
    against: str
    other: str
    ratio: float | None


def table(figures: Iterable[Figure]) -> str:
    """The figures as aligned text."""
    rows = [("figure", "measured", "bound or peer", "its value", "ratio")]
    rows += [
        (f.name, f.value, f.against, f.other, "" if f.ratio is None else _ratio(f.ratio))
        for f in figures
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if k in (1, 3, 4) else cell.ljust(width)
            for k, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _ratio(ratio: float) -> str:
    """Two decimals, or as many as a small ratio needs for two digits."""
    return f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.2g}"


def machine() -> str:
    """One line on the machine, its load included: a busy one makes wall clocks meaningless."""
    from importlib.metadata import version

    load = ", ".join(f"{x:.1f}" for x in os.getloadavg()) if hasattr(os, "getloadavg") else "?"
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "numba", "numpy"))
    return (
        f"{cpu_model()}, {os.cpu_count()} threads, load {load} at the start; "
        f"Python {platform.python_version()}, {packages}"
    )


def cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
