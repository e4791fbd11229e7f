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
if sys.argv[1] == "without":
    sys.executable = ""
warm.compile_apart("kvcanary_cli.backends.cpu.map_events", "drop_covered")
from kvcanary_cli.backends.cpu.map_events import drop_covered
warm._compile(drop_covered)
print(sum(drop_covered.stats.cache_hits.values()), sum(drop_covered.stats.cache_misses.values()))
"""


@pytest.mark.parametrize(("interpreter", "hits_and_misses"), [("with", "1 0"), ("without", "0 1")])
def test_what_another_process_compiled_is_loaded(
    interpreter: str, hits_and_misses: str, tmp_path: Path
) -> None:
    """Without an interpreter to start, the process compiles by itself."""
    run = subprocess.run(
        [sys.executable, "-c", _PROGRAM, interpreter],
        env={
            **os.environ,
            "NUMBA_CACHE_DIR": str(tmp_path),
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.strip() == hits_and_misses
