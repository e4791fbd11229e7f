"""Launch capacities against the recorded cases of the public release and worked examples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcanary_cli.capacities import (
    CanaryLaunchCapacities,
    canary_buffer_bytes,
    canary_bytes_per_slot,
    expected_token_pool_bytes,
    ring_bytes,
)

GOLDEN = Path(__file__).parents[1] / "data" / "golden" / "capacities.json"
CASES = json.loads(GOLDEN.read_text(encoding="utf-8"))["cases"]


def _arguments(inputs: dict[str, Any]) -> dict[str, Any]:
    arguments = dict(inputs)
    present = arguments.pop("cuda_graph_config_present")
    max_bs = arguments.pop("cuda_graph_decode_max_bs")
    arguments["cuda_graph_max_bs"] = max_bs if present else None
    return arguments


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_recorded_cases(case: dict[str, Any]) -> None:
    arguments = _arguments(case["inputs"])
    if "error" in case:
        with pytest.raises(ValueError, match=r"^kv-canary: ") as caught:
            CanaryLaunchCapacities.from_args(**arguments)
        assert str(caught.value) == case["error"]
        return
    capacities = CanaryLaunchCapacities.from_args(**arguments)
    expected = case["output"]
    assert capacities.per_forward_verify_capacity == expected["per_forward_verify_capacity"]
    assert capacities.per_forward_write_req_capacity == expected["per_forward_write_req_capacity"]
    assert (
        capacities.per_forward_write_entry_capacity == expected["per_forward_write_entry_capacity"]
    )
    for groups, size in expected["per_forward_workspace_bytes"].items():
        assert capacities.workspace_bytes(int(groups)) == size


def test_worked_example_with_speculation() -> None:
    capacities = CanaryLaunchCapacities.from_args(
        req_to_token_pool_size=256,
        max_seq_len_per_req=4096,
        pool_slot_count=81920,
        cuda_graph_max_bs=128,
        speculative_num_draft_tokens=4,
        max_prefill_tokens=16384,
        chunked_prefill_size=-1,
    )
    assert capacities == CanaryLaunchCapacities(
        per_forward_verify_capacity=245760,
        per_forward_write_req_capacity=256,
        per_forward_write_entry_capacity=16384,
    )
    assert capacities.workspace_bytes(2) == 16_007_208


@pytest.mark.parametrize("zero", [0, None])
def test_zero_and_none_are_the_same_for_graph_and_draft(zero: int | None) -> None:
    capacities = CanaryLaunchCapacities.from_args(
        req_to_token_pool_size=2048,
        max_seq_len_per_req=1,
        pool_slot_count=65536,
        cuda_graph_max_bs=zero,
        speculative_num_draft_tokens=zero,
        max_prefill_tokens=16384,
        chunked_prefill_size=8192,
    )
    assert capacities.per_forward_write_req_capacity == 2048
    assert capacities.workspace_bytes(1) == 6_520_852


@pytest.mark.parametrize(
    "field",
    [
        "per_forward_verify_capacity",
        "per_forward_write_req_capacity",
        "per_forward_write_entry_capacity",
    ],
)
def test_capacities_must_be_positive(field: str) -> None:
    values = {
        "per_forward_verify_capacity": 1,
        "per_forward_write_req_capacity": 1,
        "per_forward_write_entry_capacity": 1,
    }
    values[field] = 0
    with pytest.raises(ValueError, match=rf"^kv-canary: {field} must be positive, got 0$"):
        CanaryLaunchCapacities(**values)


@given(
    pool=st.integers(1, 5000),
    slots=st.integers(1, 10**7),
    graph=st.integers(0, 5000),
    draft=st.integers(0, 16),
    prefill=st.integers(1, 10**5),
    chunk=st.none() | st.integers(-1, 10**5),
)
def test_raising_an_argument_never_lowers_a_capacity(
    pool: int, slots: int, graph: int, draft: int, prefill: int, chunk: int | None
) -> None:
    arguments: dict[str, Any] = {
        "req_to_token_pool_size": pool,
        "max_seq_len_per_req": 7,
        "pool_slot_count": slots,
        "cuda_graph_max_bs": graph,
        "speculative_num_draft_tokens": draft,
        "max_prefill_tokens": prefill,
        "chunked_prefill_size": chunk,
    }
    base = CanaryLaunchCapacities.from_args(**arguments)
    for name in arguments:
        if arguments[name] is None or arguments[name] < 0:
            continue
        raised = CanaryLaunchCapacities.from_args(**{**arguments, name: arguments[name] * 2 + 1})
        for field in (
            "per_forward_verify_capacity",
            "per_forward_write_req_capacity",
            "per_forward_write_entry_capacity",
        ):
            assert getattr(raised, field) >= getattr(base, field)


def test_bytes_beside_the_workspace() -> None:
    assert canary_bytes_per_slot(v_half=True) == 128
    assert canary_bytes_per_slot(v_half=False) == 64
    assert canary_buffer_bytes(num_slots=1000, v_half=True) == 128_000
    assert ring_bytes(1024) == 65_540
    assert expected_token_pool_bytes(rows=257, max_context_len=4096) == 4 * 257 * 4096
