"""Waiting ends when nothing is done any more, however slow what is done may be."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.engines import waiting
from tests.engines.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path


def test_who_stops_writing_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("begun")
    with pytest.raises(AssertionError, match="nothing was written for 0 s\nbegun"):
        wait_until(lambda: False, tmp_path, (tmp_path / "log").read_text, stalled_s=0.3)


def test_who_goes_on_writing_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much longer it takes than the pause that is allowed."""
    now = [0.0]
    monkeypatch.setattr(waiting, "_now", lambda: now[0])
    rounds = 0

    def is_done() -> bool:
        nonlocal rounds
        rounds += 1
        now[0] += 5.0
        (tmp_path / "log").write_text("x" * rounds)
        return rounds == 10

    wait_until(is_done, tmp_path, str, stalled_s=7.0)
    assert now[0] == 50.0
