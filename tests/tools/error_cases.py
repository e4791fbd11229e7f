"""Provoke the wrong calls that ``errors.json`` describes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from kvcanary_cli.abi.constants import RealKvHashMode
from kvcanary_cli.abi.plans import VerifyPlan, WritePlan
from kvcanary_cli.abi.sources import RealKvSource

if TYPE_CHECKING:
    from kvcanary_cli.backends.interface import Backend

Args = dict[str, Any]


def provoke(backend: Backend, what: str, args: Args) -> None:
    """Make the call that a case of ``errors.json`` describes, all else being in order.

    Raises:
        KeyError: A ``what`` that is not known here.
        ValueError, TypeError: What the call raises.
    """
    {
        "RealKvSource": _make_source,
        "VerifyPlan.allocate": lambda _backend, args: VerifyPlan.allocate(**args),
        "WritePlan.allocate": lambda _backend, args: WritePlan.allocate(**args),
        "plan": launch_plan,
        "plan (reference, not checked)": launch_plan,
        "verify launch": launch_verify,
        "write launch": launch_write,
    }[what](backend, args)


def _make_source(backend: Backend, args: Args) -> None:
    del backend
    shape, dtype = args["shape"], getattr(torch, args["dtype"].removeprefix("torch."))
    tensor = torch.zeros(shape, dtype=dtype)
    if args["stride0"] is not None:
        storage = torch.zeros(shape[0] * args["stride0"], dtype=dtype)
        tensor = storage.as_strided(shape, (args["stride0"], 1))
    RealKvSource(
        tensor=tensor,
        page_size=args["page_size"],
        num_bytes_per_token=args["num_bytes_per_token"],
        read_bytes=args["read_bytes"],
    )


def launch_plan(backend: Backend, args: Args) -> None:
    """A plan launch over one request with a prefix of two tokens, changed by ``args``."""
    device = backend.device
    entries = args.get("plan_rows", 8)
    tokens = None
    if args.get("req_to_verify_expected_tokens") == "given":
        tokens = torch.zeros((2, 8), dtype=torch.int32, device=device)
    valid_lens = args.get("valid_lens")
    backend.plan(
        req_pool_indices=_i64([1], device),
        prefix_lens=_i64([2], device),
        extend_seq_lens=_i64([1], device),
        req_to_token=torch.ones((2, 8), dtype=torch.int32, device=device),
        verify_plan_out=VerifyPlan.allocate(verify_capacity=entries, device=device),
        write_plan_out=WritePlan.allocate(write_req_capacity=2, device=device),
        swa_window_size=args.get("swa_window_size", 0),
        full_to_swa_index_mapping=None,
        verify_capacity=args.get("verify_capacity", entries),
        req_to_verify_expected_tokens=tokens,
        req_to_verify_expected_tokens_valid_lens=(
            None if valid_lens is None else _i64(valid_lens, device)
        ),
    )


def launch_verify(backend: Backend, args: Args) -> None:
    """A verify launch without entries, changed by ``args``."""
    backend.verify(
        **_context(args, backend.device),
        plan=VerifyPlan.allocate(verify_capacity=4, device=backend.device),
    )


def launch_write(backend: Backend, args: Args) -> None:
    """A write launch of one token to slot 1, changed by ``args``."""
    device = backend.device
    plan = WritePlan(
        write_offsets=_i64([0, 1], device),
        write_seed_slot_indices=_i64([-1], device),
        write_num_valid_reqs=torch.ones(1, dtype=torch.int32, device=device),
    )
    expected = {
        name: None if args.get(name) is None else _i64(args[name], device)
        for name in ("expected_input_tokens", "expected_input_positions")
    }
    backend.write(
        **_context(args, device),
        plan=plan,
        input_ids=_i64([4], device),
        positions=_i64([0], device),
        out_cache_loc=_i64([1], device),
        enable_chain_position_assert=torch.ones(1, dtype=torch.int32, device=device),
        enable_write_input_assert=args.get("enable_write_input_assert", False),
        **expected,
    )


def _context(args: Args, device: str) -> Args:
    source = RealKvSource(
        tensor=torch.zeros((4, 16), dtype=torch.uint8, device=device),
        page_size=1,
        num_bytes_per_token=16,
        read_bytes=16,
    )
    slot_bytes = args.get("slot_bytes", 32)
    return {
        "canary_buf": torch.zeros((4, slot_bytes), dtype=torch.uint8, device=device),
        "kernel_kind": 0,
        "violation_ring": torch.zeros((4, 8), dtype=torch.int64, device=device),
        "violation_write_index": torch.zeros(1, dtype=torch.int32, device=device),
        "slot_run_counter": _i64([0], device),
        "kernel_run_counter": _i64([0], device),
        "real_kv_sources": (source,) * args.get("real_kv_sources", 0),
        "real_kv_hash_mode": RealKvHashMode.NONE,
    }


def _i64(values: list[int], device: str) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64, device=device)
