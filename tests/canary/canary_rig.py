"""A small pool with one canary manager's parts, for tests that follow single forwards."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from kvcanary_cli.abi.constants import ForwardMode, PoolKind
from kvcanary_cli.backends import get_backend
from kvcanary_cli.canary import (
    CanaryBufferGroup,
    CanaryConfig,
    CanaryDeviceState,
    ForwardBatch,
    SingleForwardManager,
    make_endpoints,
)
from kvcanary_cli.capacities import CanaryLaunchCapacities

if TYPE_CHECKING:
    from collections.abc import Sequence

SMALL = CanaryLaunchCapacities(
    per_forward_verify_capacity=64,
    per_forward_write_req_capacity=8,
    per_forward_write_entry_capacity=32,
)


def ints(values: Sequence[int], dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.tensor(list(values), dtype=dtype)


def extend(
    rows: Sequence[int],
    prefix: Sequence[int],
    tokens: Sequence[Sequence[int]],
    slots: Sequence[Sequence[int]],
    **more: Any,
) -> ForwardBatch:
    """An EXTEND batch; positions follow from the prefixes."""
    lens = [len(ids) for ids in tokens]
    positions = [p + j for p, n in zip(prefix, lens, strict=True) for j in range(n)]
    arguments: dict[str, Any] = {
        "forward_mode": ForwardMode.EXTEND,
        "req_pool_indices": ints(rows),
        "seq_lens": ints([p + n for p, n in zip(prefix, lens, strict=True)]),
        "input_ids": ints([t for ids in tokens for t in ids]),
        "positions": ints(positions),
        "out_cache_loc": ints([s for run in slots for s in run]),
        "extend_prefix_lens": ints(prefix),
        "extend_seq_lens": ints(lens),
    }
    return ForwardBatch(**{**arguments, **more})


def decode(
    rows: Sequence[int],
    positions: Sequence[int],
    tokens: Sequence[int],
    slots: Sequence[int],
    **more: Any,
) -> ForwardBatch:
    """A DECODE batch: one token per row."""
    arguments: dict[str, Any] = {
        "forward_mode": ForwardMode.DECODE,
        "req_pool_indices": ints(rows),
        "seq_lens": ints([p + 1 for p in positions]),
        "input_ids": ints(tokens),
        "positions": ints(positions),
        "out_cache_loc": ints(slots),
    }
    return ForwardBatch(**{**arguments, **more})


@dataclass
class Rig:
    """Groups, state and one single-forward manager over a request table of 4 rows x 16."""

    manager: SingleForwardManager
    state: CanaryDeviceState
    groups: list[CanaryBufferGroup]
    req_to_token: torch.Tensor
    extra: dict[str, Any] = field(default_factory=dict)

    def map(self, row: int, slots: Sequence[int], start: int = 0) -> None:
        self.req_to_token[row, start : start + len(slots)] = ints(slots, torch.int32)

    @property
    def ring(self) -> list[list[int]]:
        return self.state.violation_log.rows()


def full_group(num_slots: int = 32, **more: Any) -> CanaryBufferGroup:
    return CanaryBufferGroup.allocate(kind=PoolKind.FULL, num_slots=num_slots, **more)


def make_rig(
    *,
    groups: list[CanaryBufferGroup] | None = None,
    config: CanaryConfig | None = None,
    capacities: CanaryLaunchCapacities | None = SMALL,
    backend: str = "reference",
    **more: Any,
) -> Rig:
    config = config or CanaryConfig()
    engine = get_backend(backend)
    groups = [full_group()] if groups is None else groups
    table = torch.zeros((4, 16), dtype=torch.int32)
    state = CanaryDeviceState.allocate(config=config, req_to_token_alloc_size=4, max_context_len=16)
    endpoints = make_endpoints(
        groups, backend=engine, state=state, real_kv_hash_mode=config.real_kv_hash_mode
    )
    manager = SingleForwardManager(
        backend=engine,
        groups=groups,
        endpoints=endpoints,
        state=state,
        config=config,
        capacities=capacities,
        req_to_token=table,
        **more,
    )
    manager.phase_checker.enable()
    return Rig(manager=manager, state=state, groups=groups, req_to_token=table)
