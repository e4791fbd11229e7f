"""Settings that must be in place before any kernel module is imported."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hypothesis import settings

from tests.tools.triton_mode import use_interpreter_without_gpu

if TYPE_CHECKING:
    import pytest

use_interpreter_without_gpu()

settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """``KVCANARY_EXAMPLES=10``: each randomised test draws ten times as many examples."""
    times = int(os.environ.get("KVCANARY_EXAMPLES", "1"))
    for item in items:
        test = getattr(item, "obj", None)
        own = getattr(test, "_hypothesis_internal_use_settings", None)
        if times > 1 and own is not None:
            more = settings(own, max_examples=times * own.max_examples)
            test._hypothesis_internal_use_settings = more  # type: ignore[union-attr]
