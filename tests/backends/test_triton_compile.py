"""Every kernel variant compiles for real GPUs, ahead of time and without one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvcanary_cli.abi.constants import CHAIN_HEAD_HASH, MIX_MULTIPLIER_1, MIX_MULTIPLIER_2

_ROOT = Path(__file__).resolve().parents[2]
_HASHING = {"_real_kv_kernel", "_verify_kernel", "_write_marks_kernel", "_write_kernel"}
_KERNELS = _HASHING | {"_plan_offsets_kernel", "_plan_entries_kernel", "_scatter_kernel"}
_KERNELS |= {"_diff_count_kernel", "_diff_entries_kernel", "_diff_shadow_kernel"}


@pytest.fixture(scope="module", params=["sm_80", "sm_90", "gfx942"])
def compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One dict a kernel variant; the interpreter is off in the process that compiles."""
    environment = {
        **os.environ,
        "TRITON_INTERPRET": "0",
        "TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("triton")),
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.backends._triton_compile", request.param],
        cwd=_ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_every_kernel_has_a_binary(compiled: list[dict[str, Any]]) -> None:
    assert {variant["kernel"] for variant in compiled} == _KERNELS
    assert all(variant["binary_bytes"] > 0 for variant in compiled)


def test_no_kernel_uses_a_float(compiled: list[dict[str, Any]]) -> None:
    assert [variant for variant in compiled if variant["floats"]] == []


def test_hash_constants_keep_all_64_bits(compiled: list[dict[str, Any]]) -> None:
    for variant in compiled:
        wide = set(variant["wide_constants"])
        hashes_chain = variant["kernel"] in {"_verify_kernel", "_write_kernel"}
        folds = variant["constants"].get("NUM_SOURCES", 0) > 0
        if hashes_chain or folds:
            assert {MIX_MULTIPLIER_1, MIX_MULTIPLIER_2} <= wide, variant
        if hashes_chain:
            assert CHAIN_HEAD_HASH in wide, variant


def test_a_chain_waits_for_no_memory(compiled: list[dict[str, Any]]) -> None:
    """Tokens come a block a load, and from thread to thread without shared memory."""
    for variant in (v for v in compiled if v["kernel"] == "_write_kernel"):
        assert variant["shared_bytes"] == 0
        # Three arrays, and the two expected ones: the first block, the ones ahead.
        blocks = 6 + 2 * variant["constants"]["CHECK_INPUTS"]
        assert variant["loads"].count(f"1x{variant['constants']['TOKENS']}") == blocks
        # The seed's row and the offsets; nothing else is loaded a token at a time.
        assert set(variant["loads"]) == {"1", f"1x{variant['constants']['TOKENS']}"}
        assert variant["loads"].count("1") == 6


def test_variants_cover_every_compile_time_choice(compiled: list[dict[str, Any]]) -> None:
    def choices(kernel: str, name: str) -> set[Any]:
        return {v["constants"][name] for v in compiled if v["kernel"] == kernel}

    for kernel in ("_real_kv_kernel", "_verify_kernel", "_write_marks_kernel"):
        assert choices(kernel, "NUM_SOURCES") == {0, 1, 2, 3, 4}
    assert choices("_verify_kernel", "CHECK_TOKENS") == {False, True}
    assert choices("_write_kernel", "CHECK_INPUTS") == {False, True}
    assert choices("_plan_entries_kernel", "HAS_LUT") == {False, True}
    assert choices("_plan_entries_kernel", "HAS_TOKENS") == {False, True}
