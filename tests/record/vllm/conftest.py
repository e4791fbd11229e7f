"""The fake vLLM, recorded in processes of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.record.helpers import WAIT_S
from tests.record.vllm.fake_vllm import write_package

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[3]


def environment(engine: Path) -> dict[str, str]:
    """An environment in which ``vllm`` is the package in ``engine``."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("KVCANARY_RECORD")}
    return {**env, "PYTHONPATH": os.pathsep.join([str(engine), str(ROOT)])}


@pytest.fixture(scope="session")
def fake_vllm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package ``vllm``."""
    folder = tmp_path_factory.mktemp("fake_vllm")
    write_package(folder)
    return folder


@pytest.fixture
def python(fake_vllm: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs code in a process of its own with the fake engine importable."""

    def run(code: str, **kwargs: Any) -> subprocess.CompletedProcess[str]:
        env = {**environment(kwargs.pop("engine", fake_vllm)), **kwargs.pop("env", {})}
        return subprocess.run(
            [sys.executable, "-c", code],
            env=env,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
            **kwargs,
        )

    return run
