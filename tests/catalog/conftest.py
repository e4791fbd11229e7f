"""The command line's runner, as in the tests of the other commands."""

from __future__ import annotations

from tests.cli.conftest import run

__all__ = ["run"]
