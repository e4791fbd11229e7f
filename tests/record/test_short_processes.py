"""A process that ends right after recording began still ends well, with its trace readable."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from kvcanary_cli.trace.reader import open_trace

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
import sys
from kvcanary_cli.record.options import RecordOptions
from kvcanary_cli.record.session import Session

header = {
    "engine": {"name": "toy", "version": "1"},
    "rank": {"tp": 0},
    "pool": {"slots": 4, "rows": 2, "row_len": 8},
    "records": ["alloc"],
}
session = Session(RecordOptions(path=sys.argv[1]), header)
session.emit({"kind": "alloc", "owner": "A", "slots": [1]})
session.commit(step=True)
"""


@pytest.mark.parametrize("number", range(3))
def test_a_process_that_ends_at_once(tmp_path: Path, number: int) -> None:
    target = tmp_path / "run.kvtrace"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(target)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    (trace,) = target.glob("*.kvtrace")
    assert [e["kind"] for s in open_trace(trace).segments() for e in s.events()] == ["alloc"]
