"""Verify plan and write plan: what the plan step hands to the verify and write steps (1.6, 1.7)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyPlan:
    """Entries to verify, one per prefix position of each active row (1.6).

    Attributes:
        verify_slot_indices: [capacity] int64, slot to check, already translated for SWA groups.
        verify_expected_tokens: [capacity] int64, -1 = do not compare.
        verify_expected_positions: [capacity] int64.
        verify_prev_slot_indices: [capacity] int64, predecessor slot; negative = chain head,
            0 = unknown (the chain is not checked).
        verify_num_valid: [1] int32, entries in use, min(total, capacity).
        enable: [1] int32, 1 = run, 0 = the whole verify is skipped (overflow).

    Entries past ``verify_num_valid`` are unspecified.
    """

    verify_slot_indices: torch.Tensor
    verify_expected_tokens: torch.Tensor
    verify_expected_positions: torch.Tensor
    verify_prev_slot_indices: torch.Tensor
    verify_num_valid: torch.Tensor
    enable: torch.Tensor

    @classmethod
    def allocate(cls, *, verify_capacity: int, device: torch.device | str = "cpu") -> VerifyPlan:
        """Allocate uncleared entries, ``verify_num_valid`` 0 and ``enable`` 1.

        Raises:
            ValueError: KVC-B06, if ``verify_capacity`` is not positive.
        """
        import torch

        if verify_capacity <= 0:
            raise ValueError(
                f"kv-canary: VerifyPlan verify_capacity must be positive, got {verify_capacity}"
            )

        def entries() -> torch.Tensor:
            return torch.empty(verify_capacity, dtype=torch.int64, device=device)

        return cls(
            verify_slot_indices=entries(),
            verify_expected_tokens=entries(),
            verify_expected_positions=entries(),
            verify_prev_slot_indices=entries(),
            verify_num_valid=torch.zeros(1, dtype=torch.int32, device=device),
            enable=torch.ones(1, dtype=torch.int32, device=device),
        )

    @property
    def capacity(self) -> int:
        return int(self.verify_slot_indices.shape[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePlan:
    """Where each request's tokens stand in the flat batch and what its chain starts from (1.7).

    Attributes:
        write_offsets: [capacity + 1] int64, exclusive prefix sums into the flat token arrays.
        write_seed_slot_indices: [capacity] int64, slot whose hash starts the chain,
            negative = head.
        write_num_valid_reqs: [1] int32, rows in use.
    """

    write_offsets: torch.Tensor
    write_seed_slot_indices: torch.Tensor
    write_num_valid_reqs: torch.Tensor

    @classmethod
    def allocate(cls, *, write_req_capacity: int, device: torch.device | str = "cpu") -> WritePlan:
        """Allocate uncleared offsets and seeds and ``write_num_valid_reqs`` 0.

        Raises:
            ValueError: KVC-B07, if ``write_req_capacity`` is not positive.
        """
        import torch

        if write_req_capacity <= 0:
            raise ValueError(
                f"kv-canary: WritePlan write_req_capacity must be positive, "
                f"got {write_req_capacity}"
            )
        return cls(
            write_offsets=torch.empty(write_req_capacity + 1, dtype=torch.int64, device=device),
            write_seed_slot_indices=torch.empty(
                write_req_capacity, dtype=torch.int64, device=device
            ),
            write_num_valid_reqs=torch.zeros(1, dtype=torch.int32, device=device),
        )

    @property
    def capacity(self) -> int:
        return int(self.write_seed_slot_indices.shape[0])
