"""These tests need engines in environments of their own: ``make test-engines``."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.engines.runs import Run, Runner

#: Engines whose environments are there, as the Makefile names them: none in the plain suite.
_THERE = os.environ.get("KVCANARY_ENGINES", "").split()
_LEFT_OUT = {"sglang", "vllm"}.difference(_THERE)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out the tests of an engine that is not there, ``test_ENGINE*.py``."""
    if collection_path.parent != Path(__file__).parent:
        return None
    words = collection_path.stem.split("_")
    return True if words[0] == "test" and words[1] in _LEFT_OUT else None


@pytest.fixture(scope="session", autouse=True)
def scratch() -> Iterator[None]:
    """Where engines keep files that nobody removes: of a short name, for there are sockets."""
    before = os.environ.get("TMPDIR")
    with tempfile.TemporaryDirectory(prefix="kv", ignore_cleanup_errors=True) as folder:
        os.environ["TMPDIR"] = folder
        yield
    os.environ.pop("TMPDIR")
    if before is not None:
        os.environ["TMPDIR"] = before


@pytest.fixture(scope="session")
def sglang_runner(scratch: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    """The process that does runs of SGLang; each worker of the tests has its own."""
    from tests.engines.runs import Runner

    runner = Runner(tmp_path_factory.mktemp("sglang"))
    yield runner
    runner.close()


@pytest.fixture(scope="module")
def sglang(request: pytest.FixtureRequest, sglang_runner: Runner) -> Runner:
    """Does runs of SGLang; those that a module's tests name are under way from its start."""
    for item in request.session.items:
        callspec = getattr(item, "callspec", None)
        if item.path == request.path and callspec is not None and "done" in callspec.params:
            sglang_runner.ask(callspec.params["done"])
    return sglang_runner


@pytest.fixture
def done(request: pytest.FixtureRequest, sglang: Runner) -> Run:
    """The finished run that the test is parametrized with."""
    return sglang.get(request.param)
