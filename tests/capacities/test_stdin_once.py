"""Stdin is read once, whichever options ask for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cli.conftest import Ran, run

if TYPE_CHECKING:
    from collections.abc import Callable

    Run = Callable[..., Ran]

__all__ = ["run"]


@pytest.mark.parametrize(
    "args",
    [["-", "--against", "-"], ["-", "--log", "-"], ["c.yaml", "--log", "-", "--against", "-"]],
)
def test_stdin_twice_is_an_error(run: Run, args: list[str]) -> None:
    ran = run("check-capacities", *args)
    assert ran.code == 2
    assert "stdin can be read once" in ran.err
