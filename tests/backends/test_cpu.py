"""What only the cpu backend has: threads, a compile cache, one compiled version of each kernel."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest
import torch

from kvcanary_cli.backends.cpu import backend as cpu_backend
from kvcanary_cli.backends.cpu import cache, jit, parallel, threads, warm
from kvcanary_cli.backends.reference.backend import ReferenceBackend
from tests.backends._cases import RANDOM_CASES, Case, random_write_case

if TYPE_CHECKING:
    from kvcanary_cli.backends.interface import Backend

REFERENCE = ReferenceBackend()


@pytest.fixture
def always_parallel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut even the smallest launch into ranges."""
    monkeypatch.setattr(cpu_backend, "MIN_PARALLEL_ENTRIES", 1)
    monkeypatch.setattr(cpu_backend, "MIN_PARALLEL_TOKENS", 1)
    monkeypatch.setattr(threads, "_MIN_RANGE_ENTRIES", 1)


def assert_equal(cpu: Backend, case: Case) -> None:
    difference = case.difference(case.run(REFERENCE), case.run(cpu))
    assert difference is None, f"{difference}\n{case}"


@pytest.mark.usefixtures("always_parallel")
@pytest.mark.parametrize("op", ["plan", "verify", "write", "real_kv_hash"])
def test_ranges_give_the_reference_order(cpu: Backend, op: str) -> None:
    for seed in range(250):
        assert_equal(cpu, RANDOM_CASES[op](Random(f"ranges {op} {seed}")))


@pytest.mark.usefixtures("always_parallel")
def test_independent_requests_are_written_on_threads(
    cpu: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    original = parallel.run_all

    def spy(function: object, arguments: list[tuple[int, ...]]) -> list[object]:
        calls.append((function, len(arguments)))
        return original(function, arguments)

    monkeypatch.setattr(parallel, "run_all", spy)
    for seed in range(100):
        assert_equal(cpu, random_write_case(Random(seed), independent=True, faults=False))
    writes = [count for function, count in calls if function is parallel.write_requests]
    assert len(writes) > 20
    assert max(writes) > 1


@pytest.mark.usefixtures("always_parallel")
def test_stamps_wrap_around(cpu: Backend) -> None:
    case = random_write_case(Random(3), independent=True, faults=False)
    for _ in range(150):
        assert_equal(cpu, case)


def test_large_launches_equal_small_ones(cpu: Backend) -> None:
    """Plan, write and verify enough entries for threads; the same in slices below the threshold."""
    requests, length = 140, 1000
    slots = torch.randperm(requests * length, generator=torch.Generator().manual_seed(5)) + 1
    assert requests * length >= cpu_backend.MIN_PARALLEL_TOKENS
    whole = _Written(cpu, slots.view(requests, length), at_once=requests)
    sliced = _Written(cpu, slots.view(requests, length), at_once=20)
    assert torch.equal(whole.buf, sliced.buf)
    for spoilt in (7, 5000, 139999):
        whole.buf[slots[spoilt], 9] ^= 1
    rows = [whole.verify(cpu, requests), whole.verify(cpu, 20)]
    # A spoilt position shows at the slot and in the successor's chain.
    assert len(rows[0]) == 5
    assert rows[0] == rows[1]


class _Written:
    """Requests written ``at_once`` at a time by plan and write."""

    def __init__(self, cpu: Backend, slots: torch.Tensor, at_once: int) -> None:
        self.slots = slots
        self.buf = torch.zeros((slots.numel() + 1, 32), dtype=torch.uint8)
        length = slots.shape[1]
        for first in range(0, len(slots), at_once):
            part = slots[first : first + at_once]
            case = self._plan(first, len(part), prefix=0, extend=length)
            plan = case.run(cpu)
            tokens = part.flatten() % 97
            positions = torch.arange(length).repeat(len(part))
            inputs = {
                **self._context(),
                **{name: plan[name] for name in plan if name.startswith("write_")},
                "input_ids": tokens,
                "positions": positions,
                "out_cache_loc": part.flatten(),
                "enable_chain_position_assert": torch.ones(1, dtype=torch.int32),
                "enable_write_input_assert": True,
                "expected_input_tokens": tokens,
                "expected_input_positions": positions,
            }
            out = Case("write", inputs).run(cpu)
            assert int(out["violation_write_index"]) == 0
            assert int(out["slot_run_counter"]) == part.numel()
            self.buf = out["canary_buf"]

    def verify(self, cpu: Backend, at_once: int) -> list[list[int]]:
        """Violation rows of all requests' prefixes."""
        rows = []
        for first in range(0, len(self.slots), at_once):
            count = min(at_once, len(self.slots) - first)
            plan = self._plan(first, count, prefix=self.slots.shape[1], extend=0).run(cpu)
            entries = {n: v for n, v in plan.items() if n.startswith("verify_") or n == "enable"}
            inputs = {**self._context(), **entries, "check_verify_expected_token": True}
            out = Case("verify", inputs).run(cpu)
            rows += out["violation_ring"][: int(out["violation_write_index"])].tolist()
        return rows

    def _plan(self, first: int, count: int, *, prefix: int, extend: int) -> Case:
        table = torch.zeros((len(self.slots) + 1, self.slots.shape[1]), dtype=torch.int32)
        table[1:] = self.slots
        return Case(
            "plan",
            {
                "req_pool_indices": torch.arange(first + 1, first + 1 + count),
                "prefix_lens": torch.full((count,), prefix),
                "extend_seq_lens": torch.full((count,), extend),
                "req_to_token": table,
                "swa_window_size": 0,
                "full_to_swa_index_mapping": None,
                "verify_capacity": self.slots.numel(),
                "write_req_capacity": count,
                "req_to_verify_expected_tokens": (table % 97).to(torch.int32),
                "req_to_verify_expected_tokens_valid_lens": torch.full((count,), prefix),
                "kv_token_id_vs_position_offset": 0,
            },
        )

    def _context(self) -> dict[str, object]:
        return {
            "canary_buf": self.buf,
            "kernel_kind": 0,
            "violation_ring": torch.zeros((64, 8), dtype=torch.int64),
            "violation_write_index": torch.zeros(1, dtype=torch.int32),
            "slot_run_counter": torch.zeros(1, dtype=torch.int64),
            "kernel_run_counter": torch.zeros(1, dtype=torch.int64),
            "real_kv_sources": [],
            "real_kv_hash_mode": 0,
        }


@pytest.mark.parametrize("offset", [1, 3, 8])
def test_sources_may_start_anywhere(cpu: Backend, offset: int) -> None:
    data = torch.arange(4 * 64 + 16).to(torch.uint8)
    tensor = data[offset : offset + 4 * 64].view(4, 64)
    source = {"tensor": tensor, "page_size": 2, "num_bytes_per_token": 32, "read_bytes": 32}
    slots = torch.arange(8)
    inputs = {"slots": slots, "real_kv_sources": [source], "real_kv_hash_mode": 2}
    assert_equal(cpu, Case("real_kv_hash", inputs))


def test_scatter_takes_strided_tensors(cpu: Backend) -> None:
    spread = {
        "flat_in": torch.arange(20)[::2],
        "offsets": torch.tensor([0, -9, 4, -9, 10])[::2],
        "req_pool_indices": torch.tensor([1, -9, 2])[::2],
        "pool_out": torch.zeros((4, 12), dtype=torch.int32)[:, ::2],
    }
    outs = []
    for backend in (REFERENCE, cpu):
        pool = torch.zeros((4, 12), dtype=torch.int32)
        backend.scatter_req_token_ids(**{**spread, "pool_out": pool[:, ::2]})
        outs.append(pool)
    assert torch.equal(*outs)
    assert outs[0][1, :8].tolist() == [0, 0, 2, 0, 4, 0, 6, 0]


def test_every_kernel_is_compiled_once(cpu: Backend) -> None:
    for op, make in RANDOM_CASES.items():
        for seed in range(20):
            make(Random(f"{op} {seed}")).run(cpu)
    assert [k.__name__ for k in jit.KERNELS if len(k.signatures) > 1] == []


def test_ranges_cover_everything_in_order() -> None:
    for total in (1, 2, threads.MIN_PARALLEL_ENTRIES, 1_000_003):
        parts = threads.split(total)
        assert parts[0][0] == 0
        assert parts[-1][1] == total
        assert all(a[1] == b[0] for a, b in pairwise(parts))


_SCRIPT = """
import sys
from kvcanary_cli.backends.cpu import warm
assert "numba" not in sys.modules
before = warm.is_cached()
assert "numba" not in sys.modules
warm.compile_all()
from kvcanary_cli.backends.cpu.jit import KERNELS
print(before, warm.is_cached(), sum(sum(k.stats.cache_hits.values()) for k in KERNELS))
print(all(len(k.signatures) == 1 for k in KERNELS))
print(len(KERNELS))
"""


def _compile_in(tmp_path: Path, **environment: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    return done.stdout.split()


def test_compiled_kernels_are_kept_where_numba_is_told_to(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    first = _compile_in(tmp_path, NUMBA_CACHE_DIR=str(folder))
    second = _compile_in(tmp_path, NUMBA_CACHE_DIR=str(folder))
    assert first[:4] == ["False", "True", "0", "True"]
    assert second[:2] == ["True", "True"]
    assert second[2] == second[4] == first[4]
    kept = set(folder.glob("kvcanary-*/**/*.nbc"))
    assert kept
    scenario = Path(__file__).parents[1] / "data" / "scenarios" / "S01_use_after_free.jsonl"
    command = [sys.executable, "-m", "kvcanary_cli", "replay", str(scenario), "-q"]
    environment = os.environ | {"NUMBA_CACHE_DIR": str(folder)}
    ran = subprocess.run([*command, "--backend", "cpu"], env=environment, check=False)
    assert ran.returncode == 1
    # What was compiled ahead is what a replay calls: it compiles nothing of its own.
    assert set(folder.glob("kvcanary-*/**/*.nbc")) == kept


@pytest.mark.parametrize("cached", [False, True])
def test_it_is_said_when_the_event_kernel_is_compiled(
    cached: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(warm, "is_complete", lambda what: cached)
    caplog.set_level(logging.INFO, logger=warm.log.name)
    warm.event_kernel.__wrapped__()
    assert [record.getMessage()[:17] for record in caplog.records] == (
        [] if cached else ["compiling kernels"]
    )


def test_an_unwritable_place_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file, so no folder can be made in its place")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(blocked))
    monkeypatch.setattr(cache, "_package_cache", lambda: blocked)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    folder = cache.cache_dir.__wrapped__()
    assert folder is not None
    assert folder.parent == tmp_path / "home" / "kvcanary"
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    assert cache.cache_dir.__wrapped__() is None
    monkeypatch.setattr(cache, "cache_dir", lambda: None)
    assert not cache.is_complete(cache.ALL)
    cache.mark_complete(cache.ALL)


def test_a_kernel_without_a_cache_folder_still_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit, "cache_dir", lambda: None)
    monkeypatch.setattr(jit, "KERNELS", [])

    @jit.kernel
    def twice(n):  # type: ignore[no-untyped-def]
        return 2 * n

    assert twice(21) == 42
    assert twice.stats.cache_path is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_starts_its_own_threads() -> None:
    assert threads.run_all(max, [(1, 2), (3, 4)]) == [2, 4]
    child = os.fork()
    if child == 0:
        os._exit(0 if threads.run_all(max, [(5, 6)]) == [6] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
