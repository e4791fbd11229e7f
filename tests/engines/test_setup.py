"""How the setup of an engine's environment ends. Nothing is downloaded."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from tests.engines import environment
from tests.engines.environment import UNAVAILABLE, Environment

if TYPE_CHECKING:
    from pathlib import Path

ENGINE = Environment(
    engine="sglang", version="1", torch="torch==2", steps=(("install", "sglang==1"),)
)

#: What pip says, and whether it is the index or the way there.
SAID = {
    "ERROR: Could not find a version that satisfies the requirement torch==2 (from versions: none)"
    "\nERROR: No matching distribution found for torch==2": True,
    "ERROR: HTTP error 503 while getting https://index/torch.whl": True,
    "pip._vendor.requests.exceptions.ConnectionError: HTTPSConnectionPool(host='index', port=443): "
    "Max retries exceeded with url: /torch": True,
    "pip._vendor.urllib3.exceptions.ReadTimeoutError: HTTPSConnectionPool(host='index', "
    "port=443): Read timed out.": True,
    "ERROR: Cannot install a==1 and b==2 because these package versions have conflicting "
    "dependencies.\nERROR: ResolutionImpossible": False,
    "WARNING: Retrying after connection broken by 'ReadTimeoutError'\nERROR: Could not install "
    "packages due to an OSError: [Errno 28] No space left on device": False,
    "error: subprocess-exited-with-error": False,
}


def _fake_python(folder: Path, does: str) -> None:
    """Put a script in the place of the environment's interpreter."""
    python = folder / "build" / "engines" / "sglang-1" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\n{does}\n")
    python.chmod(0o755)


def _fake_pip(folder: Path, said: str, status: int) -> Environment:
    """An environment whose pip says ``said`` and ends with ``status``."""
    (folder / "said").write_text(said + "\n")
    _fake_python(folder, f"cat {folder / 'said'}\nexit {status}")
    return ENGINE


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout in which environments are folders only."""
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    monkeypatch.setattr(environment.venv, "create", lambda *_args, **_options: None)
    return tmp_path


@pytest.mark.parametrize(("said", "is_index"), SAID.items())
def test_an_engine_that_the_index_does_not_give_has_its_own_status(
    said: str, is_index: bool, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        environment.main(_fake_pip(here, said, 1))
    if is_index:
        assert ended.value.code == UNAVAILABLE
        last = said.splitlines()[-1].removeprefix("ERROR: ")
        assert capsys.readouterr().err == f"sglang 1 cannot be installed here: {last}\n"
    else:
        assert said.splitlines()[-1] in str(ended.value.code)
    assert not ENGINE.is_ready()


def test_a_gpu_build_of_torch_is_not_taken(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine = _fake_pip(here, "", 0)
    (engine.folder / "lib" / "python3" / "site-packages" / "nvidia_cublas").mkdir(parents=True)
    with pytest.raises(SystemExit) as ended:
        environment.main(engine)
    assert ended.value.code == UNAVAILABLE
    assert "no CPU build of torch==2" in capsys.readouterr().err


def test_a_finished_environment_is_used_again(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = _fake_pip(here, "", 0)
    environment.main(engine)
    assert capsys.readouterr().out == f"{engine.python}\n"
    assert engine.is_ready()
    engine.python.unlink()
    environment.main(engine)
    other = Environment(engine="sglang", version="1", torch="torch==3", steps=engine.steps)
    assert not other.is_ready()


def test_what_pip_itself_says_of_an_index_without_a_package(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The real pip, with an empty folder as all there is."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(here))
    engine = Environment(engine="sglang", version="1", torch="no-such-torch==2", steps=())
    _fake_python(here, f'exec {sys.executable} "$@"')
    with pytest.raises(SystemExit) as ended:
        environment.main(engine)
    assert ended.value.code == UNAVAILABLE
    said = "sglang 1 cannot be installed here: No matching distribution found for no-such-torch==2"
    assert capsys.readouterr().err.strip() == said
