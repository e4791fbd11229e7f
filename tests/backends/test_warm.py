"""Kernels are compiled apart, where the compiler's memory ends with its process."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

_PROGRAM = """
import sys
from kvcanary_cli.backends.cpu import warm
if len(sys.argv) > 1:
    sys.executable = sys.argv[1]
warm.compile_apart("kvcanary_cli.backends.cpu.map_events", "drop_covered")
from kvcanary_cli.backends.cpu.map_events import drop_covered
warm._compile(drop_covered)
print(sum(drop_covered.stats.cache_hits.values()), sum(drop_covered.stats.cache_misses.values()))
"""
_LOADED, _COMPILED_HERE = "1 0", "0 1"


def _hits_and_misses(*interpreter: str, tmp_path: Path, folder: Path | None = None) -> str:
    run = subprocess.run(
        [sys.executable, "-P", "-c", _PROGRAM, *interpreter],
        env={
            **os.environ,
            "NUMBA_CACHE_DIR": str(tmp_path),
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        },
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return run.stdout.strip()


def test_what_another_process_compiled_is_loaded(tmp_path: Path) -> None:
    """Whatever lies in the folder that it runs in."""
    folder = tmp_path / "incident"
    folder.mkdir()
    (folder / "numba.py").write_text("raise SystemExit")
    assert _hits_and_misses(tmp_path=tmp_path, folder=folder) == _LOADED


@pytest.mark.parametrize("interpreter", ["", "/no/such/python", "/bin/false"])
def test_without_another_process_this_one_compiles(interpreter: str, tmp_path: Path) -> None:
    """There is no interpreter, it cannot be started, or it dies."""
    assert _hits_and_misses(interpreter, tmp_path=tmp_path) == _COMPILED_HERE
