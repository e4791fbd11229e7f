"""Blocks of findings as the command prints them, and diagnoses to look into."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcanary_cli.cli.main import main
from tests.attribution.helpers import diagnose_path

if TYPE_CHECKING:
    from kvcanary_cli.attribution.diagnose import Diagnosis

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"


def diagnosed(path: str) -> Diagnosis:
    """The diagnosis of one trace, by a path from the checkout's root."""
    return diagnose_path(ROOT / path)


def blocks_of(path: str, capsys: Any, monkeypatch: Any) -> str:
    """Everything from the first headline to the last frozen line."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("NO_COLOR", "1")
    assert main(["replay", path]) == 1
    lines = capsys.readouterr().out.splitlines()
    first = next(k for k, line in enumerate(lines) if line.startswith("==kvcanary== ERROR: "))
    last = max(k for k, line in enumerate(lines) if line.startswith("SUMMARY: kvcanary: "))
    return "\n".join(line.rstrip() for line in lines[first : last + 1])
