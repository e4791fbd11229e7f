"""What `.ci/run` does with engines that can be installed, and with those that cannot."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.engines.environment import ROOT, UNAVAILABLE

if TYPE_CHECKING:
    from pathlib import Path

#: A `make` that writes down what it was asked for; FAILS is a target that fails.
_MAKE = """#!/bin/sh
echo "make $*" >> {log}
case "$1" in {fails}) exit 2;; esac
"""
_SETUP = """import sys
sys.stderr.write({says!r})
sys.exit({status})
"""


def _ci(
    folder: Path, *, sglang: int = 0, vllm: int = 0, fails: str = "nothing"
) -> tuple[int, list[str], str]:
    """Run `.ci/run` where the setups end with the given statuses.

    Returns:
        Its status, what `make` was asked for, and what it printed.
    """
    (folder / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", folder / ".ci" / "run")
    (folder / ".venv" / "bin").mkdir(parents=True)
    (folder / ".venv" / "bin" / "python").symlink_to(sys.executable)
    (folder / "tests" / "engines").mkdir(parents=True)
    for engine, status in (("sglang", sglang), ("vllm", vllm)):
        script = folder / "tests" / "engines" / f"setup_{engine}.py"
        says = f"{engine} cannot be installed here: not offered\n" if status else ""
        script.write_text(_SETUP.format(says=says, status=status))
    make, log = folder / "bin" / "make", folder / "made"
    make.parent.mkdir()
    make.write_text(_MAKE.format(log=log, fails=fails))
    make.chmod(0o755)
    done = subprocess.run(
        [str(folder / ".ci" / "run")],
        env={"PATH": f"{make.parent}:/usr/bin:/bin"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, log.read_text().splitlines(), done.stdout


def test_all_engines_that_can_be_installed_are_tested(tmp_path: Path) -> None:
    status, made, said = _ci(tmp_path)
    assert (status, made) == (0, ["make test", "make test-engines ENGINES=sglang vllm"])
    assert "NOT RUN" not in said


def test_an_engine_that_is_not_offered_is_said_and_no_failure(tmp_path: Path) -> None:
    status, made, said = _ci(tmp_path, vllm=UNAVAILABLE)
    assert (status, made) == (0, ["make test", "make test-engines ENGINES=sglang"])
    last = said.splitlines()[-1]
    assert last == "**** engine tests NOT RUN: vllm cannot be installed here: not offered ****"


def test_without_any_engine_nothing_is_tested_and_both_are_said(tmp_path: Path) -> None:
    status, made, said = _ci(tmp_path, sglang=UNAVAILABLE, vllm=UNAVAILABLE)
    assert (status, made) == (0, ["make test"])
    assert said.count("NOT RUN") == 2


@pytest.mark.parametrize("fails", ["test", "test-engines"])
def test_a_test_that_fails_is_a_failure(fails: str, tmp_path: Path) -> None:
    status, made, said = _ci(tmp_path, vllm=UNAVAILABLE, fails=fails)
    assert status == 2
    assert made[-1].split()[1] == fails
    assert "NOT RUN" not in said


def test_a_setup_that_fails_otherwise_is_a_failure(tmp_path: Path) -> None:
    status, made, said = _ci(tmp_path, sglang=1)
    assert (status, made) == (1, ["make test"])
    assert "sglang cannot" in said
