"""Plan step: which slots to verify and where each request's write starts (specification 3.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvcanary_cli.abi.constants import CHAIN_HEAD, NO_EXPECTED_TOKEN, PADDING_ROW, PADDING_SLOT
from kvcanary_cli.abi.faults import Fault
from kvcanary_cli.backends.reference.hashes import to_signed

if TYPE_CHECKING:
    import torch

    from kvcanary_cli.abi.plans import VerifyPlan, WritePlan
    from kvcanary_cli.backends.reference.faults import FaultLog


class _Entry(NamedTuple):
    slot: int
    token: int
    position: int
    prev_slot: int


class _Request(NamedTuple):
    """One row of the batch; the lengths are those that count, 0 for an inactive row."""

    pool_row: int
    prefix: int
    window_start: int
    extend: int


class _Slots:
    """Slots of request rows, translated into the group's own pool."""

    def __init__(
        self, req_to_token: torch.Tensor, lut: torch.Tensor | None, faults: FaultLog
    ) -> None:
        self._req_to_token = req_to_token
        self._lut = lut
        self._faults = faults

    def at(self, pool_row: int, position: int) -> int:
        """Slot of a position; a slot that the table does not know is noted and becomes 0."""
        slot = int(self._req_to_token[pool_row, position])
        if self._lut is None or slot < 0:
            return slot
        if slot >= self._lut.shape[0]:
            self._faults.note(Fault.SWA_SLOT, slot)
            return PADDING_SLOT
        return int(self._lut[slot])


def plan_reference(
    *,
    req_pool_indices: torch.Tensor,
    prefix_lens: torch.Tensor,
    extend_seq_lens: torch.Tensor,
    req_to_token: torch.Tensor,
    verify_plan_out: VerifyPlan,
    write_plan_out: WritePlan,
    swa_window_size: int,
    full_to_swa_index_mapping: torch.Tensor | None,
    req_to_verify_expected_tokens: torch.Tensor | None,
    req_to_verify_expected_tokens_valid_lens: torch.Tensor | None,
    kv_token_id_vs_position_offset: int,
    faults: FaultLog,
) -> None:
    """Fill both plans from checked arguments; see ``Backend.plan``.

    On overflow no entry is looked at, so only request rows and seeds can be faulty then.
    """
    slots = _Slots(req_to_token, full_to_swa_index_mapping, faults)
    rows = zip(
        req_pool_indices.tolist(), prefix_lens.tolist(), extend_seq_lens.tolist(), strict=True
    )
    requests = [_active_request(*row, swa_window_size, req_to_token.shape, faults) for row in rows]

    _fill_write_plan(write_plan_out, requests, slots)

    total = sum(r.prefix - r.window_start for r in requests)
    capacity = verify_plan_out.capacity
    verify_plan_out.verify_num_valid[0] = min(total, capacity)
    verify_plan_out.enable[0] = int(total <= capacity)
    if total > capacity:
        return

    n = 0
    for r, request in enumerate(requests):
        for position in range(request.window_start, request.prefix):
            entry = _Entry(
                slot=slots.at(request.pool_row, position),
                token=_expected_token(
                    r,
                    request.pool_row,
                    position + kv_token_id_vs_position_offset,
                    req_to_verify_expected_tokens,
                    req_to_verify_expected_tokens_valid_lens,
                ),
                position=position,
                prev_slot=(
                    CHAIN_HEAD if position == 0 else slots.at(request.pool_row, position - 1)
                ),
            )
            verify_plan_out.verify_slot_indices[n] = entry.slot
            verify_plan_out.verify_expected_tokens[n] = entry.token
            verify_plan_out.verify_expected_positions[n] = entry.position
            verify_plan_out.verify_prev_slot_indices[n] = entry.prev_slot
            n += 1


def _active_request(
    pool_row: int,
    prefix: int,
    extend: int,
    window: int,
    table_shape: torch.Size,
    faults: FaultLog,
) -> _Request:
    inactive = _Request(PADDING_ROW, 0, 0, 0)
    if pool_row == PADDING_ROW:
        return inactive
    if not 0 <= pool_row < table_shape[0]:
        faults.note(Fault.REQUEST_ROW, pool_row)
        return inactive
    if not 0 <= prefix <= table_shape[1]:
        faults.note(Fault.PREFIX, prefix)
        return inactive
    window_start = max(0, prefix - window) if window > 0 else 0
    return _Request(pool_row, prefix, window_start, max(0, extend))


def _fill_write_plan(plan: WritePlan, requests: list[_Request], slots: _Slots) -> None:
    plan.write_offsets.zero_()
    offset = 0
    for r, request in enumerate(requests):
        offset = to_signed(offset + request.extend)
        plan.write_offsets[r + 1] = offset
        has_seed = request.extend > 0 and request.prefix > 0
        plan.write_seed_slot_indices[r] = (
            slots.at(request.pool_row, request.prefix - 1) if has_seed else CHAIN_HEAD
        )
    plan.write_num_valid_reqs[0] = len(requests)


def _expected_token(
    r: int,
    pool_row: int,
    index: int,
    pool: torch.Tensor | None,
    valid_lens: torch.Tensor | None,
) -> int:
    """Token ``index`` of the request, or -1 where the pool does not hold it."""
    if pool is None or valid_lens is None:
        return NO_EXPECTED_TOKEN
    if not 0 <= index < min(int(valid_lens[r]), pool.shape[1]):
        return NO_EXPECTED_TOKEN
    return int(pool[pool_row, index])
