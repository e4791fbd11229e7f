"""``suggest-flags --write``: what is written is read again, a refusal keeps the suggestion."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import yaml

from tests.cli.conftest import Ran, run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Run = Callable[..., Ran]

__all__ = ["run"]

GPU = ("--gpu", "h100", "--model-config", "configs/models/gqa_8b.json", "--weights-bytes", "16GB")
PEAK = ("--peak-batch-size", "12")
LOW = "cuda-graph-max-bs-decode: 8 # low\nmax-running-requests: 8\n"


@pytest.mark.parametrize(
    "text",
    [
        LOW,
        "cuda-graph-bs-decode: [1, 2, 4, 8] # list\nmax-running-requests: 8\n",
        "cuda-graph-bs-decode:\n- 1\n- 8 # eight\n# mid\nmax-running-requests: 8\n",
        "cuda-graph-config:\n  decode: {max_bs: 8}\nmax-running-requests: 8\n",
        'cuda-graph-config: \'{"decode":{"bs":[1,8]}}\'\nmax-running-requests: 8\n',
        "tp-size: &x 8\ncuda-graph-max-bs-decode: *x # al\nmax-running-requests: 8\n",
        "cuda-graph-max-bs-decode: |\n  8\nmax-running-requests: 8\n",
        "  cuda-graph-max-bs-decode: 8\n  max-running-requests: 8\n...\n",
    ],
)
def test_the_written_file_passes(run: Run, tmp_path: Path, text: str) -> None:
    old, new = tmp_path / "old.yaml", tmp_path / "new.yaml"
    old.write_text(text)
    assert run("check-capacities", str(old), *GPU, *PEAK).code == 1
    ran = run("suggest-flags", str(old), *GPU, *PEAK, "--write", str(new))
    assert ran.code == 0, ran.err
    assert run("check-capacities", str(new), *GPU, *PEAK).code == 0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{max-running-requests: 8, cuda-graph-max-bs-decode: 8}", "one option a line"),
        ("cuda-graph-max-bs-decode: &x 8\nmax-running-requests: *x\n", "take their value from &x"),
    ],
)
def test_a_refusal_keeps_the_suggestion(run: Run, tmp_path: Path, text: str, says: str) -> None:
    old, new = tmp_path / "old.yaml", tmp_path / "new.yaml"
    old.write_text(text)
    ran = run("suggest-flags", str(old), *GPU, *PEAK, "--write", str(new))
    assert ran.code == 4
    assert "set --cuda-graph-max-bs-decode 12" in ran.out
    assert says in ran.err
    assert not new.exists()


def test_a_flag_of_the_launch_command_is_not_written_elsewhere(run: Run, tmp_path: Path) -> None:
    old, new = tmp_path / "old.yaml", tmp_path / "new.yaml"
    old.write_text("tp-size: 2 # two\n")
    ran = run(
        *("suggest-flags", str(old), *GPU, *PEAK, "--write", str(new), "--"),
        *("python", "-m", "sglang.launch_server", "--max-running-requests", "8"),
        *("--cuda-graph-max-bs-decode", "8"),
    )
    assert ran.code == 4
    assert "set --cuda-graph-max-bs-decode 12" in ran.out
    assert "--cuda-graph-max-bs-decode is set at command line" in ran.err
    assert not new.exists()


def test_the_file_that_holds_the_option_is_the_one_rewritten(run: Run, tmp_path: Path) -> None:
    first, second, new = (tmp_path / name for name in ("a.yaml", "b.yaml", "new.yaml"))
    first.write_text(LOW)
    second.write_text("page-size: 1\n")
    ran = run("suggest-flags", str(first), str(second), *GPU, *PEAK, "--write", str(new))
    assert ran.code == 0, ran.err
    assert new.read_text() == LOW.replace("8 # low", "12 # low")
    assert f"written, {first} with the suggestion" in ran.err


def test_a_configuration_of_a_script_is_named(run: Run, tmp_path: Path) -> None:
    config, script, new = (tmp_path / name for name in ("c.yaml", "run.sh", "new.yaml"))
    config.write_text(LOW)
    script.write_text(f"python -m sglang.launch_server --model-path m --config {config}\n")
    ran = run("suggest-flags", str(script), *GPU, *PEAK, "--write", str(new))
    assert ran.code == 2
    assert "set --cuda-graph-max-bs-decode 12" in ran.out
    assert "c.yaml was read as part of" in ran.err


def test_another_file_is_replaced_only_when_asked(run: Run, tmp_path: Path) -> None:
    old, other = tmp_path / "old.yaml", tmp_path / "other.yaml"
    old.write_text(LOW)
    other.write_text("precious: true\n")
    args = ("suggest-flags", str(old), *GPU, *PEAK, "--write")
    ran = run(*args, str(other))
    assert ran.code == 2
    assert "--overwrite" in ran.err
    assert other.read_text() == "precious: true\n"
    assert run(*args, str(other), "--overwrite").code == 0
    assert yaml.safe_load(other.read_text())["cuda-graph-max-bs-decode"] == 12
    assert run(*args, str(old)).code == 0
    assert old.read_text() == other.read_text()


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_the_encoding_stays(run: Run, tmp_path: Path, encoding: str) -> None:
    old, new = tmp_path / "old.yaml", tmp_path / "new.yaml"
    text = LOW + "# größer\n"
    old.write_text(text, encoding=encoding)
    assert run("suggest-flags", str(old), *GPU, *PEAK, "--write", str(new)).code == 0
    assert new.read_bytes() == text.replace("8 # low", "12 # low").encode(encoding)


def test_bytes_that_are_no_text_are_not_replaced(run: Run, tmp_path: Path) -> None:
    old, new = tmp_path / "old.yaml", tmp_path / "new.yaml"
    old.write_bytes(LOW.encode() + b"# gr\xf6\xdfer\n")
    ran = run("suggest-flags", str(old), *GPU, *PEAK, "--write", str(new))
    assert ran.code == 4
    assert "no UTF-8" in ran.err
    assert not new.exists()
