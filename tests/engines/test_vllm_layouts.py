"""A fingerprint is of what vLLM's own kernel writes for a slot, in every layout of vLLM's."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from tests.engines.environment import ROOT
from tests.engines.setup_vllm import ENVIRONMENT
from tests.engines.vllm_runs import engine_env

_CODE = """
from tests.engines.triton_on_cpu import pretend
pretend()
from tests.engines.vllm_layouts import main
main()
"""
#: Pages that are padded, or cut into smaller ones, lie one behind the other in vLLM.
_NOT_EVERYWHERE = ("padded_pages", "smaller_kernel_blocks")


@pytest.fixture(scope="module")
def seen() -> dict[str, dict[str, Any]]:
    done = subprocess.run(
        [str(ENVIRONMENT.python), "-c", _CODE],
        cwd=ROOT,
        env=engine_env(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_what_a_write_changes_is_the_slots_that_it_names(seen: dict[str, dict[str, Any]]) -> None:
    told = {name: of for name, of in seen.items() if "impossible" not in of}
    for name, of in told.items():
        assert of == {"by_other_layers": [], "by_a_write": [3, 17, 40, 79], "of_equal_tokens": 1}, (
            name
        )
    kinds = {name.split()[0] for name in seen}
    for kind in kinds:
        layouts = {name.split()[1] for name in told if name.split()[0] == kind}
        assert len(layouts) == 6 if kind not in _NOT_EVERYWHERE else {"LBHNC", "LBNHC"} <= layouts
