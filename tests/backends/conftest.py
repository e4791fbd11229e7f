"""The backends that a test runs on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvcanary_cli.backends import get_backend
from kvcanary_cli.backends.reference.backend import ReferenceBackend

if TYPE_CHECKING:
    from kvcanary_cli.backends.interface import Backend


@pytest.fixture(scope="session", params=["reference", "cpu", "triton"])
def backend(request: pytest.FixtureRequest) -> Backend:
    """Each backend in turn."""
    return get_backend(request.param)


@pytest.fixture(scope="session")
def reference() -> Backend:
    return ReferenceBackend()


@pytest.fixture(scope="session")
def cpu() -> Backend:
    return get_backend("cpu")
