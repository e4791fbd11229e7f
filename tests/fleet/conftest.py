"""``run`` calls the command line in this process."""

from __future__ import annotations

from tests.cli.conftest import run

__all__ = ["run"]
