"""These tests need engines in environments of their own: ``make test-engines``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.engines.runs import Run, Runner

collect_ignore_glob = [] if os.environ.get("KVCANARY_ENGINES") else ["test_*.py"]


@pytest.fixture(scope="session")
def sglang(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Runner]:
    """Does runs of SGLang; those that the collected tests name are under way from the start."""
    from tests.engines.runs import Runner
    from tests.engines.setup_sglang import default_folder, set_up

    set_up(default_folder())
    runner = Runner(tmp_path_factory.mktemp("sglang"))
    for item in request.session.items:
        callspec = getattr(item, "callspec", None)
        if callspec is not None and "done" in callspec.params:
            runner.ask(callspec.params["done"])
    yield runner
    runner.close()


@pytest.fixture
def done(request: pytest.FixtureRequest, sglang: Runner) -> Run:
    """The finished run that the test is parametrized with."""
    return sglang.get(request.param)
