"""``run`` calls the command line in this process; ``held`` is a trace that never ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cli.conftest import run
from tests.fleet.held import Held

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["run"]


@pytest.fixture
def held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    """It passes for a file, so that it can be handed to another process."""
    monkeypatch.setattr("kvcanary_cli.fleet.inputs.refuse_pipes", lambda inputs: None)
    held = Held(tmp_path / "held.jsonl")
    yield held
    held.close()
