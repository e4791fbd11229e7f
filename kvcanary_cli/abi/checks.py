"""Argument checks that every launcher makes before it launches, with upstream's texts.

Shape, dtype, device and contiguity only: nothing here reads a tensor's data, so a check never
synchronises with a device. What only the data can show is a fault (``abi.faults``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcanary_cli.abi.constants import (
    PLAN_ROWS_LIMIT,
    REAL_KV_SOURCES_LIMIT,
    RING_FIELDS,
    SCATTER_OFFSETS_LIMIT,
    SLOT_BYTES,
    SLOT_FIELDS,
)
from kvcanary_cli.abi.tensor_checks import (
    check_contiguous,
    check_device,
    check_dim,
    check_dtype,
    check_len,
    check_vector,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from kvcanary_cli.abi.plans import VerifyPlan, WritePlan
    from kvcanary_cli.abi.sources import RealKvSource


def check_plan_args(
    *,
    req_pool_indices: torch.Tensor,
    prefix_lens: torch.Tensor,
    extend_seq_lens: torch.Tensor,
    req_to_token: torch.Tensor,
    verify_plan_out: VerifyPlan,
    write_plan_out: WritePlan,
    swa_window_size: int,
    full_to_swa_index_mapping: torch.Tensor | None,
    verify_capacity: int,
    req_to_verify_expected_tokens: torch.Tensor | None = None,
    req_to_verify_expected_tokens_valid_lens: torch.Tensor | None = None,
    rows_limit: int = PLAN_ROWS_LIMIT,
) -> None:
    """Check the arguments of a plan launch.

    Raises:
        ValueError: KVC-C02, C03, C05, C08, C09, C11 to C13, C15 to C18, S12.
    """
    import torch

    # Upstream's launcher hands CPU tensors to its reference, whose texts carry its own name.
    fn = "launch_canary_plan_kernels"
    if req_to_token.device.type == "cpu":
        fn += "_torch_reference"
    if verify_capacity != verify_plan_out.verify_slot_indices.shape[0]:
        raise ValueError(
            f"kv-canary: {fn} verify_capacity={verify_capacity} does not match "
            "verify_plan_out.verify_slot_indices.shape[0]="
            f"{verify_plan_out.verify_slot_indices.shape[0]}"
        )
    if req_to_verify_expected_tokens is not None and (
        req_to_verify_expected_tokens_valid_lens is None
    ):
        raise ValueError(
            f"kv-canary: {fn} requires req_to_verify_expected_tokens_valid_lens when "
            "req_to_verify_expected_tokens is set"
        )
    if swa_window_size < 0:
        raise ValueError(f"kv-canary: swa_window_size must be non-negative, got {swa_window_size}")
    check_dtype("req_to_token", req_to_token, torch.int32)
    check_dim("req_to_token", req_to_token, 2)
    check_contiguous("req_to_token", req_to_token)
    if req_to_token.shape[1] <= 0:
        raise ValueError(
            f"kv-canary: req_to_token_stride0 must be positive, got {req_to_token.shape[1]}"
        )
    bs = int(req_pool_indices.shape[0])
    if bs > rows_limit:
        raise ValueError(
            f"kv-canary: launch_canary_plan_kernels supports at most bs={rows_limit} reqs per "
            f"launch, got bs={bs}. Bump _PLAN_BS_BLOCK_SIZE if real workloads need this."
        )
    ref = ("req_to_token", req_to_token)
    check_vector("req_pool_indices", req_pool_indices, torch.int64, None, *ref)
    check_vector("prefix_lens", prefix_lens, torch.int64, bs, *ref)
    check_vector("extend_seq_lens", extend_seq_lens, torch.int64, bs, *ref)
    check_verify_plan(verify_plan_out, *ref, prefix="verify_plan_out")
    check_write_plan(write_plan_out, *ref, prefix="write_plan_out")
    if bs > write_plan_out.capacity:
        raise ValueError(f"kv-canary: bs={bs} exceeds write_req_capacity={write_plan_out.capacity}")
    if full_to_swa_index_mapping is not None:
        name = "full_to_swa_index_mapping"
        check_vector(name, full_to_swa_index_mapping, torch.int64, None, *ref)
        if full_to_swa_index_mapping.shape[0] == 0:
            raise ValueError("kv-canary: lut_len must be positive when has_swa_lut is True")
    if req_to_verify_expected_tokens is not None:
        name = "req_to_verify_expected_tokens"
        # int64 is ours: salted token ids are 63-bit. Upstream's pool is int32.
        if req_to_verify_expected_tokens.dtype not in (torch.int32, torch.int64):
            check_dtype(name, req_to_verify_expected_tokens, torch.int32)
        check_dim(name, req_to_verify_expected_tokens, 2)
        check_len(name, req_to_verify_expected_tokens, int(req_to_token.shape[0]))
        check_device(name, req_to_verify_expected_tokens, *ref)
        check_contiguous(name, req_to_verify_expected_tokens)
        assert req_to_verify_expected_tokens_valid_lens is not None
        check_vector(
            "req_to_verify_expected_tokens_valid_lens",
            req_to_verify_expected_tokens_valid_lens,
            torch.int64,
            bs,
            *ref,
        )


def check_verify_plan(
    plan: VerifyPlan, ref_name: str, ref: torch.Tensor, *, prefix: str = "plan"
) -> None:
    """Check the six tensors of a verify plan.

    Raises:
        ValueError: KVC-C15 to C18, S12.
    """
    import torch

    capacity = int(plan.verify_slot_indices.shape[0])
    for field in (
        "verify_slot_indices",
        "verify_expected_tokens",
        "verify_expected_positions",
        "verify_prev_slot_indices",
    ):
        name = f"{prefix}.{field}"
        check_vector(name, getattr(plan, field), torch.int64, capacity, ref_name, ref)
    for field in ("verify_num_valid", "enable"):
        check_vector(f"{prefix}.{field}", getattr(plan, field), torch.int32, 1, ref_name, ref)


def check_write_plan(
    plan: WritePlan, ref_name: str, ref: torch.Tensor, *, prefix: str = "plan"
) -> None:
    """Check the three tensors of a write plan.

    Raises:
        ValueError: KVC-C07, C12, C15 to C18, S12.
    """
    import torch

    offsets_len = int(plan.write_offsets.shape[0])
    if offsets_len <= 0:
        raise ValueError(f"kv-canary: write_offsets_len must be positive, got {offsets_len}")
    capacity = int(plan.write_seed_slot_indices.shape[0])
    if offsets_len != capacity + 1:
        raise ValueError(
            "kv-canary: write_offsets_len must equal write_req_capacity + 1, "
            f"got {offsets_len} and {capacity}"
        )
    for field, dtype, length in (
        ("write_offsets", torch.int64, capacity + 1),
        ("write_seed_slot_indices", torch.int64, capacity),
        ("write_num_valid_reqs", torch.int32, 1),
    ):
        check_vector(f"{prefix}.{field}", getattr(plan, field), dtype, length, ref_name, ref)


def _check_launch_context(
    *,
    canary_buf: torch.Tensor,
    violation_ring: torch.Tensor,
    violation_write_index: torch.Tensor,
    slot_run_counter: torch.Tensor,
    kernel_run_counter: torch.Tensor,
    real_kv_sources: Sequence[RealKvSource],
) -> None:
    import torch

    if len(real_kv_sources) > REAL_KV_SOURCES_LIMIT:
        raise ValueError(
            f"kv-canary: at most {REAL_KV_SOURCES_LIMIT} RealKvSource entries supported by the "
            f"CUDA ABI, got {len(real_kv_sources)}"
        )
    check_dtype("canary_buf", canary_buf, torch.uint8)
    check_dim("canary_buf", canary_buf, 2)
    if canary_buf.shape[1] < SLOT_BYTES:
        raise ValueError(
            "kv-canary: canary_buf slot stride must hold at least "
            f"{SLOT_FIELDS} int64 fields, got {canary_buf.shape[1] // 8}"
        )
    if canary_buf.shape[1] % 8:
        raise ValueError(
            "kv-canary: canary_buf slot stride must be a multiple of 8 bytes, "
            f"got {canary_buf.shape[1]}"
        )
    check_contiguous("canary_buf", canary_buf)
    ref = ("canary_buf", canary_buf)
    check_dtype("violation_ring", violation_ring, torch.int64)
    check_dim("violation_ring", violation_ring, 2)
    if violation_ring.shape[1] != RING_FIELDS:
        raise ValueError(
            f"kv-canary: violation_ring must have {RING_FIELDS} fields a row, "
            f"got shape {tuple(violation_ring.shape)}"
        )
    check_device("violation_ring", violation_ring, *ref)
    check_contiguous("violation_ring", violation_ring)
    check_vector("violation_write_index", violation_write_index, torch.int32, 1, *ref)
    check_vector("slot_run_counter", slot_run_counter, torch.int64, 1, *ref)
    check_vector("kernel_run_counter", kernel_run_counter, torch.int64, 1, *ref)
    check_sources(real_kv_sources, *ref)


def check_sources(sources: Sequence[RealKvSource], ref_name: str, ref: torch.Tensor) -> None:
    """Check real-KV sources at launch.

    Raises:
        ValueError: KVC-S07, S10, S11, C18.
    """
    if len(sources) > REAL_KV_SOURCES_LIMIT:
        raise ValueError(
            f"kv-canary: at most {REAL_KV_SOURCES_LIMIT} RealKvSource entries supported by the "
            f"CUDA ABI, got {len(sources)}"
        )
    for i, source in enumerate(sources):
        tensor = source.tensor
        if tensor.stride(-1) != 1:
            raise ValueError(
                f"kv-canary: real_kv_sources[{i}].tensor rows must be packed (stride(-1) == 1), "
                f"got strides {tuple(tensor.stride())}"
            )
        if tensor.dim() != 2:
            raise ValueError(
                f"kv-canary: real_kv_sources[{i}].tensor (viewed as uint8) must be 2-D, "
                f"got {tensor.dim()}-D"
            )
        check_device(f"real_kv_sources[{i}].tensor", tensor, ref_name, ref)


def check_real_kv_args(*, slots: torch.Tensor, real_kv_sources: Sequence[RealKvSource]) -> None:
    """Check the arguments of a free-standing fingerprint launch.

    Raises:
        ValueError: KVC-S07, S10, S11, C15, C16, C18, S12.
    """
    import torch

    check_vector("slots", slots, torch.int64, None, "slots", slots)
    check_sources(real_kv_sources, "slots", slots)


def check_verify_args(
    *,
    canary_buf: torch.Tensor,
    plan: VerifyPlan,
    violation_ring: torch.Tensor,
    violation_write_index: torch.Tensor,
    slot_run_counter: torch.Tensor,
    kernel_run_counter: torch.Tensor,
    real_kv_sources: Sequence[RealKvSource] = (),
) -> None:
    """Check the arguments of a verify launch.

    Raises:
        ValueError: KVC-S07, S10 to S13, C15 to C18.
    """
    _check_launch_context(
        canary_buf=canary_buf,
        violation_ring=violation_ring,
        violation_write_index=violation_write_index,
        slot_run_counter=slot_run_counter,
        kernel_run_counter=kernel_run_counter,
        real_kv_sources=real_kv_sources,
    )
    check_verify_plan(plan, "canary_buf", canary_buf)


def check_write_args(
    *,
    canary_buf: torch.Tensor,
    plan: WritePlan,
    violation_ring: torch.Tensor,
    violation_write_index: torch.Tensor,
    slot_run_counter: torch.Tensor,
    kernel_run_counter: torch.Tensor,
    real_kv_sources: Sequence[RealKvSource] = (),
    input_ids: torch.Tensor,
    positions: torch.Tensor,
    out_cache_loc: torch.Tensor,
    enable_chain_position_assert: torch.Tensor,
    expected_input_tokens: torch.Tensor | None = None,
    expected_input_positions: torch.Tensor | None = None,
    enable_write_input_assert: bool = False,
) -> None:
    """Check the arguments of a write launch, also when there is nothing to write.

    Raises:
        ValueError: KVC-S07, S10 to S13, W01, W02, C12, C15 to C18.
    """
    import torch

    _check_launch_context(
        canary_buf=canary_buf,
        violation_ring=violation_ring,
        violation_write_index=violation_write_index,
        slot_run_counter=slot_run_counter,
        kernel_run_counter=kernel_run_counter,
        real_kv_sources=real_kv_sources,
    )
    ref = ("canary_buf", canary_buf)
    check_write_plan(plan, *ref)
    num_tokens = int(positions.shape[0])
    check_vector("input_ids", input_ids, torch.int64, num_tokens, *ref)
    check_vector("positions", positions, torch.int64, num_tokens, *ref)
    check_vector("out_cache_loc", out_cache_loc, torch.int64, num_tokens, *ref)
    check_vector("enable_chain_position_assert", enable_chain_position_assert, torch.int32, 1, *ref)
    given = (expected_input_tokens, expected_input_positions)
    if enable_write_input_assert:
        if any(tensor is None for tensor in given):
            raise ValueError(
                "kv-canary: expected input tensors are required when enable_write_input_assert=True"
            )
        for name, tensor in zip(
            ("expected_input_tokens", "expected_input_positions"), given, strict=True
        ):
            assert tensor is not None
            check_vector(name, tensor, torch.int64, num_tokens, *ref)
    elif any(tensor is not None for tensor in given):
        raise ValueError(
            "kv-canary: expected input tensors must be None when enable_write_input_assert=False"
        )


def check_scatter_args(
    *,
    flat_in: torch.Tensor,
    offsets: torch.Tensor,
    req_pool_indices: torch.Tensor,
    pool_out: torch.Tensor,
) -> None:
    """Check the arguments of the expected-token scatter.

    Raises:
        ValueError: KVC-E03, E05, E06.
        TypeError: KVC-E04.
    """
    import torch

    tensors = (
        ("flat_in", flat_in, 1, torch.int64),
        ("offsets", offsets, 1, torch.int64),
        ("req_pool_indices", req_pool_indices, 1, torch.int64),
        ("pool_out", pool_out, 2, torch.int32),
    )
    for name, tensor, dim, _dtype in tensors:
        if tensor.dim() != dim:
            raise ValueError(
                f"kv-canary: scatter_req_token_ids {name} must be {dim}-D, "
                f"got shape {tuple(tensor.shape)}"
            )
    for name, tensor, _dim, dtype in tensors:
        if tensor.dtype != dtype:
            label = str(dtype).removeprefix("torch.")
            raise TypeError(
                f"kv-canary: scatter_req_token_ids {name} must be {label}, got {tensor.dtype}"
            )
    bs = int(req_pool_indices.shape[0])
    if offsets.shape[0] != bs + 1:
        raise ValueError(
            f"kv-canary: scatter_req_token_ids offsets length {offsets.shape[0]} != bs+1 ({bs + 1})"
        )
    if bs + 1 > SCATTER_OFFSETS_LIMIT:
        raise ValueError(
            f"kv-canary: scatter_req_token_ids bs+1={bs + 1} exceeds "
            f"BATCH_BLOCK={SCATTER_OFFSETS_LIMIT}; bump _SCATTER_BATCH_BLOCK if real workloads "
            "need this"
        )
