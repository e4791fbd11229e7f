"""Every command of configs/README.md prints what stands there."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import pytest

from tests.cli.conftest import ROOT, Ran, run
from tests.tools.console_blocks import Block, block_output, blocks

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["run"]

README = (ROOT / "configs" / "README.md").read_text(encoding="utf-8")
BLOCKS = blocks(README)


def test_every_configuration_has_a_command() -> None:
    files = sorted(path.name for path in (ROOT / "configs").glob("*.yaml"))
    assert len(files) == 9
    for name in files:
        assert any(f"configs/{name}" in block.command for block in BLOCKS), name
        assert f"[{name}]({name})" in README


@pytest.mark.parametrize("block", BLOCKS, ids=[f"{k}" for k in range(len(BLOCKS))])
def test_command(run: Callable[..., Ran], block: Block) -> None:
    program, *args = shlex.split(block.command)
    assert program == "kvcanary"
    ran = run(*args)
    assert block_output(ran.out, ran.code) == block.output, (
        "python -m tests.tools.console_blocks configs/README.md writes the results anew"
    )
