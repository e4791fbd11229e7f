"""Timing for ``gpu_check``, each figure beside its predicted floor.

The floor is the larger of two: the bytes that the operation must move over the copy bandwidth that
this device showed a moment before, and for a write the serial hashing of its longest request, at
the time that one step of a chain in registers takes here (``gpu_chain``).

In Triton's interpreter all of it runs as well, at sizes for that and without graphs: a dry run,
whose times mean nothing.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from benchmarks.gpu_chain import chain_step_us
from benchmarks.gpu_graph import measure
from benchmarks.gpu_pool import Pool
from kvcanary_cli.abi.constants import RealKvHashMode

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcanary_cli.backends.interface import Backend


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
