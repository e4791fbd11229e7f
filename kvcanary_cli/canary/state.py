"""What all launches of one manager share: ring, counters, flag, token pool, faults (1.10-1.14)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcanary_cli.abi.constants import NUM_LAUNCH_TAGS, RING_FIELDS
from kvcanary_cli.abi.faults import new_fault_cell, raise_on_fault

if TYPE_CHECKING:
    import torch

    from kvcanary_cli.canary.config import CanaryConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ViolationLog:
    """A ring that is filled once: the index keeps growing, rows past the capacity are lost.

    Attributes:
        ring: [ring_capacity, 8] int64.
        write_index: [1] int32, violations so far.
    """

    ring: torch.Tensor
    write_index: torch.Tensor

    @classmethod
    def allocate(cls, *, ring_capacity: int, device: torch.device | str = "cpu") -> ViolationLog:
        """Allocate a zeroed ring.

        Raises:
            ValueError: KVC-A09.
        """
        import torch

        if ring_capacity <= 0:
            raise ValueError(
                f"kv-canary: ViolationLog ring_capacity must be positive, got {ring_capacity}"
            )
        return cls(
            ring=torch.zeros((ring_capacity, RING_FIELDS), dtype=torch.int64, device=device),
            write_index=torch.zeros(1, dtype=torch.int32, device=device),
        )

    @property
    def capacity(self) -> int:
        return int(self.ring.shape[0])

    def rows(self, start: int = 0) -> list[list[int]]:
        """Stored rows from ``start`` on, on the host. Synchronises with the device."""
        stored = min(int(self.write_index.item()), self.capacity)
        if start >= stored:
            return []
        rows: list[list[int]] = self.ring[start:stored].tolist()
        return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryDeviceState:
    """Device memory of one manager.

    Attributes:
        violation_log: Shared by all launches.
        kernel_run_counters: [num_tags] int64, +1 per launch.
        slot_run_counters: [num_tags] int64, entries verified and written.
        enable_chain_position_assert: [1] int32; positions of a seeded chain must ascend by one.
        expected_token_pool: [rows, max_context_len] int32, uncleared, or None without the
            verify-token assert.
        fault: [1] int64, largest packed fault since the last check (``abi.faults``).
    """

    violation_log: ViolationLog
    kernel_run_counters: torch.Tensor
    slot_run_counters: torch.Tensor
    enable_chain_position_assert: torch.Tensor
    expected_token_pool: torch.Tensor | None
    fault: torch.Tensor

    @classmethod
    def allocate(
        cls,
        *,
        config: CanaryConfig,
        num_tags: int = NUM_LAUNCH_TAGS,
        device: torch.device | str = "cpu",
        req_to_token_alloc_size: int | None = None,
        max_context_len: int | None = None,
    ) -> CanaryDeviceState:
        """Allocate everything; the position flag starts at 1.

        Args:
            config: Gives the ring's capacity and whether there is a token pool.
            num_tags: Cells of the counters.
            device: Where the tensors live.
            req_to_token_alloc_size: Rows of the request table, padding row included.
            max_context_len: Width of the token pool.

        Raises:
            ValueError: KVC-A09 to KVC-A11.
        """
        import torch

        if num_tags <= 0:
            raise ValueError(
                f"kv-canary: CanaryDeviceState num_tags must be positive, got {num_tags}"
            )
        pool = None
        if config.enable_verify_token_assert:
            if req_to_token_alloc_size is None or max_context_len is None:
                raise ValueError(
                    "kv-canary: CanaryDeviceState.allocate requires req_to_token_alloc_size and "
                    "max_context_len when CanaryConfig.enable_verify_token_assert is on"
                )
            pool = torch.empty(
                (req_to_token_alloc_size, max_context_len), dtype=torch.int32, device=device
            )
        return cls(
            violation_log=ViolationLog.allocate(ring_capacity=config.ring_capacity, device=device),
            kernel_run_counters=torch.zeros(num_tags, dtype=torch.int64, device=device),
            slot_run_counters=torch.zeros(num_tags, dtype=torch.int64, device=device),
            enable_chain_position_assert=torch.ones(1, dtype=torch.int32, device=device),
            expected_token_pool=pool,
            fault=new_fault_cell(device),
        )

    def mark_init_finished(self) -> None:
        """Turn the chain-position assert on: start-up and capture used synthetic positions."""
        self.enable_chain_position_assert.fill_(1)

    def raise_on_fault(self, **sizes: int) -> None:
        """Raise ValueError for the largest fault since the last call; synchronises."""
        raise_on_fault(self.fault, **sizes)
