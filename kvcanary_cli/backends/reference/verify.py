"""Verify step: are the planned slots what the plan says they are? (specification 3.2)"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcanary_cli.abi.constants import (
    NO_EXPECTED_TOKEN,
    PADDING_SLOT,
    FailReason,
    RealKvHashMode,
)
from kvcanary_cli.abi.faults import Fault
from kvcanary_cli.backends.reference.hashes import slot_hash, to_signed
from kvcanary_cli.backends.reference.real_kv import real_kv_hash_of_slot
from kvcanary_cli.backends.reference.rows import CanaryRows, ViolationLog

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from kvcanary_cli.abi.plans import VerifyPlan
    from kvcanary_cli.abi.sources import RealKvSource
    from kvcanary_cli.backends.reference.faults import FaultLog


def verify_reference(
    *,
    canary_buf: torch.Tensor,
    plan: VerifyPlan,
    kernel_kind: int,
    violation_ring: torch.Tensor,
    violation_write_index: torch.Tensor,
    slot_run_counter: torch.Tensor,
    kernel_run_counter: torch.Tensor,
    real_kv_sources: Sequence[RealKvSource],
    real_kv_hash_mode: RealKvHashMode,
    check_verify_expected_token: bool,
    faults: FaultLog,
) -> None:
    """Check the planned entries, given checked arguments; see ``Backend.verify``."""
    kernel_run_counter += 1
    if int(plan.enable[0]) == 0:
        return
    rows = CanaryRows(canary_buf)
    violations = ViolationLog(violation_ring, violation_write_index)
    active = max(0, min(int(plan.verify_num_valid[0]), plan.capacity))
    slot_run_counter += active

    for n in range(active):
        slot = int(plan.verify_slot_indices[n])
        if slot == PADDING_SLOT:
            continue
        if not 0 <= slot < len(rows):
            faults.note(Fault.VERIFY_SLOT, slot)
            continue
        token, position, prev_hash, stored_kv_hash = rows.read(slot)

        prev_slot = int(plan.verify_prev_slot_indices[n])
        if prev_slot >= len(rows):
            faults.note(Fault.VERIFY_PREV, prev_slot)
            prev_slot = PADDING_SLOT
        expected_hash = prev_hash
        if prev_slot != PADDING_SLOT:
            expected_hash = to_signed(slot_hash(None if prev_slot < 0 else rows.read(prev_slot)))

        kv_hash = real_kv_hash_of_slot(slot, real_kv_sources, real_kv_hash_mode, faults)
        expected_token = NO_EXPECTED_TOKEN
        if check_verify_expected_token:
            expected_token = int(plan.verify_expected_tokens[n])

        bits = 0
        if prev_hash != expected_hash:
            bits |= FailReason.VERIFY_CHAIN_HASH_MISMATCH
        if expected_token not in (NO_EXPECTED_TOKEN, token):
            bits |= FailReason.VERIFY_TOKEN_MISMATCH
        if position != int(plan.verify_expected_positions[n]):
            bits |= FailReason.VERIFY_POSITION_MISMATCH
        if stored_kv_hash != to_signed(kv_hash):
            bits |= FailReason.VERIFY_REAL_KV_HASH_MISMATCH
        if bits:
            violations.append(
                (kernel_kind, slot, position, token, expected_token, prev_hash, expected_hash, bits)
            )
