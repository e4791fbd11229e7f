"""``benchmarks/gpu_check.py``: equality parts run here, the rest without its GPU calls."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from benchmarks import gpu_check, gpu_graph, gpu_pool, gpu_timing
from benchmarks.gpu_chain import chain_value
from kvcanary_cli.abi.constants import CHAIN_HEAD_HASH
from kvcanary_cli.backends import get_backend
from kvcanary_cli.backends.reference.hashes import chain_step

if TYPE_CHECKING:
    from collections.abc import Callable

_SCRIPT = Path(gpu_check.__file__)
_needs_no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


def test_interpreted_run_is_equal_and_written_down(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "result.json"
    arguments = ["--interpret", "--golden-limit", "1", "--cases", "1", "--out", str(out)]
    assert gpu_check.main(arguments) == 0
    assert "these times mean nothing" in capsys.readouterr().out
    content = json.loads(out.read_text())
    checks = content["checks"]
    assert [check["name"] for check in checks] == [
        "golden files",
        "random cases",
        "requests that clash",
        "graph replay",
    ]
    assert all(check["compared"] and not check["different"] for check in checks)
    assert content["dry_run"] is True
    assert all(figure["floor_us"] > 0 for figure in content["figures"])


@pytest.fixture
def _no_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_graph, "graph_differences", lambda *_: iter([None]))
    monkeypatch.setattr(gpu_timing, "time_everything", lambda *_: [])


@pytest.mark.usefixtures("_no_timing")
def test_a_difference_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_check, "random_differences", lambda *_: iter([None, "cell 3 differs"]))
    arguments = ["--interpret", "--golden-limit", "1", "--cases", "1"]
    assert gpu_check.main(arguments) == 1


@pytest.mark.usefixtures("_no_timing")
def test_no_golden_files_fail_the_run(tmp_path: Path) -> None:
    arguments = ["--interpret", "--golden", str(tmp_path), "--cases", "1"]
    assert gpu_check.main(arguments) == 1


def test_random_differences_find_a_wrong_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = get_backend("triton")
    monkeypatch.setattr(backend, "scatter_req_token_ids", lambda **_: None, raising=False)
    assert any(gpu_check.random_differences(backend, {"scatter": 10}))


@_needs_no_gpu
def test_without_a_gpu_one_line_and_its_own_status() -> None:
    done = subprocess.run(
        [sys.executable, str(_SCRIPT)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 5
    assert done.stdout.count("\n") == 1
    assert "no GPU" in done.stdout


def test_graph_check_compares_what_a_step_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(gpu_graph.graph_differences(get_backend("triton"), 1)) == {None}
    does_nothing = gpu_graph.capture(lambda: None, "cpu")
    monkeypatch.setattr(gpu_graph, "capture", lambda *_: does_nothing)
    assert None not in set(gpu_graph.graph_differences(get_backend("triton"), 1))


def test_timing_covers_every_operation_on_clean_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small sizes, and the step run once instead of being timed."""
    pools: list[gpu_pool.Pool] = []

    def measure(step: Callable[[], None], _device: str) -> tuple[float, float, float]:
        step()
        if isinstance(pool := getattr(step, "__self__", None), gpu_pool.Pool):
            pools.append(pool)
            assert int(pool.context["violation_write_index"]) == 0
        return 2.0, 1.0, 3.0

    monkeypatch.setattr(gpu_timing, "measure", measure)
    figures = gpu_timing.time_everything(get_backend("triton"), gpu_timing.DRY)
    assert [figure.name.split(",")[0].split(":")[0] for figure in figures] == [
        "copy on the device", "plan", "verify", "write", "whole step", "verify", "verify", "write",
    ]  # fmt: skip
    assert figures[0].percent_of_copy == pytest.approx(100)
    assert figures[2].moved_bytes == 60 * 96
    assert len(pools) == len(figures) - 1


def test_a_floor_is_the_larger_of_bytes_and_chain() -> None:
    # 1 MB at 100 GB/s is 10 us; 500 tokens at 0.1 us are 50.
    moves = gpu_timing.Figure("f", 100.0, 90.0, 110.0, 10**6, 100.0)
    assert (moves.floor_us, moves.percent_of_copy) == (pytest.approx(10), pytest.approx(10))
    chains = gpu_timing.Figure("f", 100.0, 90.0, 110.0, 10**6, 100.0, 500, 0.1)
    assert chains.floor_us == pytest.approx(50)
    assert "chain" in str(chains)
    assert "bytes" in str(moves)


@pytest.mark.parametrize("steps", [0, 1, 5])
def test_the_timed_chain_is_the_canarys_chain(steps: int) -> None:
    want = CHAIN_HEAD_HASH
    for position in range(steps):
        want = chain_step(want, 7, position)
    assert chain_value("cpu", 7, steps) % (1 << 64) == want


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_captured_step_equals_the_eager_one() -> None:
    assert set(gpu_graph.graph_differences(get_backend("triton"), 5)) == {None}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_no_launch_waits_for_the_device() -> None:
    pool = gpu_pool.Pool(get_backend("triton"), rows=4, prefix=8, extend=2, num_slots=512)
    pool.step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        pool.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
