"""One batch of requests as plain tensors, for whichever implementation is timed.

Imports torch only: it runs in the peer's interpreter too.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

TOKENS_PER_REQUEST = 1000


@dataclass(frozen=True)
class Workload:
    """``entries`` tokens of full requests whose slots lie scattered over a canary buffer.

    Plan finds every token as prefix, verify checks them all (the token included), write writes them
    all from the chain's head. Nothing is corrupt, real KV is off.
    """

    requests: int
    entries: int
    req_pool_indices: torch.Tensor
    lens: torch.Tensor
    zeros: torch.Tensor
    req_to_token: torch.Tensor
    slots: torch.Tensor
    tokens: torch.Tensor
    positions: torch.Tensor
    canary_buf: torch.Tensor
    violation_ring: torch.Tensor
    violation_write_index: torch.Tensor
    slot_run_counter: torch.Tensor
    kernel_run_counter: torch.Tensor
    chain_flag: torch.Tensor

    def assert_clean(self, launches: int, written: int) -> None:
        """Fail if a launch was lost or found something."""
        state = (
            int(self.violation_write_index),
            int(self.kernel_run_counter),
            int(self.slot_run_counter),
        )
        assert state == (0, launches, written), state


def make_workload(entries: int) -> Workload:
    requests = max(1, entries // TOKENS_PER_REQUEST)
    per_request = entries // requests
    assert requests * per_request == entries, "entries must be whole requests"
    generator = torch.Generator().manual_seed(entries)
    slots = torch.randperm(entries, generator=generator) + 1
    table = torch.zeros((requests + 1, per_request), dtype=torch.int32)
    table[1:] = slots.view(requests, per_request).to(torch.int32)
    return Workload(
        requests=requests,
        entries=entries,
        req_pool_indices=torch.arange(1, requests + 1),
        lens=torch.full((requests,), per_request),
        zeros=torch.zeros(requests, dtype=torch.int64),
        req_to_token=table,
        slots=slots,
        tokens=torch.randint(0, 150_000, (entries,), generator=generator),
        positions=torch.arange(per_request).repeat(requests),
        canary_buf=torch.zeros((entries + 1, 32), dtype=torch.uint8),
        violation_ring=torch.zeros((1024, 8), dtype=torch.int64),
        violation_write_index=torch.zeros(1, dtype=torch.int32),
        slot_run_counter=torch.zeros(1, dtype=torch.int64),
        kernel_run_counter=torch.zeros(1, dtype=torch.int64),
        chain_flag=torch.ones(1, dtype=torch.int32),
    )
