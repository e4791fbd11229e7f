"""The public package's own reference, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.tools.run_golden import check_capacities, check_errors, check_golden_file

if TYPE_CHECKING:
    from kvcanary_cli.backends.interface import Backend

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
FILES = sorted(GOLDEN.glob("*.pt"))


def test_golden_files_are_there() -> None:
    assert len(FILES) == 44


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_golden_file(backend: Backend, path: Path) -> None:
    assert check_golden_file(path, backend).difference is None


def test_capacities() -> None:
    result = check_capacities(GOLDEN / "capacities.json")
    assert result.difference is None
    assert result.checked == "28 cases"


def test_errors(backend: Backend) -> None:
    result = check_errors(GOLDEN / "errors.json", backend)
    assert result.difference is None
    assert result.checked == "22 cases"
