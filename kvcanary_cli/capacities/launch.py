"""CanaryLaunchCapacities: from serving arguments to per-forward buffer sizes (specification 4)."""

from __future__ import annotations

from dataclasses import dataclass

from kvcanary_cli.abi.constants import VERIFY_CAPACITY_FACTOR


def _require_positive(name: str, value: int) -> None:
    if value <= 0:
        raise ValueError(f"kv-canary: {name} must be positive, got {value}")


def _require_non_negative(name: str, value: int) -> None:
    if value < 0:
        raise ValueError(f"kv-canary: {name} must be non-negative, got {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryLaunchCapacities:
    """How much one forward may bring before it no longer fits the canary's buffers.

    Attributes:
        per_forward_verify_capacity: Entries of a verify plan, per buffer group.
        per_forward_write_req_capacity: Batch rows of a write plan and of the plan input.
        per_forward_write_entry_capacity: Tokens of one forward (expected-input vectors).

    Raises:
        ValueError: KVC-B01, if one of them is not positive.
    """

    per_forward_verify_capacity: int
    per_forward_write_req_capacity: int
    per_forward_write_entry_capacity: int

    def __post_init__(self) -> None:
        _require_positive("per_forward_verify_capacity", self.per_forward_verify_capacity)
        _require_positive("per_forward_write_req_capacity", self.per_forward_write_req_capacity)
        _require_positive("per_forward_write_entry_capacity", self.per_forward_write_entry_capacity)

    @classmethod
    def from_args(
        cls,
        *,
        req_to_token_pool_size: int,
        max_seq_len_per_req: int,
        pool_slot_count: int,
        cuda_graph_max_bs: int | None = None,
        speculative_num_draft_tokens: int | None = None,
        max_prefill_tokens: int,
        chunked_prefill_size: int | None = None,
    ) -> CanaryLaunchCapacities:
        """Derive the capacities exactly as the server does at start.

        Args:
            req_to_token_pool_size: Requests that the request table holds, padding row not counted.
            max_seq_len_per_req: Width of the request table; only checked for being positive.
            pool_slot_count: ``max_total_num_tokens``.
            cuda_graph_max_bs: Largest captured decode batch; None or 0 = unknown. It counts even
                if decode graphs are off.
            speculative_num_draft_tokens: None or 0 = no speculation.
            max_prefill_tokens: ``--max-prefill-tokens``.
            chunked_prefill_size: None or negative = unlimited.

        Raises:
            ValueError: KVC-B01 or KVC-B02 for the first argument that is out of range.
        """
        graph_bs = cuda_graph_max_bs or 0
        draft_tokens = speculative_num_draft_tokens or 0
        _require_positive("req_to_token_pool_size", req_to_token_pool_size)
        _require_positive("max_seq_len_per_req", max_seq_len_per_req)
        _require_positive("pool_slot_count", pool_slot_count)
        _require_non_negative("cuda_graph_max_bs", graph_bs)
        _require_non_negative("speculative_num_draft_tokens", draft_tokens)
        _require_positive("max_prefill_tokens", max_prefill_tokens)
        max_bs = max(graph_bs, req_to_token_pool_size)
        prefill_tokens = max_prefill_tokens
        if chunked_prefill_size is not None and chunked_prefill_size >= 0:
            prefill_tokens = min(max_prefill_tokens, chunked_prefill_size)
        return cls(
            per_forward_verify_capacity=VERIFY_CAPACITY_FACTOR * pool_slot_count,
            per_forward_write_req_capacity=max_bs,
            per_forward_write_entry_capacity=max(max_bs * max(1, draft_tokens), prefill_tokens),
        )

    def workspace_bytes(self, num_groups: int) -> int:
        """Bytes that one forward allocates for plans, plan input and expected inputs.

        Args:
            num_groups: Buffer groups: 1, or 2 with a sliding-window pool.
        """
        verify = self.per_forward_verify_capacity
        rows = self.per_forward_write_req_capacity
        verify_plan = 4 * 8 * verify + 2 * 4
        write_plan = 8 * (2 * rows + 1) + 4
        expected_inputs = 2 * 8 * self.per_forward_write_entry_capacity
        plan_input = 4 * 8 * rows
        return num_groups * (verify_plan + write_plan) + expected_inputs + plan_input
