"""Every argument check of every launcher, on every backend."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from kvcanary_cli.abi.constants import RealKvHashMode
from kvcanary_cli.abi.plans import VerifyPlan, WritePlan
from kvcanary_cli.abi.sources import RealKvSource

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcanary_cli.backends.interface import Backend

Args = dict[str, Any]

# A tensor on "meta" has a shape but no data, so it stands for another device on any machine.
ELSEWHERE = "meta"


def i64(length: int, device: str) -> torch.Tensor:
    return torch.zeros(length, dtype=torch.int64, device=device)


def i32(length: int, device: str) -> torch.Tensor:
    return torch.zeros(length, dtype=torch.int32, device=device)


def plan_args(device: str) -> Args:
    return {
        "req_pool_indices": i64(2, device),
        "prefix_lens": i64(2, device),
        "extend_seq_lens": i64(2, device),
        "req_to_token": torch.zeros((3, 8), dtype=torch.int32, device=device),
        "verify_plan_out": VerifyPlan.allocate(verify_capacity=8, device=device),
        "write_plan_out": WritePlan.allocate(write_req_capacity=4, device=device),
        "swa_window_size": 0,
        "full_to_swa_index_mapping": i64(9, device),
        "verify_capacity": 8,
        "req_to_verify_expected_tokens": torch.zeros((3, 8), dtype=torch.int32, device=device),
        "req_to_verify_expected_tokens_valid_lens": i64(2, device),
    }


def launch_args(device: str) -> Args:
    return {
        "canary_buf": torch.zeros((6, 32), dtype=torch.uint8, device=device),
        "kernel_kind": 0,
        "violation_ring": torch.zeros((4, 8), dtype=torch.int64, device=device),
        "violation_write_index": i32(1, device),
        "slot_run_counter": i64(1, device),
        "kernel_run_counter": i64(1, device),
        "real_kv_sources": (source(device),),
        "real_kv_hash_mode": RealKvHashMode.ALL,
    }


def verify_args(device: str) -> Args:
    plan = VerifyPlan.allocate(verify_capacity=8, device=device)
    return {**launch_args(device), "plan": plan}


def write_args(device: str) -> Args:
    return {
        **launch_args(device),
        "plan": WritePlan.allocate(write_req_capacity=4, device=device),
        "input_ids": i64(3, device),
        "positions": i64(3, device),
        "out_cache_loc": i64(3, device),
        "enable_chain_position_assert": i32(1, device),
        "expected_input_tokens": i64(3, device),
        "expected_input_positions": i64(3, device),
        "enable_write_input_assert": True,
    }


def real_kv_args(device: str) -> Args:
    return {
        "slots": i64(3, device),
        "real_kv_sources": (source(device),),
        "real_kv_hash_mode": RealKvHashMode.ALL,
    }


def scatter_args(device: str) -> Args:
    return {
        "flat_in": i64(5, device),
        "offsets": i64(3, device),
        "req_pool_indices": i64(2, device),
        "pool_out": torch.zeros((3, 8), dtype=torch.int32, device=device),
    }


VALID: dict[str, Callable[[str], Args]] = {
    "plan": plan_args,
    "verify": verify_args,
    "write": write_args,
    "real_kv_hash": real_kv_args,
    "scatter_req_token_ids": scatter_args,
}


def source(device: str, tensor: torch.Tensor | None = None) -> RealKvSource:
    if tensor is None:
        tensor = torch.zeros((6, 16), dtype=torch.uint8, device=device)
    return RealKvSource(tensor=tensor, page_size=1, num_bytes_per_token=16, read_bytes=16)


@pytest.mark.parametrize("op", list(VALID))
def test_valid_arguments_pass(backend: Backend, op: str) -> None:
    getattr(backend, op)(**VALID[op](backend.device))


def rejects(backend: Backend, op: str, text: str, **changes: Any) -> None:
    """The launch is refused with exactly this text, and nothing has been launched."""
    args = VALID[op](backend.device) | changes
    if backend.device != "cpu":
        text = text.replace("cpu", str(torch.device(backend.device, 0)))
    with pytest.raises(ValueError, match=r"^kv-canary: ") as error:
        getattr(backend, op)(**args)
    assert str(error.value) == text
    counter = args.get("kernel_run_counter")
    if counter is not None and counter.device.type != ELSEWHERE and counter.dtype == torch.int64:
        assert not counter.any()


VECTORS = [
    ("plan", "req_pool_indices", "int64", None, "req_to_token"),
    ("plan", "prefix_lens", "int64", 2, "req_to_token"),
    ("plan", "extend_seq_lens", "int64", 2, "req_to_token"),
    *(
        ("plan", f"verify_plan_out.{name}", dtype, n, "req_to_token")
        for name, dtype, n in (
            ("verify_expected_tokens", "int64", 8),
            ("verify_expected_positions", "int64", 8),
            ("verify_prev_slot_indices", "int64", 8),
            ("verify_num_valid", "int32", 1),
            ("enable", "int32", 1),
        )
    ),
    ("plan", "write_plan_out.write_num_valid_reqs", "int32", 1, "req_to_token"),
    ("plan", "full_to_swa_index_mapping", "int64", None, "req_to_token"),
    ("plan", "req_to_verify_expected_tokens_valid_lens", "int64", 2, "req_to_token"),
    *(
        (op, name, dtype, 1, "canary_buf")
        for op in ("verify", "write")
        for name, dtype in (
            ("violation_write_index", "int32"),
            ("slot_run_counter", "int64"),
            ("kernel_run_counter", "int64"),
        )
    ),
    *(
        ("verify", f"plan.{name}", dtype, n, "canary_buf")
        for name, dtype, n in (
            ("verify_expected_tokens", "int64", 8),
            ("verify_expected_positions", "int64", 8),
            ("verify_prev_slot_indices", "int64", 8),
            ("verify_num_valid", "int32", 1),
            ("enable", "int32", 1),
        )
    ),
    ("write", "plan.write_num_valid_reqs", "int32", 1, "canary_buf"),
    ("write", "input_ids", "int64", 3, "canary_buf"),
    ("write", "out_cache_loc", "int64", 3, "canary_buf"),
    ("write", "enable_chain_position_assert", "int32", 1, "canary_buf"),
    ("write", "expected_input_tokens", "int64", 3, "canary_buf"),
    ("write", "expected_input_positions", "int64", 3, "canary_buf"),
]


@pytest.mark.parametrize(
    ("op", "path", "dtype", "length", "ref"),
    VECTORS,
    ids=[f"{op}-{path}" for op, path, *_ in VECTORS],
)
def test_vectors(
    backend: Backend, op: str, path: str, dtype: str, length: int | None, ref: str
) -> None:
    """Type, dimensions, length, device and contiguity of each vector, in this order."""
    good = _get(VALID[op](backend.device), path)
    device = backend.device
    other = torch.int32 if good.dtype == torch.int64 else torch.int64
    bad = [
        (good.to(other), f"must have dtype torch.{dtype}, got {other}"),
        (good.view(1, -1), f"must be 1-D, got shape (1, {len(good)})"),
        (
            torch.zeros(len(good), dtype=good.dtype, device=ELSEWHERE),
            f"must be on {ref}'s device cpu, got meta",
        ),
    ]
    if length is not None:
        longer = torch.zeros(length + 1, dtype=good.dtype, device=device)
        bad.append((longer, f"length must be {length}, got {length + 1}"))
    if len(good) > 1:
        wide = torch.zeros(2 * len(good), dtype=good.dtype, device=device)
        bad.append((wide[::2], "must be contiguous"))
    for tensor, text in bad:
        rejects(backend, op, f"kv-canary: {path} {text}", **_set(VALID[op](device), path, tensor))


def _get(args: Args, path: str) -> torch.Tensor:
    name, _, inner = path.partition(".")
    return getattr(args[name], inner) if inner else args[name]


def _set(args: Args, path: str, tensor: torch.Tensor) -> Args:
    name, _, inner = path.partition(".")
    return {name: replace(args[name], **{inner: tensor}) if inner else tensor}


def _zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Callable[[str], torch.Tensor]:
    return lambda device: torch.zeros(shape, dtype=dtype, device=device)


def _transposed(*shape: int, dtype: torch.dtype) -> Callable[[str], torch.Tensor]:
    return lambda device: torch.zeros(shape, dtype=dtype, device=device).T


def _elsewhere(*shape: int, dtype: torch.dtype) -> Callable[[str], torch.Tensor]:
    return lambda device: torch.zeros(shape, dtype=dtype, device=ELSEWHERE)


U8, I32, I64 = torch.uint8, torch.int32, torch.int64
TENSORS = [
    ("plan", "req_to_token", _zeros(3, 8), "must have dtype torch.int32, got torch.int64"),
    ("plan", "req_to_token", _zeros(24, dtype=I32), "must be 2-D, got shape (24,)"),
    ("plan", "req_to_token", _transposed(8, 3, dtype=I32), "must be contiguous"),
    (
        "plan",
        "req_to_verify_expected_tokens",
        _zeros(3, 8, dtype=U8),
        "must have dtype torch.int32, got torch.uint8",
    ),
    (
        "plan",
        "req_to_verify_expected_tokens",
        _zeros(24, dtype=I32),
        "must be 2-D, got shape (24,)",
    ),
    ("plan", "req_to_verify_expected_tokens", _zeros(4, 8), "length must be 3, got 4"),
    (
        "plan",
        "req_to_verify_expected_tokens",
        _elsewhere(3, 8, dtype=I32),
        "must be on req_to_token's device cpu, got meta",
    ),
    (
        "plan",
        "req_to_verify_expected_tokens",
        _transposed(8, 3, dtype=I32),
        "must be contiguous",
    ),
    *(
        (op, name, make, text)
        for op in ("verify", "write")
        for name, make, text in (
            ("canary_buf", _zeros(6, 32), "must have dtype torch.uint8, got torch.int64"),
            ("canary_buf", _zeros(64, dtype=U8), "must be 2-D, got shape (64,)"),
            (
                "canary_buf",
                _zeros(6, 24, dtype=U8),
                "slot stride must hold at least 4 int64 fields, got 3",
            ),
            (
                "canary_buf",
                _zeros(6, 36, dtype=U8),
                "slot stride must be a multiple of 8 bytes, got 36",
            ),
            ("canary_buf", _transposed(32, 40, dtype=U8), "must be contiguous"),
            (
                "violation_ring",
                _zeros(4, 8, dtype=I32),
                "must have dtype torch.int64, got torch.int32",
            ),
            ("violation_ring", _zeros(32), "must be 2-D, got shape (32,)"),
            ("violation_ring", _zeros(4, 7), "must have 8 fields a row, got shape (4, 7)"),
            (
                "violation_ring",
                _elsewhere(4, 8, dtype=I64),
                "must be on canary_buf's device cpu, got meta",
            ),
            ("violation_ring", _transposed(8, 8, dtype=I64), "must be contiguous"),
        )
    ),
    ("real_kv_hash", "slots", _zeros(3, dtype=I32), "must have dtype torch.int64, got torch.int32"),
    ("real_kv_hash", "slots", _zeros(1, 3), "must be 1-D, got shape (1, 3)"),
]


@pytest.mark.parametrize(("op", "name", "make", "text"), TENSORS)
def test_tensors(
    backend: Backend, op: str, name: str, make: Callable[[str], torch.Tensor], text: str
) -> None:
    bad = make(backend.device)
    if text == "must be contiguous":
        assert not bad.is_contiguous()
    rejects(backend, op, f"kv-canary: {name} {text}", **{name: bad})


def test_plan_sizes(backend: Backend) -> None:
    device = backend.device
    fn = "launch_canary_plan_kernels"
    if device == "cpu":
        fn += "_torch_reference"
    valid_lens = "req_to_verify_expected_tokens_valid_lens"
    for text, changes in (
        (
            f"{fn} verify_capacity=9 does not match verify_plan_out.verify_slot_indices.shape[0]=8",
            {"verify_capacity": 9},
        ),
        (
            f"{fn} requires {valid_lens} when req_to_verify_expected_tokens is set",
            {valid_lens: None},
        ),
        ("swa_window_size must be non-negative, got -1", {"swa_window_size": -1}),
        (
            "req_to_token_stride0 must be positive, got 0",
            {"req_to_token": torch.zeros((3, 0), dtype=torch.int32, device=device)},
        ),
        (
            "launch_canary_plan_kernels supports at most bs=1 reqs per launch, got bs=2. "
            "Bump _PLAN_BS_BLOCK_SIZE if real workloads need this.",
            {"rows_limit": 1},
        ),
        (
            "bs=2 exceeds write_req_capacity=1",
            {"write_plan_out": WritePlan.allocate(write_req_capacity=1, device=device)},
        ),
        (
            "lut_len must be positive when has_swa_lut is True",
            {"full_to_swa_index_mapping": i64(0, device)},
        ),
    ):
        rejects(backend, "plan", f"kv-canary: {text}", **changes)


@pytest.mark.parametrize(("op", "plan"), [("plan", "write_plan_out"), ("write", "plan")])
def test_write_offsets_fit_the_capacity(backend: Backend, op: str, plan: str) -> None:
    good = VALID[op](backend.device)[plan]
    for length, text in (
        (0, "write_offsets_len must be positive, got 0"),
        (4, "write_offsets_len must equal write_req_capacity + 1, got 4 and 4"),
    ):
        bad = replace(good, write_offsets=i64(length, backend.device))
        rejects(backend, op, f"kv-canary: {text}", **{plan: bad})


def test_write_input_assert_needs_both_or_neither(backend: Backend) -> None:
    required = "kv-canary: expected input tensors are required when enable_write_input_assert=True"
    unwanted = "kv-canary: expected input tensors must be None when enable_write_input_assert=False"
    for name in ("expected_input_tokens", "expected_input_positions"):
        rejects(backend, "write", required, **{name: None})
        changes = {"enable_write_input_assert": False, name: None}
        rejects(backend, "write", unwanted, **changes)


@pytest.mark.parametrize("op", ["verify", "write", "real_kv_hash"])
def test_sources(backend: Backend, op: str) -> None:
    device = backend.device
    name = "real_kv_sources[1].tensor"
    ref = "slots" if op == "real_kv_hash" else "canary_buf"
    strided = torch.zeros((6, 64), dtype=torch.uint8, device=device)[:, ::2]
    deep = torch.zeros((6, 16, 1), dtype=torch.uint8, device=device)
    for tensor, text in (
        (strided, f"{name} rows must be packed (stride(-1) == 1), got strides (64, 2)"),
        (deep, f"{name} (viewed as uint8) must be 2-D, got 3-D"),
        (
            torch.zeros((6, 16), dtype=torch.uint8, device=ELSEWHERE),
            f"{name} must be on {ref}'s device cpu, got meta",
        ),
    ):
        sources = (source(device), source(device, tensor))
        rejects(backend, op, f"kv-canary: {text}", real_kv_sources=sources)
    text = "kv-canary: at most 4 RealKvSource entries supported by the CUDA ABI, got 5"
    rejects(backend, op, text, real_kv_sources=(source(device),) * 5)


def test_scatter(backend: Backend) -> None:
    device, op = backend.device, "scatter_req_token_ids"
    prefix = f"kv-canary: {op}"
    rejects(backend, op, f"{prefix} flat_in must be 1-D, got shape (1, 5)", flat_in=_2d(5, device))
    rejects(backend, op, f"{prefix} pool_out must be 2-D, got shape (8,)", pool_out=i32(8, device))
    rejects(backend, op, f"{prefix} offsets length 4 != bs+1 (3)", offsets=i64(4, device))
    text = (
        f"{prefix} bs+1=513 exceeds BATCH_BLOCK=512; bump _SCATTER_BATCH_BLOCK if real workloads "
        "need this"
    )
    changes = {"offsets": i64(513, device), "req_pool_indices": i64(512, device)}
    rejects(backend, op, text, **changes)
    for name, bad, text in (
        ("flat_in", i32(5, device), "flat_in must be int64, got torch.int32"),
        ("pool_out", _2d(8, device), "pool_out must be int32, got torch.int64"),
    ):
        with pytest.raises(TypeError) as error:
            getattr(backend, op)(**(scatter_args(device) | {name: bad}))
        assert str(error.value) == f"{prefix} {text}"


def _2d(length: int, device: str) -> torch.Tensor:
    return torch.zeros((1, length), dtype=torch.int64, device=device)


@pytest.mark.parametrize(
    ("op", "name"),
    [
        ("plan", "req_to_token"),
        ("verify", "canary_buf"),
        ("write", "canary_buf"),
        ("real_kv_hash", "slots"),
        ("scatter_req_token_ids", "flat_in"),
    ],
)
def test_cpu_refuses_tensors_of_another_device(cpu: Backend, op: str, name: str) -> None:
    with pytest.raises(ValueError, match=f"the cpu backend needs {name} on cpu, got meta"):
        getattr(cpu, op)(**VALID[op](ELSEWHERE))
