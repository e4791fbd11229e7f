"""The triton backend against the public package's own outputs, to the bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvcanary_cli.backends import get_backend
from tests.tools.run_golden import check_errors, check_golden_file

_GOLDEN = Path(__file__).resolve().parents[1] / "data" / "golden"
_FILES = sorted(_GOLDEN.glob("*.pt"))


def test_all_golden_files_are_there() -> None:
    assert len(_FILES) == 44


@pytest.mark.parametrize("path", _FILES, ids=lambda path: path.stem)
def test_golden_file(path: Path) -> None:
    assert check_golden_file(path, get_backend("triton")).difference is None


def test_error_texts() -> None:
    assert check_errors(_GOLDEN / "errors.json", get_backend("triton")).difference is None
