"""Write step: store each new token's canary row and check the inputs (specification 3.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvcanary_cli.abi.constants import FailReason, RealKvHashMode
from kvcanary_cli.abi.faults import Fault
from kvcanary_cli.backends.reference.hashes import chain_step, slot_hash, to_signed
from kvcanary_cli.backends.reference.real_kv import real_kv_hash_of_slot
from kvcanary_cli.backends.reference.rows import CanaryRows, ViolationLog

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch

    from kvcanary_cli.abi.plans import WritePlan
    from kvcanary_cli.abi.sources import RealKvSource
    from kvcanary_cli.backends.reference.faults import FaultLog


class _Chain(NamedTuple):
    """Where a request's chain stands.

    Attributes:
        h: Hash before the next token, unsigned.
        prev_position: Position of the token before, None = positions are not checked.
    """

    h: int
    prev_position: int | None


def write_reference(
    *,
    canary_buf: torch.Tensor,
    plan: WritePlan,
    kernel_kind: int,
    violation_ring: torch.Tensor,
    violation_write_index: torch.Tensor,
    slot_run_counter: torch.Tensor,
    kernel_run_counter: torch.Tensor,
    input_ids: torch.Tensor,
    positions: torch.Tensor,
    out_cache_loc: torch.Tensor,
    enable_chain_position_assert: torch.Tensor,
    expected_input_tokens: torch.Tensor | None,
    expected_input_positions: torch.Tensor | None,
    real_kv_sources: Sequence[RealKvSource],
    real_kv_hash_mode: RealKvHashMode,
    faults: FaultLog,
) -> None:
    """Write the batch's rows request by request, given checked arguments; see ``Backend.write``."""
    kernel_run_counter += 1
    rows = CanaryRows(canary_buf)
    violations = ViolationLog(violation_ring, violation_write_index)
    check_chain = int(enable_chain_position_assert[0]) != 0

    for seed, entries in _requests(plan, int(positions.shape[0]), faults):
        chain = _chain_of_seed(rows, seed, check_chain, faults)
        for i in entries:
            slot = int(out_cache_loc[i])
            if slot < 0:
                continue
            if slot >= len(rows):
                faults.note(Fault.WRITE_SLOT, slot)
                continue
            slot_run_counter += 1
            token, position = int(input_ids[i]), int(positions[i])
            kv_hash = real_kv_hash_of_slot(slot, real_kv_sources, real_kv_hash_mode, faults)

            if expected_input_tokens is not None and expected_input_positions is not None:
                want_token = int(expected_input_tokens[i])
                want_position = int(expected_input_positions[i])
                bits = FailReason(0)
                if token != want_token:
                    bits |= FailReason.WRITE_TOKEN_MISMATCH
                if position != want_position:
                    bits |= FailReason.WRITE_POSITION_MISMATCH
                if bits:
                    actual = (kernel_kind, slot, position, token)
                    violations.append((*actual, want_token, chain.h, want_position, bits))
            if chain.prev_position is not None:
                want_position = to_signed(chain.prev_position + 1)
                if position != want_position:
                    bits = FailReason.WRITE_POSITION_MISMATCH
                    actual = (kernel_kind, slot, position, token)
                    violations.append((*actual, token, chain.h, want_position, bits))
                chain = chain._replace(prev_position=position)

            rows.store(slot, (token, position, chain.h, kv_hash))
            # A violation never stops the chain: it goes on from what was really fed.
            chain = chain._replace(h=chain_step(chain.h, token, position))


def _requests(
    plan: WritePlan, num_tokens: int, faults: FaultLog
) -> Iterator[tuple[int, Sequence[int]]]:
    """Each request that has tokens: its seed slot and the indices of its tokens."""
    offsets = plan.write_offsets.tolist()
    seeds = plan.write_seed_slot_indices.tolist()
    for r in range(max(0, min(int(plan.write_num_valid_reqs[0]), plan.capacity))):
        start, stop = offsets[r], offsets[r + 1]
        if stop <= start:
            continue
        if start < 0:
            faults.note(Fault.WRITE_OFFSETS, start)
        if stop > num_tokens:
            faults.note(Fault.WRITE_OFFSETS, stop)
        entries = range(max(0, start), min(stop, num_tokens))
        if entries:
            yield seeds[r], entries


def _chain_of_seed(rows: CanaryRows, seed: int, check_chain: bool, faults: FaultLog) -> _Chain:
    if seed >= len(rows):
        faults.note(Fault.WRITE_SEED, seed)
        seed = -1
    if seed < 0:
        return _Chain(slot_hash(None), None)
    row = rows.read(seed)
    return _Chain(slot_hash(row), row[1] if check_chain else None)
