"""The golden runner: what it says and how it exits."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest
import torch

from tests.backends.test_golden import GOLDEN
from tests.tools.run_golden import main

if TYPE_CHECKING:
    from pathlib import Path

NAME = "ring_overflow_1.pt"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in (NAME, "capacities.json", "errors.json"):
        shutil.copy(GOLDEN / name, tmp_path)
    return tmp_path


def run(folder: Path, capsys: pytest.CaptureFixture[str], backend: str = "cpu") -> tuple[int, str]:
    status = main([str(folder), "--backend", backend])
    captured = capsys.readouterr()
    return status, captured.out + captured.err


def test_equal(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, capsys) == (
        0,
        f"{NAME}  cpu  15 ops  ok\n"
        "capacities.json  -  28 cases  ok\n"
        "errors.json  cpu  22 cases  ok\n",
    )


@pytest.mark.parametrize("backend", ["reference", "cpu", "triton"])
def test_one_wrong_number_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str], backend: str
) -> None:
    golden = torch.load(folder / NAME, weights_only=True)
    golden["ops"][7]["out"]["kernel_run_counter"] += 5
    want = int(golden["ops"][7]["out"]["kernel_run_counter"])
    torch.save(golden, folder / NAME)
    status, text = run(folder, capsys, backend)
    assert status == 1
    line = text.splitlines()[0]
    assert f"op 7 ({golden['ops'][7]['op']}, step" in line
    assert f"kernel_run_counter[0]: expected {want}, got {want - 5} (1 cells differ)" in line


@pytest.mark.parametrize("backend", ["cpu", "triton"])
def test_a_wrong_ring_row_is_a_difference(
    folder: Path, capsys: pytest.CaptureFixture[str], backend: str
) -> None:
    golden = torch.load(folder / NAME, weights_only=True)
    filled = [
        op for op in golden["ops"] if op["op"] != "plan" and op["out"]["violation_ring"].any()
    ]
    filled[0]["out"]["violation_ring"][0, 6] += 1
    torch.save(golden, folder / NAME)
    status, text = run(folder, capsys, backend)
    # With a full ring, which rows found a place is unspecified on a GPU.
    overflow = int(filled[0]["out"]["violation_write_index"]) > len(
        filled[0]["out"]["violation_ring"]
    )
    assert status == (0 if overflow and backend == "triton" else 1)
    assert overflow or "violation_ring" in text


@pytest.mark.parametrize("name", ["capacities.json", "errors.json"])
def test_one_wrong_text_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    content = json.loads((folder / name).read_text())
    case = next(n for n, case in enumerate(content["cases"]) if case.get("error"))
    content["cases"][case]["error"] += "!"
    (folder / name).write_text(json.dumps(content))
    status, text = run(folder, capsys)
    assert status == 1
    assert f"DIFFERENT: case {case}" in text


def test_nothing_to_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, text = run(tmp_path, capsys)
    assert status == 4
    assert "no golden files" in text
    assert run(tmp_path / "missing", capsys)[0] == 4


@pytest.mark.parametrize("content", [b"", b"no archive", None])
def test_unreadable(
    folder: Path, capsys: pytest.CaptureFixture[str], content: bytes | None
) -> None:
    if content is None:
        torch.save({"schema": "something else", "ops": []}, folder / NAME)
    else:
        (folder / NAME).write_bytes(content)
    status, text = run(folder, capsys)
    assert status == 4
    assert f"error: {NAME}: " in text


def test_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--backend", "abacus", "."])
    assert stop.value.code == 2
    assert "abacus" in capsys.readouterr().err
