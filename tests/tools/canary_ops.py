"""Run one canary operation on a backend from plain inputs, and say in words how two results differ.

Inputs and outputs are dicts as in the golden files (see ``run_golden``): the plan
tensors stand beside the other arguments, and nothing handed in is changed.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import torch

from kvcanary_cli.abi.constants import RealKvHashMode
from kvcanary_cli.abi.plans import VerifyPlan, WritePlan
from kvcanary_cli.abi.sources import RealKvSource

if TYPE_CHECKING:
    from kvcanary_cli.backends.interface import Backend

Inputs = dict[str, Any]
Outputs = dict[str, torch.Tensor]

PREFILL = -7777
"""What output plans hold before a plan launch, so that untouched cells can be told."""

VERIFY_PLAN_FIELDS = (
    "verify_slot_indices",
    "verify_expected_tokens",
    "verify_expected_positions",
    "verify_prev_slot_indices",
    "verify_num_valid",
    "enable",
)
WRITE_PLAN_FIELDS = ("write_offsets", "write_seed_slot_indices", "write_num_valid_reqs")
_MUTATED = (
    "canary_buf",
    "violation_ring",
    "violation_write_index",
    "slot_run_counter",
    "kernel_run_counter",
)
_RING = "violation_ring"


def fresh(value: torch.Tensor | None, device: str) -> torch.Tensor | None:
    """A copy of a tensor on ``device`` with the same strides, None for None."""
    if value is None:
        return None
    copy = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)
    return copy.copy_(value)


def run_op(backend: Backend, op: str, inputs: Inputs, *, with_fault_cell: bool = True) -> Outputs:
    """Run ``op`` (plan, verify, write, real_kv_hash, scatter) on copies of ``inputs``.

    Args:
        backend: Where to run it.
        op: Name of the operation.
        inputs: Arguments as in a golden file's ``in``.
        with_fault_cell: Give the launch a fault cell; its value is output ``fault``. Without one
            faulty data raises ValueError.

    Returns:
        The golden file's ``out`` tensors, on the CPU.
    """
    fault = None
    if with_fault_cell and op != "scatter":
        fault = torch.zeros(1, dtype=torch.int64, device=backend.device)
    outputs = _RUNNERS[op](backend, inputs, fault)
    if fault is not None:
        outputs["fault"] = fault
    return {name: tensor.cpu() for name, tensor in outputs.items()}


def _run_plan(backend: Backend, inputs: Inputs, fault: torch.Tensor | None) -> Outputs:
    device = backend.device

    def out(length: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.full((length,), PREFILL, dtype=dtype, device=device)

    entries, rows = inputs["verify_capacity"], inputs["write_req_capacity"]
    outputs = {name: out(entries, torch.int64) for name in VERIFY_PLAN_FIELDS[:4]}
    outputs |= {name: out(1, torch.int32) for name in VERIFY_PLAN_FIELDS[4:]}
    outputs["write_offsets"] = out(rows + 1, torch.int64)
    outputs["write_seed_slot_indices"] = out(rows, torch.int64)
    outputs["write_num_valid_reqs"] = out(1, torch.int32)
    arguments = {
        name: fresh(value, device) if torch.is_tensor(value) else value
        for name, value in inputs.items()
        if name != "write_req_capacity"
    }
    backend.plan(
        **arguments,
        verify_plan_out=VerifyPlan(**{name: outputs[name] for name in VERIFY_PLAN_FIELDS}),
        write_plan_out=WritePlan(**{name: outputs[name] for name in WRITE_PLAN_FIELDS}),
        fault=fault,
    )
    return outputs


def make_sources(sources: list[dict[str, Any]], device: str) -> tuple[RealKvSource, ...]:
    """Real-KV sources from their golden form, on ``device`` with their strides."""
    return tuple(
        RealKvSource(**(source | {"tensor": _on_device(source["tensor"], device)}))
        for source in sources
    )


def _on_device(tensor: torch.Tensor, device: str) -> torch.Tensor:
    # Sources are only read, so on the CPU the tensor itself serves, offset and padding included.
    copy = tensor if device == "cpu" else fresh(tensor, device)
    assert copy is not None
    return copy


def _launch_context(backend: Backend, inputs: Inputs) -> tuple[dict[str, Any], Outputs]:
    outputs = {name: fresh(inputs[name], backend.device) for name in _MUTATED}
    context = {
        **outputs,
        "kernel_kind": inputs["kernel_kind"],
        "real_kv_sources": make_sources(inputs["real_kv_sources"], backend.device),
        "real_kv_hash_mode": RealKvHashMode(inputs["real_kv_hash_mode"]),
    }
    return context, outputs  # type: ignore[return-value]


def _run_verify(backend: Backend, inputs: Inputs, fault: torch.Tensor | None) -> Outputs:
    context, outputs = _launch_context(backend, inputs)
    plan = VerifyPlan(**{f: fresh(inputs[f], backend.device) for f in VERIFY_PLAN_FIELDS})
    backend.verify(
        **context,
        plan=plan,
        check_verify_expected_token=inputs["check_verify_expected_token"],
        fault=fault,
    )
    return outputs


def _run_write(backend: Backend, inputs: Inputs, fault: torch.Tensor | None) -> Outputs:
    context, outputs = _launch_context(backend, inputs)
    plan = WritePlan(**{f: fresh(inputs[f], backend.device) for f in WRITE_PLAN_FIELDS})
    batch = (
        "input_ids",
        "positions",
        "out_cache_loc",
        "enable_chain_position_assert",
        "expected_input_tokens",
        "expected_input_positions",
    )
    backend.write(
        **context,
        plan=plan,
        **{name: fresh(inputs[name], backend.device) for name in batch},
        enable_write_input_assert=inputs["enable_write_input_assert"],
        fault=fault,
    )
    return outputs


def _run_real_kv_hash(backend: Backend, inputs: Inputs, fault: torch.Tensor | None) -> Outputs:
    hashes = backend.real_kv_hash(
        slots=fresh(inputs["slots"], backend.device),
        real_kv_sources=make_sources(inputs["real_kv_sources"], backend.device),
        real_kv_hash_mode=RealKvHashMode(inputs["real_kv_hash_mode"]),
        fault=fault,
    )
    return {"hashes": hashes}


def _run_scatter(backend: Backend, inputs: Inputs, fault: torch.Tensor | None) -> Outputs:
    del fault
    arguments = {name: fresh(value, backend.device) for name, value in inputs.items()}
    backend.scatter_req_token_ids(**arguments)
    return {"pool_out": arguments["pool_out"]}


_RUNNERS = {
    "plan": _run_plan,
    "verify": _run_verify,
    "write": _run_write,
    "real_kv_hash": _run_real_kv_hash,
    "scatter": _run_scatter,
}


def first_difference(
    op: str, inputs: Inputs, want: Outputs, got: Outputs, *, in_order: bool = True
) -> str | None:
    """The first difference between two results in words, or None.

    Args:
        op: Name of the operation.
        inputs: What both were computed from.
        want, got: Results; only tensors in ``want`` are compared.
        in_order: Whether ``got`` must have the order of violation rows and the untouched output
            cells of the host reference. A GPU has neither: there rows are compared as a multiset
            and of a plan only the specified cells.
    """
    for name, expected in want.items():
        actual = got[name]
        if not in_order and name == _RING:
            text = _ring_difference(op, inputs, want, got)
        else:
            cells = None if in_order else _specified(op, name, inputs, want)
            text = _tensor_difference(name, expected, actual, cells)
        if text:
            return text
    return None


def _specified(op: str, name: str, inputs: Inputs, want: Outputs) -> int | None:
    """How many leading cells of an output the specification speaks of, None = all."""
    if op != "plan":
        return None
    if name in VERIFY_PLAN_FIELDS[:4]:
        return int(want["verify_num_valid"]) if int(want["enable"]) else 0
    if name == "write_seed_slot_indices":
        return int(inputs["req_pool_indices"].shape[0])
    return None


def _tensor_difference(
    name: str, expected: torch.Tensor, actual: torch.Tensor, cells: int | None
) -> str | None:
    if expected.shape != actual.shape or expected.dtype != actual.dtype:
        return (
            f"{name}: expected {expected.dtype} {tuple(expected.shape)}, "
            f"got {actual.dtype} {tuple(actual.shape)}"
        )
    wrong = torch.nonzero(expected[:cells] != actual[:cells])
    if not len(wrong):
        return None
    index = tuple(wrong[0].tolist())
    where = ", ".join(map(str, index))
    return (
        f"{name}[{where}]: expected {expected[index].item()}, got {actual[index].item()} "
        f"({len(wrong)} cells differ)"
    )


def _ring_difference(op: str, inputs: Inputs, want: Outputs, got: Outputs) -> str | None:
    """Compare rings whose rows may stand in any order."""
    capacity = inputs[_RING].shape[0]
    start = min(max(0, int(inputs["violation_write_index"])), capacity)
    total = int(want["violation_write_index"])
    end = min(max(0, total), capacity)
    for part in (slice(0, start), slice(end, capacity)):
        text = _tensor_difference(
            f"{_RING}[{part.start}:]", want[_RING][part], got[_RING][part], None
        )
        if text:
            return text
    allowed = Counter(map(tuple, want[_RING][start:end].tolist()))
    if total > capacity:
        # Which rows found a place is unspecified then, so ask the reference for all there are.
        allowed = _all_rows(op, inputs, start, total)
    found = Counter(map(tuple, got[_RING][start:end].tolist()))
    extra = found - allowed
    if extra:
        return f"{_RING}: row {next(iter(extra))} is not among the expected {allowed.total()} rows"
    return None


def _all_rows(op: str, inputs: Inputs, start: int, total: int) -> Counter[tuple[int, ...]]:
    from kvcanary_cli.backends.reference.backend import ReferenceBackend

    ring = torch.zeros((total, inputs[_RING].shape[1]), dtype=torch.int64)
    rows = run_op(ReferenceBackend(), op, {**inputs, _RING: ring})[_RING]
    first = max(start, int(inputs["violation_write_index"]))
    return Counter(map(tuple, rows[first:].tolist()))
