"""Graph capture and timing for ``gpu_check``, each figure beside its predicted floor.

The floor is the larger of two: the bytes that the operation must move over the copy bandwidth that
this device showed a moment before, and for a write the serial hashing of its longest request, at
the time that one step of a chain in registers takes here (``gpu_chain``).

In Triton's interpreter all of it runs as well, at sizes for that and without graphs: a dry run,
whose times mean nothing.
"""

from __future__ import annotations

import statistics
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.gpu_chain import chain_step_us
from kvcanary_cli.abi.constants import RealKvHashMode
from kvcanary_cli.abi.faults import new_fault_cell
from kvcanary_cli.abi.plans import VerifyPlan, WritePlan
from kvcanary_cli.abi.sources import RealKvSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvcanary_cli.backends.interface import Backend

_WARM_UPS = 3
_SAMPLES = 20


@dataclass(frozen=True)
class Sizes:
    """How large everything is.

    Attributes:
        copy_bytes: Of the copy that gives the bandwidth.
        slots: Of the pool of the entries.
        entries: That verify and plan take.
        hashed_entries: Of a verify with KV hashes.
        verify_rows: Requests of the batch.
        writes: (requests, tokens of each): prefill of many, one long prompt, a full plan's decode.
        chain_steps: Of the chain that gives the latency of a hash.
    """

    copy_bytes: int = 1 << 30
    slots: int = 8_000_000
    entries: int = 4_000_000
    hashed_entries: int = 1_000_000
    verify_rows: int = 256
    writes: tuple[tuple[int, int], ...] = ((32, 512), (1, 16384), (4096, 1))
    chain_steps: int = 10_000


FULL = Sizes()
DRY = Sizes(1000, 200, 60, 80, 4, ((2, 5),), 8)
_SECTOR_BYTES = 32

Launch = dict[str, Any]


@dataclass(frozen=True)
class Figure:
    """One measured operation; times in microseconds."""

    name: str
    median_us: float
    p20_us: float
    p80_us: float
    moved_bytes: int
    copy_gb_per_s: float
    longest_chain: int = 0
    """Tokens of the longest request of a write, hashed one after another."""
    chain_step_us: float = 0.0
    """Measured time of one step of a chain."""

    @property
    def bytes_floor_us(self) -> float:
        return self.moved_bytes / self.copy_gb_per_s / 1e3

    @property
    def chain_floor_us(self) -> float:
        return self.longest_chain * self.chain_step_us

    @property
    def floor_us(self) -> float:
        return max(self.bytes_floor_us, self.chain_floor_us)

    @property
    def percent_of_copy(self) -> float:
        return 100 * self.bytes_floor_us / self.median_us

    def __str__(self) -> str:
        limit = "chain" if self.chain_floor_us > self.bytes_floor_us else "bytes"
        return (
            f"{self.name:<44} {self.median_us:>11.1f} {self.p20_us:>11.1f} {self.p80_us:>11.1f} "
            f"{self.floor_us:>11.1f} {limit:>6} {self.median_us / self.floor_us:>8.2f} "
            f"{self.percent_of_copy:>9.1f}"
        )


TABLE_HEAD = (
    f"{'operation (times in us)':<44} {'median':>11} {'p20':>11} {'p80':>11} {'floor':>11} "
    f"{'of':>6} {'x floor':>8} {'% of copy':>9}"
)


def driver_version() -> str:
    """The NVIDIA driver's version, or ``unknown`` where its tool is missing."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.splitlines()[0].strip()


class _Eager:
    """Stands in for a graph where there is no GPU: a replay runs the step again."""

    def __init__(self, step: Callable[[], None]) -> None:
        self.replay = step


def capture(step: Callable[[], None], device: str) -> Any:
    """Capture ``step`` after warming it up on a side stream, as capture asks for."""
    if device == "cpu":
        return _Eager(step)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph


def measure(step: Callable[[], None], device: str) -> tuple[float, float, float]:
    """Median, 20th and 80th percentile of a captured step in microseconds.

    A graph leaves the host's launch time out, as a server's decode does.
    """
    if device == "cpu":
        start = time.perf_counter()
        step()
        once = 1e6 * (time.perf_counter() - start)
        return once, once, once
    graph = capture(step, device)
    for _ in range(_WARM_UPS):
        graph.replay()
    times = []
    for _ in range(_SAMPLES):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(1e3 * begin.elapsed_time(end))
    cuts = statistics.quantiles(times, n=10)
    return statistics.median(times), cuts[1], cuts[7]


class Pool:
    """A canary buffer and a batch on the device: every row a request whose prefix is cached."""

    def __init__(
        self,
        backend: Backend,
        *,
        rows: int,
        prefix: int,
        extend: int,
        num_slots: int,
        source_bytes: int = 0,
        mode: RealKvHashMode = RealKvHashMode.NONE,
    ) -> None:
        self.backend = backend
        device = backend.device
        width = prefix + extend
        slots = torch.randperm(num_slots - 1, device=device)[: rows * width] + 1
        table = slots.view(rows, width).to(torch.int32)
        self.plan_inputs: Launch = {
            "req_pool_indices": torch.arange(1, rows + 1, device=device),
            "prefix_lens": torch.full((rows,), prefix, dtype=torch.int64, device=device),
            "extend_seq_lens": torch.full((rows,), extend, dtype=torch.int64, device=device),
            "req_to_token": torch.cat([torch.zeros_like(table[:1]), table]).contiguous(),
            "swa_window_size": 0,
            "full_to_swa_index_mapping": None,
            "verify_capacity": max(1, rows * prefix),
            "verify_plan_out": VerifyPlan.allocate(
                verify_capacity=max(1, rows * prefix), device=device
            ),
            "write_plan_out": WritePlan.allocate(write_req_capacity=rows, device=device),
        }
        self.fault = new_fault_cell(device)
        sources: tuple[RealKvSource, ...] = ()
        if source_bytes:
            data = torch.randint(
                0, 256, (num_slots, source_bytes), dtype=torch.uint8, device=device
            )
            sources = (
                RealKvSource(
                    tensor=data,
                    page_size=1,
                    num_bytes_per_token=source_bytes,
                    read_bytes=source_bytes,
                ),
            )
        self.context: Launch = {
            "canary_buf": torch.zeros((num_slots, 32), dtype=torch.uint8, device=device),
            "violation_ring": torch.zeros((1024, 8), dtype=torch.int64, device=device),
            "violation_write_index": torch.zeros(1, dtype=torch.int32, device=device),
            "slot_run_counter": torch.zeros(1, dtype=torch.int64, device=device),
            "kernel_run_counter": torch.zeros(1, dtype=torch.int64, device=device),
            "kernel_kind": 0,
            "real_kv_sources": sources,
            "real_kv_hash_mode": mode,
            "fault": self.fault,
        }
        self.batch = self._batch(prefix, extend)
        self._fill_prefixes(prefix)

    def _batch(self, start: int, count: int) -> Launch:
        table = self.plan_inputs["req_to_token"][1:, start : start + count]
        rows = table.shape[0]
        positions = torch.arange(start, start + count, device=self.backend.device)
        return {
            "input_ids": torch.randint(0, 1 << 17, (rows * count,), device=self.backend.device),
            "positions": positions.repeat(rows),
            "out_cache_loc": table.reshape(-1).to(torch.int64),
            "enable_chain_position_assert": torch.ones(
                1, dtype=torch.int32, device=self.backend.device
            ),
        }

    def _fill_prefixes(self, prefix: int) -> None:
        """Write every row's prefix, so that the verify step has nothing to report."""
        if prefix:
            lens = self.plan_inputs["prefix_lens"]
            inputs = {
                **self.plan_inputs,
                "prefix_lens": torch.zeros_like(lens),
                "extend_seq_lens": lens,
            }
            self.backend.plan(**inputs, fault=self.fault)
            self._write(self._batch(0, prefix))
        self.plan()

    def _write(self, batch: Launch) -> None:
        self.backend.write(**self.context, plan=self.plan_inputs["write_plan_out"], **batch)

    def plan(self) -> None:
        self.backend.plan(**self.plan_inputs, fault=self.fault)

    def verify(self) -> None:
        self.backend.verify(**self.context, plan=self.plan_inputs["verify_plan_out"])

    def write(self) -> None:
        self._write(self.batch)

    def step(self) -> None:
        self.plan()
        self.verify()
        self.write()

    def state(self) -> dict[str, torch.Tensor]:
        """Copies of everything that a step leaves behind."""
        verify_plan, write_plan = (
            self.plan_inputs[name] for name in ("verify_plan_out", "write_plan_out")
        )
        kept = {
            name: self.context[name]
            for name in (
                "canary_buf",
                "violation_write_index",
                "slot_run_counter",
                "kernel_run_counter",
                "fault",
            )
        }
        kept |= {
            "slots": verify_plan.verify_slot_indices,
            "prevs": verify_plan.verify_prev_slot_indices,
            "num_valid": verify_plan.verify_num_valid,
            "offsets": write_plan.write_offsets,
            "seeds": write_plan.write_seed_slot_indices,
        }
        return {name: tensor.clone() for name, tensor in kept.items()}

    def clear(self) -> None:
        """Forget counts, keep the buffer."""
        for name in ("violation_write_index", "slot_run_counter", "kernel_run_counter"):
            self.context[name].zero_()


def graph_differences(backend: Backend, replays: int) -> Iterator[str | None]:
    """A captured step, replayed on changed inputs, against the same step launched eagerly."""
    for rows, prefix, extend, clash in ((8, 33, 1, False), (5, 7, 40, False), (6, 9, 4, True)):
        pool = Pool(backend, rows=rows, prefix=prefix, extend=extend, num_slots=4096)
        graph = capture(pool.step, backend.device)
        own_slots = pool.batch["out_cache_loc"].clone()
        for i in range(replays):
            pool.batch["input_ids"].random_(0, 1 << 40)
            pool.plan_inputs["prefix_lens"].copy_(
                torch.randint(1, prefix + 1, (rows,), device=backend.device)
            )
            pool.batch["out_cache_loc"].copy_(own_slots)
            if clash and i % 2:
                # Every other replay takes the in-order path: all rows write to one slot.
                pool.batch["out_cache_loc"].fill_(int(pool.plan_inputs["req_to_token"][1, 0]))
            states = []
            before = pool.context["canary_buf"].clone()
            for run in (pool.step, graph.replay):
                pool.clear()
                pool.context["canary_buf"].copy_(before)
                run()
                states.append(pool.state())
            eager, replayed = states
            total = int(eager["num_valid"])
            for name in ("slots", "prevs"):
                eager[name], replayed[name] = eager[name][:total], replayed[name][:total]
            wrong = [n for n in eager if not torch.equal(eager[n], replayed[n])]
            yield f"rows {rows}, replay {i}: {', '.join(wrong)}" if wrong else None


def _copy(device: str, copy_bytes: int) -> Figure:
    source = torch.empty(copy_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)

    def step() -> None:
        target.copy_(source)

    times = measure(step, device)
    moved = 2 * copy_bytes
    return Figure("copy on the device", *times, moved, moved / times[0] / 1e3)


def time_everything(backend: Backend, sizes: Sizes = FULL) -> list[Figure]:
    """Copy bandwidth and chain latency first, then each operation beside its floor."""
    device = backend.device
    figures = [_copy(device, sizes.copy_bytes)]
    bandwidth = figures[0].copy_gb_per_s
    step_us = chain_step_us(device, sizes.chain_steps, lambda step: measure(step, device))

    def add(name: str, step: Callable[[], None], moved: int, chain: int = 0) -> None:
        figures.append(Figure(name, *measure(step, device), moved, bandwidth, chain, step_us))

    # An entry of verify: four plan cells and two rows of a sector each. Its predecessor is mostly
    # another entry, but at random slots neither finds the other in a cache.
    entry_bytes = 4 * 8 + 2 * _SECTOR_BYTES
    # A planned entry reads one table cell and writes four plan cells.
    plan_bytes = 4 + 4 * 8
    rows = sizes.verify_rows
    prefix = sizes.entries // rows
    pool = Pool(backend, rows=rows, prefix=prefix, extend=1, num_slots=sizes.slots)
    entries = rows * prefix
    add(f"plan, {entries} entries of {rows} requests", pool.plan, entries * plan_bytes)
    add(f"verify, {entries} random slots", pool.verify, entries * entry_bytes)
    add(f"write, {rows} requests x 1 token", pool.write, rows * _write_bytes(), 1)
    moved = entries * (plan_bytes + entry_bytes) + rows * _write_bytes()
    add("whole step: plan, verify, write", pool.step, moved, 1)
    del pool

    for label, source_bytes, mode in (
        ("PARTIAL, 1 source", 16, RealKvHashMode.PARTIAL),
        ("ALL, 1 source x 256 B", 256, RealKvHashMode.ALL),
    ):
        entries = rows * (sizes.hashed_entries // rows)
        pool = Pool(
            backend,
            rows=rows,
            prefix=entries // rows,
            extend=1,
            num_slots=2 * sizes.hashed_entries,
            source_bytes=source_bytes,
            mode=mode,
        )
        add(
            f"verify, {entries} random slots, {label}",
            pool.verify,
            entries * (entry_bytes + max(_SECTOR_BYTES, source_bytes)),
        )
        del pool

    for rows, extend in sizes.writes:
        pool = Pool(backend, rows=rows, prefix=16, extend=extend, num_slots=sizes.hashed_entries)
        add(
            f"write, {rows} requests x {extend} tokens",
            pool.write,
            rows * extend * _write_bytes(),
            extend,
        )
        del pool
    return figures


def _write_bytes() -> int:
    """A written token: three batch cells read and one row of a sector written."""
    return 3 * 8 + _SECTOR_BYTES
