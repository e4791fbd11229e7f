"""A fake engine, recorded in processes of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.record.fake_sglang import write_package
from tests.record.helpers import WAIT_S

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@pytest.fixture(scope="session")
def fake_engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package ``sglang``."""
    folder = tmp_path_factory.mktemp("fake")
    write_package(folder)
    return folder


@pytest.fixture
def engine_env(fake_engine: Path) -> dict[str, str]:
    """An environment in which ``sglang`` is the fake one."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("KVCANARY_RECORD")}
    return {**env, "PYTHONPATH": os.pathsep.join([str(fake_engine), str(ROOT)])}


@pytest.fixture
def python(engine_env: dict[str, str]) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs code in a process of its own with the fake engine importable."""

    def run(code: str, **kwargs: Any) -> subprocess.CompletedProcess[str]:
        env = {**engine_env, **kwargs.pop("env", {})}
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
