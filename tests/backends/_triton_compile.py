"""Compile every Triton kernel for given targets without a GPU; run in a process of its own.

    python -m tests.backends._triton_compile TARGET...

The launchers are called with CPU tensors and what they would have launched is compiled instead, so
that exactly the argument types and compile-time constants of real launches are covered. Prints one
JSON line for each kernel variant and target: its name, the target, the size of the binary, its
shared memory, the shapes of its loads, the floating-point types and the 64-bit constants of its
Triton IR. ``TRITON_INTERPRET`` must be off.
"""

from __future__ import annotations

import itertools
import json
import re
import sys
from dataclasses import dataclass
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kvcanary_cli.abi.constants import RealKvHashMode
from kvcanary_cli.abi.faults import new_fault_cell
from kvcanary_cli.abi.plans import VerifyPlan, WritePlan
from kvcanary_cli.abi.sources import RealKvSource
from kvcanary_cli.backends.triton.diff_rows import launch_diff_rows_kernels
from kvcanary_cli.backends.triton.plan_entries import launch_plan_kernels
from kvcanary_cli.backends.triton.real_kv import launch_real_kv_kernel
from kvcanary_cli.backends.triton.scatter import launch_scatter_kernel
from kvcanary_cli.backends.triton.verify import launch_verify_kernel
from kvcanary_cli.backends.triton.write import launch_write_kernels

TARGETS = {
    "sm_80": (GPUTarget("cuda", 80, 32), "cubin"),
    "sm_90": (GPUTarget("cuda", 90, 32), "cubin"),
    "gfx942": (GPUTarget("hip", "gfx942", 64), "hsaco"),
}

_POINTERS = {torch.int64: "*i64", torch.int32: "*i32", torch.uint8: "*u8"}


@dataclass(frozen=True)
class Variant:
    """A kernel with the types and constants of one launch."""

    kernel: Any
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, Any], ...]
    num_warps: int


def collect_variants() -> list[Variant]:
    """What the launchers launch, over every compile-time choice they make."""
    variants: dict[Variant, None] = {}

    def note(
        kernel: Any, *args: Any, grid: Any, warmup: bool, num_warps: int, **named: Any
    ) -> None:
        assert not args
        assert not warmup
        assert all(0 < n < 2**31 for n in grid)
        constants = {p.name: named[p.name] for p in kernel.params if p.is_constexpr}
        signature = {
            name: "constexpr" if name in constants else _type_of(named[name])
            for name in kernel.arg_names
        }
        assert set(named) == set(signature)
        variants[Variant(kernel, tuple(signature.items()), tuple(constants.items()), num_warps)] = (
            None
        )

    original, triton.JITFunction.run = triton.JITFunction.run, note
    try:
        _launch_everything()
    finally:
        triton.JITFunction.run = original
    return list(variants)


def _type_of(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return _POINTERS[value.dtype]
    assert type(value) is int
    return "i32" if -(2**31) <= value < 2**31 else "i64"


def _i64(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


def _launch_everything() -> None:
    for has_lut, pool_dtype, rows in itertools.product(
        (False, True), (None, torch.int32, torch.int64), (1, 4096)
    ):
        _launch_plan(has_lut, pool_dtype, rows)
    modes = [(RealKvHashMode.NONE, 1), (RealKvHashMode.PARTIAL, 4)]
    modes += [(RealKvHashMode.ALL, num_sources) for num_sources in range(1, 5)]
    for mode, num_sources in modes:
        sources = _sources(num_sources)
        launch_real_kv_kernel(
            slots=_i64(1, 2),
            real_kv_sources=sources,
            real_kv_hash_mode=mode,
            fault=new_fault_cell(),
        )
        for flag in (False, True):
            _launch_verify(flag, sources, mode)
            _launch_write(flag, sources, mode)
    launch_scatter_kernel(
        flat_in=_i64(1, 2, 3),
        offsets=_i64(0, 1, 3),
        req_pool_indices=_i64(1, 2),
        pool_out=torch.zeros((4, 8), dtype=torch.int32),
    )
    for dtype in (torch.int32, torch.int64):
        launch_diff_rows_kernels(
            rows=_i64(1, 2),
            lens=_i64(3, 8),
            table=torch.zeros((4, 8), dtype=dtype),
            shadow=torch.zeros((4, 8), dtype=dtype),
            entries_out=torch.zeros((4, 3), dtype=torch.int64),
            count_out=_i64(0),
            width=8,
        )


def _sources(count: int) -> tuple[RealKvSource, ...]:
    """Page sizes, strips and element types of real pools; the third starts at an odd byte."""
    odd = torch.zeros(1 + 8 * 96, dtype=torch.uint8)[1:].view(8, 96)
    shapes = (
        (torch.zeros((8, 1024), dtype=torch.bfloat16), 1, 2048, 2048),
        (torch.zeros((8, 640), dtype=torch.uint8), 16, 32, 32),
        (odd, 2, 48, 48),
        (torch.zeros((8, 64), dtype=torch.float32), 4, 64, 16),
    )
    return tuple(
        RealKvSource(tensor=t, page_size=p, num_bytes_per_token=n, read_bytes=r)
        for t, p, n, r in shapes[:count]
    )


def _launch_plan(has_lut: bool, pool_dtype: torch.dtype | None, rows: int) -> None:
    launch_plan_kernels(
        req_pool_indices=torch.ones(rows, dtype=torch.int64),
        prefix_lens=torch.ones(rows, dtype=torch.int64),
        extend_seq_lens=torch.ones(rows, dtype=torch.int64),
        req_to_token=torch.zeros((4, 8), dtype=torch.int32),
        verify_plan_out=VerifyPlan.allocate(verify_capacity=8),
        write_plan_out=WritePlan.allocate(write_req_capacity=rows),
        swa_window_size=4 if has_lut else 0,
        full_to_swa_index_mapping=_i64(0, 1, -1) if has_lut else None,
        verify_capacity=8,
        req_to_verify_expected_tokens=(
            None if pool_dtype is None else torch.zeros((4, 8), dtype=pool_dtype)
        ),
        req_to_verify_expected_tokens_valid_lens=(
            None if pool_dtype is None else torch.ones(rows, dtype=torch.int64)
        ),
        fault=new_fault_cell(),
    )


def _context(sources: tuple[RealKvSource, ...], mode: RealKvHashMode) -> dict[str, Any]:
    return {
        "canary_buf": torch.zeros((8, 32), dtype=torch.uint8),
        "kernel_kind": 1,
        "violation_ring": torch.zeros((4, 8), dtype=torch.int64),
        "violation_write_index": torch.zeros(1, dtype=torch.int32),
        "slot_run_counter": _i64(0),
        "kernel_run_counter": _i64(0),
        "real_kv_sources": sources,
        "real_kv_hash_mode": mode,
        "fault": new_fault_cell(),
    }


def _launch_verify(
    check_tokens: bool, sources: tuple[RealKvSource, ...], mode: RealKvHashMode
) -> None:
    launch_verify_kernel(
        **_context(sources, mode),
        plan=VerifyPlan.allocate(verify_capacity=8),
        check_verify_expected_token=check_tokens,
    )


def _launch_write(
    check_inputs: bool, sources: tuple[RealKvSource, ...], mode: RealKvHashMode
) -> None:
    tokens = _i64(1, 2, 3)
    launch_write_kernels(
        **_context(sources, mode),
        plan=WritePlan.allocate(write_req_capacity=2),
        input_ids=tokens,
        positions=tokens,
        out_cache_loc=tokens,
        enable_chain_position_assert=torch.ones(1, dtype=torch.int32),
        expected_input_tokens=tokens if check_inputs else None,
        expected_input_positions=tokens if check_inputs else None,
        enable_write_input_assert=check_inputs,
    )


def compile_variant(variant: Variant, target: str) -> dict[str, Any]:
    gpu, binary = TARGETS[target]
    source = ASTSource(
        fn=variant.kernel,
        signature=dict(variant.signature),
        constexprs={
            (variant.kernel.arg_names.index(name),): value for name, value in variant.constants
        },
    )
    compiled = triton.compile(source, target=gpu, options={"num_warps": variant.num_warps})
    ir = compiled.asm["ttir"]
    return {
        "kernel": variant.kernel.fn.__name__,
        "target": target,
        "constants": dict(variant.constants),
        "binary_bytes": len(compiled.asm[binary]),
        "shared_bytes": compiled.metadata.shared,
        "loads": sorted(re.findall(r"tt\.load .*tensor<(\w+)x!tt\.ptr", ir)),
        "floats": sorted(set(re.findall(r"\b(?:f16|bf16|f32|f64|f8\w*)\b", ir))),
        "wide_constants": sorted(
            {
                int(value) % 2**64
                for value in re.findall(r"(-?\d+) : i64|dense<(-?\d+)> : tensor<\w+xi64>", ir)
                for value in value
                if value and abs(int(value)) >= 2**40
            }
        ),
    }


def main(targets: list[str]) -> int:
    for variant in collect_variants():
        for target in targets:
            sys.stdout.write(json.dumps(compile_variant(variant, target)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
