"""Places that cannot be written: one clear error and exit code 4, from every command with -o."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kvcanary_cli.errors import EXIT_INPUT
from tests.attribution.events import HEAD, decode, life, numbered
from tests.cli.conftest import ROOT
from tests.trace.helpers import write_jsonl

if TYPE_CHECKING:
    from collections.abc import Callable

_COMMANDS: dict[str, tuple[str, ...]] = {
    "inject": ("inject", "TRACE", "--fault", "early_free", "-o", "OUT.jsonl"),
    "inject pt": ("inject", "TRACE", "--fault", "wrong_token", "--overwrite", "-o", "OUT.pt"),
    "inject folder": ("inject", "TRACE", "--fault", "wrong_token", "-o", "OUT.kvtrace"),
    "convert": ("trace", "convert", "TRACE", "OUT.jsonl"),
    "convert pt": ("trace", "convert", "TRACE", "OUT.pt"),
    "cut": ("trace", "cut", "TRACE", "--steps", "2:3", "-o", "OUT.jsonl"),
    "replay": ("replay", "TRACE", "-o", "OUT.txt"),
    "replay json": ("replay", "TRACE", "--format", "json", "-o", "OUT.json"),
    "inspect": ("inspect", "TRACE", "--slot", "1", "-o", "OUT.txt"),
    "selftest": (
        "selftest",
        "TRACE",
        "--seeds",
        "1",
        "--kinds",
        "early_free",
        "--jobs",
        "1",
        "-o",
        "OUT.txt",
    ),
    "explain": ("explain", "KVC-B03", "-o", "OUT.txt"),
}


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    events = numbered(
        [
            *life("A", [11, 12, 13], [1, 2, 3], row=1, step=1),
            *life("B", [21, 22, 23], [4, 5, 6], row=2, step=2),
            *decode("A", 14, 7, row=1, position=3, step=3),
            *decode("B", 24, 8, row=2, position=3, step=4),
        ]
    )
    return write_jsonl(tmp_path / "t.jsonl", HEAD, events)


@pytest.mark.parametrize("where", ["no folder", "a file", "the kernel's"])
@pytest.mark.parametrize("command", _COMMANDS)
def test_a_place_that_cannot_be_written(
    command: str, where: str, trace: Path, tmp_path: Path, run: Callable[..., Any]
) -> None:
    folder = {"no folder": tmp_path / "none", "a file": trace, "the kernel's": Path("/proc")}
    before = trace.read_bytes()
    words = [w.replace("TRACE", str(trace)) for w in _COMMANDS[command]]
    words = [w.replace("OUT", str(folder[where] / "x")) for w in words]
    ran = run(*words)
    assert ran.code == 4
    assert ran.err.count("error: ") == 1
    assert "cannot be written" in ran.err
    assert "Traceback" not in ran.err
    assert "internal error" not in ran.err
    assert trace.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["t.jsonl"]


_TO_STDOUT: dict[str, tuple[str, ...]] = {
    "replay": ("replay", "TRACE"),
    "replay -q": ("replay", "TRACE", "-q"),
    "replay json": ("replay", "TRACE", "--format", "json"),
    "replay junit": ("replay", "TRACE", "--format", "junit"),
    "class page": ("replay", "--explain-class", "late_write"),
    "inspect": ("inspect", "TRACE", "--slot", "1"),
    "explain": ("explain", "KVC-B03"),
    "info": ("trace", "info", "TRACE"),
    "validate": ("trace", "validate", "TRACE"),
    "convert": ("trace", "convert", "TRACE", "-"),
    "kinds": ("inject", "--list"),
    "help": ("replay", "--help"),
    "version": ("--version",),
}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("command", _TO_STDOUT)
def test_a_full_disk_behind_stdout(command: str, trace: Path) -> None:
    args = [str(trace) if word == "TRACE" else word for word in _TO_STDOUT[command]]
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "kvcanary_cli", *args],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            cwd=ROOT,
        )
    assert ran.returncode == EXIT_INPUT, ran.stderr
    assert ran.stderr.count("error: ") == 1
    assert "No space left on device" in ran.stderr
    assert "Traceback" not in ran.stderr
