"""SGLang's scheduler, killed while it serves: what it had done can be replayed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.engines.driving import KILLS_S
from tests.engines.killed import check

if TYPE_CHECKING:
    from tests.engines.runs import Run


@pytest.mark.parametrize("done", [f"killed_{k}" for k in range(len(KILLS_S))], indirect=True)
def test_a_killed_scheduler_leaves_what_was_sealed(
    done: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    check(done.folder, done.trace, capsys)
