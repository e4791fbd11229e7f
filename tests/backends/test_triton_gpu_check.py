"""``benchmarks/gpu_check.py``: equality parts run here, the rest without its GPU calls."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from benchmarks import gpu_check, gpu_timing
from kvcanary_cli.backends import get_backend

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
    assert "need a GPU" in capsys.readouterr().out
    checks = json.loads(out.read_text())["checks"]
    assert [check["name"] for check in checks] == [
        "golden files",
        "random cases",
        "requests that clash",
    ]
    assert all(check["compared"] and not check["different"] for check in checks)


def test_a_difference_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_check, "random_differences", lambda *_: iter([None, "cell 3 differs"]))
    arguments = ["--interpret", "--golden-limit", "1", "--cases", "1"]
    assert gpu_check.main(arguments) == 1


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


class _Replayed:
    """Stands in for a captured graph: replaying is running the step again."""

    def __init__(self, step: Callable[[], None]) -> None:
        self.replay = step


def test_graph_check_compares_what_a_step_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_timing, "capture", _Replayed)
    assert set(gpu_timing.graph_differences(get_backend("triton"), 2)) == {None}
    monkeypatch.setattr(gpu_timing, "capture", lambda _: _Replayed(lambda: None))
    assert None not in set(gpu_timing.graph_differences(get_backend("triton"), 1))


def test_timing_covers_every_operation_on_clean_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small sizes, and the step run once instead of being timed."""
    pools: list[gpu_timing.Pool] = []

    def measure(step: Callable[[], None]) -> tuple[float, float, float]:
        step()
        if isinstance(pool := getattr(step, "__self__", None), gpu_timing.Pool):
            pools.append(pool)
            assert int(pool.context["violation_write_index"]) == 0
        return 2.0, 1.0, 3.0

    monkeypatch.setattr(gpu_timing, "measure", measure)
    for name, value in {
        "_COPY_BYTES": 1000,
        "_SLOTS": 200,
        "_ENTRIES": 60,
        "_HASHED_ENTRIES": 80,
        "_VERIFY_ROWS": 4,
        "_WRITES": ((2, 5),),
    }.items():
        monkeypatch.setattr(gpu_timing, name, value)
    figures = gpu_timing.time_everything(get_backend("triton"))
    assert [figure.name.split(",")[0] for figure in figures] == [
        "copy on the device", "plan", "verify", "write", "verify", "verify", "write",
    ]  # fmt: skip
    assert figures[0].percent_of_copy == pytest.approx(100)
    assert figures[2].moved_bytes == 60 * 96
    assert "ns a token" in str(figures[-1])
    assert len(pools) == len(figures) - 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_captured_step_equals_the_eager_one() -> None:
    assert set(gpu_timing.graph_differences(get_backend("triton"), 5)) == {None}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_no_launch_waits_for_the_device() -> None:
    pool = gpu_timing.Pool(get_backend("triton"), rows=4, prefix=8, extend=2, num_slots=512)
    pool.step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        pool.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
