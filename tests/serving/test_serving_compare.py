"""--against: each value is blamed for what its own exchange does, and for nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcanary_cli.serving.compare import compare
from tests.serving.launches import launch

if TYPE_CHECKING:
    from kvcanary_cli.serving.values import Resolution


def effects(here: Resolution, there: Resolution) -> dict[str, str]:
    return {one.name: one.effect for one in compare(here, there)}


def test_only_the_value_that_moves_a_capacity_is_blamed() -> None:
    base = {"max_total_tokens": 100_000, "context_length": 1000, "chunked_prefill_size": 4096}
    here = launch("0.5.23", **base, max_running_requests=8, cuda_graph_max_bs_decode=8)
    there = launch("0.5.23", **base, max_running_requests=4, cuda_graph_max_bs_decode=64)
    found = effects(here, there)
    assert found["cuda_graph_max_bs"] == "request capacity 8 -> 64"
    # The request pool of 4 alone leaves max(8, 4).
    assert "unchanged by this alone" in found["req_to_token_pool_size"]
    assert "->" not in found["req_to_token_pool_size"]


def test_max_prefill_tokens_above_the_chunk_does_nothing() -> None:
    base = {"max_total_tokens": 100_000, "max_running_requests": 8, "cuda_graph_max_bs_decode": 8}
    here = launch("0.5.23", **base, chunked_prefill_size=2048, max_prefill_tokens=16384)
    there = launch("0.5.23", **base, chunked_prefill_size=4096, max_prefill_tokens=8192)
    found = effects(here, there)
    assert found["chunked_prefill_size"] == "entry capacity 2048 -> 4096"
    assert "unchanged by this alone" in found["max_prefill_tokens"]


def test_what_feeds_an_input_is_named_with_it() -> None:
    base = {"max_total_tokens": 100_000, "cuda_graph_max_bs_decode": 8}
    found = effects(
        launch("0.5.23", **base, max_running_requests=64),
        launch("0.5.23", **base, max_running_requests=32),
    )
    assert found["requested_max_running_requests"] == (
        "reaches the capacities through req_to_token_pool_size"
    )
