"""Compare the cpu backend with the public package's torch reference.

    python benchmarks/bench_kernels.py --setup-peer DIR        # once: an environment for the peer
    python benchmarks/bench_kernels.py --peer-python DIR/bin/python

Both sides take turns on the same workload, so that a busy machine slows both; ours is also timed at
1,000,000 entries right after each turn of the peer at a smaller size, since the peer's time grows
in proportion and a run of its own at that size takes a minute. ``--peer-large 1`` makes it do that
as well.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
import venv
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workload import Workload, make_workload

from kvcanary_cli.abi.plans import VerifyPlan, WritePlan
from kvcanary_cli.backends.cpu.backend import CpuBackend
from kvcanary_cli.backends.cpu.threads import num_threads
from kvcanary_cli.backends.cpu.warm import compile_all

if TYPE_CHECKING:
    import torch

OPS = ("write", "verify", "plan")
LARGE = 1_000_000
_OURS_PER_TURN = 5
_PEER_PACKAGES = (
    *("numpy", "orjson", "psutil", "pybase64", "requests", "triton", "packaging", "pillow"),
    *("starlette", "msgspec", "pydantic", "pyzmq", "tqdm", "ipython", "aiohttp"),
)


class Ours:
    """The three operations of the cpu backend over one workload."""

    def __init__(self, load: Workload) -> None:
        self.load = load
        self.backend = CpuBackend()
        self.verify_plan = VerifyPlan.allocate(verify_capacity=load.entries)
        self.write_plan = WritePlan.allocate(write_req_capacity=load.requests)
        self.context: dict[str, Any] = {
            "canary_buf": load.canary_buf,
            "kernel_kind": 0,
            "violation_ring": load.violation_ring,
            "violation_write_index": load.violation_write_index,
            "slot_run_counter": load.slot_run_counter,
            "kernel_run_counter": load.kernel_run_counter,
        }

    def _plan(self, prefix: torch.Tensor, extend: torch.Tensor) -> None:
        self.backend.plan(
            req_pool_indices=self.load.req_pool_indices,
            prefix_lens=prefix,
            extend_seq_lens=extend,
            req_to_token=self.load.req_to_token,
            verify_plan_out=self.verify_plan,
            write_plan_out=self.write_plan,
            swa_window_size=0,
            full_to_swa_index_mapping=None,
            verify_capacity=self.load.entries,
        )

    def run(self, op: str) -> float:
        """Median seconds of a few runs; arguments are checked in each, as a caller's would be."""
        load = self.load
        plan_args = (load.zeros, load.lens) if op == "write" else (load.lens, load.zeros)
        self._plan(*plan_args)
        seconds = []
        for _ in range(_OURS_PER_TURN):
            start = time.perf_counter()
            if op == "plan":
                self._plan(*plan_args)
            elif op == "verify":
                self.backend.verify(**self.context, plan=self.verify_plan)
            else:
                self.backend.write(
                    **self.context,
                    plan=self.write_plan,
                    input_ids=load.tokens,
                    positions=load.positions,
                    out_cache_loc=load.slots,
                    enable_chain_position_assert=load.chain_flag,
                )
            seconds.append(time.perf_counter() - start)
        # A run that lost entries or found phantom violations would be no measurement.
        launches = 0 if op == "plan" else _OURS_PER_TURN
        load.assert_clean(launches, launches * load.entries)
        load.slot_run_counter.zero_()
        load.kernel_run_counter.zero_()
        return statistics.median(seconds)


@cache
def _ours(entries: int) -> Ours:
    return Ours(make_workload(entries))


class PeerProcess:
    """``peer_reference.py`` in the peer's interpreter."""

    def __init__(self, python: str) -> None:
        script = Path(__file__).with_name("peer_reference.py")
        self._process = subprocess.Popen(
            [python, str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.versions = self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            sys.exit("the peer's interpreter ended; see its message above")
        return json.loads(line)

    def run(self, op: str, entries: int) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"op": op, "entries": entries}) + "\n")
        self._process.stdin.flush()
        return float(self._read()["seconds"])

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


@dataclass
class Line:
    """Pairs of back-to-back times of one operation, in ns an entry."""

    op: str
    peer_entries: int
    our_entries: int
    peer: list[float] = field(default_factory=list)
    ours: list[float] = field(default_factory=list)

    def __str__(self) -> str:
        ratios = [p / o for p, o in zip(self.peer, self.ours, strict=True)]
        return (
            f"{self.op:7} {self.peer_entries:>10,} {self.our_entries:>10,} "
            f"{statistics.median(self.peer):>10,.0f} {statistics.median(self.ours):>8.1f} "
            f"{statistics.median(ratios):>8,.0f} {min(ratios):>8,.0f} {max(ratios):>8,.0f} "
            f"{len(ratios):>6}"
        )


HEADER = (
    f"{'op':7} {'peer N':>10} {'ours N':>10} {'peer ns':>10} {'ours ns':>8} "
    f"{'ratio':>8} {'min':>8} {'max':>8} {'pairs':>6}"
)


def compare(peer: PeerProcess, sizes: list[int], pairs: int, peer_large: int) -> list[Line]:
    """Take turns; each turn of the peer is followed by ours at the same size and at LARGE."""
    lines = []
    plans = [(entries, pairs) for entries in sizes] + [(LARGE, peer_large)]
    for op in OPS:
        for entries, turns in plans:
            ours_at = sorted({entries, LARGE})
            group = [Line(op, entries, n) for n in ours_at]
            if op == "verify" and turns:
                peer.run("write", entries)
                for n in ours_at:
                    _ours(n).run("write")
            for _ in range(turns):
                peer_ns = peer.run(op, entries) / entries * 1e9
                for line in group:
                    line.peer.append(peer_ns)
                    line.ours.append(_ours(line.our_entries).run(op) / line.our_entries * 1e9)
            if turns:
                lines += group
                for line in group:
                    print(line, flush=True)
    return lines


def setup_peer(folder: Path) -> None:
    """Make an environment with the public package, without what it would pull in for GPUs."""
    venv.create(folder, with_pip=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--no-cache-dir"]
    subprocess.run([*pip, "torch==2.13.0"], check=True)
    subprocess.run([*pip, "--no-deps", "sglang==0.5.23"], check=True)
    subprocess.run([*pip, *_PEER_PACKAGES], check=True)


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--setup-peer", type=Path, metavar="DIR")
    parser.add_argument("--peer-python", metavar="PATH")
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--peer-large", type=int, default=0, metavar="TURNS")
    args = parser.parse_args()
    if args.setup_peer:
        setup_peer(args.setup_peer)
    if not args.peer_python:
        if not args.setup_peer:
            parser.error("give --peer-python PATH, or --setup-peer DIR to make one")
        return
    compile_all()
    peer = PeerProcess(args.peer_python)
    versions = f"torch {version('torch')}, numba {version('numba')}, numpy {version('numpy')}"
    print(f"cpu: {_cpu_model()}, {num_threads()} threads; Python {platform.python_version()}")
    print(f"ours: kvcanary {version('kvcanary')}, {versions}")
    print(
        f"peer: sglang {peer.versions['sglang']} (torch reference), torch {peer.versions['torch']}"
    )
    print("ns = median time an entry; ratio = peer / ours of back-to-back pairs: median, min, max")
    print(HEADER)
    compare(peer, args.sizes, args.pairs, args.peer_large)
    peer.close()


if __name__ == "__main__":
    main()
