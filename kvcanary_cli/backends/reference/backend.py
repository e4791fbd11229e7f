"""``ReferenceBackend``: the interface of ``backends.interface`` over the plain implementation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kvcanary_cli.abi.checked import checked_by
from kvcanary_cli.abi.checks import (
    check_plan_args,
    check_real_kv_args,
    check_scatter_args,
    check_verify_args,
    check_write_args,
)
from kvcanary_cli.abi.constants import PLAN_ROWS_LIMIT, RealKvHashMode
from kvcanary_cli.abi.diff_checks import check_diff_args
from kvcanary_cli.backends.reference.diff_rows import diff_rows_reference
from kvcanary_cli.backends.reference.faults import FaultLog
from kvcanary_cli.backends.reference.hashes import to_signed
from kvcanary_cli.backends.reference.plan import plan_reference
from kvcanary_cli.backends.reference.real_kv import real_kv_hash_of_slot
from kvcanary_cli.backends.reference.scatter import scatter_reference
from kvcanary_cli.backends.reference.verify import verify_reference
from kvcanary_cli.backends.reference.write import write_reference

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcanary_cli.abi.plans import VerifyPlan, WritePlan
    from kvcanary_cli.abi.sources import RealKvSource


class ReferenceBackend:
    """Plan, verify and write in plain Python; some ten microseconds an entry."""

    name = "reference"
    device = "cpu"

    @checked_by(check_plan_args)
    def plan(
        self,
        *,
        req_pool_indices: torch.Tensor,
        prefix_lens: torch.Tensor,
        extend_seq_lens: torch.Tensor,
        req_to_token: torch.Tensor,
        verify_plan_out: VerifyPlan,
        write_plan_out: WritePlan,
        swa_window_size: int,
        full_to_swa_index_mapping: torch.Tensor | None,
        verify_capacity: int,
        req_to_verify_expected_tokens: torch.Tensor | None = None,
        req_to_verify_expected_tokens_valid_lens: torch.Tensor | None = None,
        kv_token_id_vs_position_offset: int = 0,
        rows_limit: int = PLAN_ROWS_LIMIT,
        fault: torch.Tensor | None = None,
    ) -> None:
        """See ``Backend.plan``."""
        faults = FaultLog()
        plan_reference(
            req_pool_indices=req_pool_indices,
            prefix_lens=prefix_lens,
            extend_seq_lens=extend_seq_lens,
            req_to_token=req_to_token,
            verify_plan_out=verify_plan_out,
            write_plan_out=write_plan_out,
            swa_window_size=swa_window_size,
            full_to_swa_index_mapping=full_to_swa_index_mapping,
            req_to_verify_expected_tokens=req_to_verify_expected_tokens,
            req_to_verify_expected_tokens_valid_lens=req_to_verify_expected_tokens_valid_lens,
            kv_token_id_vs_position_offset=kv_token_id_vs_position_offset,
            faults=faults,
        )
        lut = full_to_swa_index_mapping
        faults.finish(
            fault,
            lut_len=0 if lut is None else int(lut.shape[0]),
            rows=int(req_to_token.shape[0]),
            row_len=int(req_to_token.shape[1]),
        )

    @checked_by(check_verify_args)
    def verify(
        self,
        *,
        canary_buf: torch.Tensor,
        plan: VerifyPlan,
        kernel_kind: int,
        violation_ring: torch.Tensor,
        violation_write_index: torch.Tensor,
        slot_run_counter: torch.Tensor,
        kernel_run_counter: torch.Tensor,
        real_kv_sources: Sequence[RealKvSource] = (),
        real_kv_hash_mode: RealKvHashMode = RealKvHashMode.NONE,
        check_verify_expected_token: bool = True,
        fault: torch.Tensor | None = None,
    ) -> None:
        """See ``Backend.verify``."""
        faults = FaultLog()
        verify_reference(
            canary_buf=canary_buf,
            plan=plan,
            kernel_kind=kernel_kind,
            violation_ring=violation_ring,
            violation_write_index=violation_write_index,
            slot_run_counter=slot_run_counter,
            kernel_run_counter=kernel_run_counter,
            real_kv_sources=real_kv_sources,
            real_kv_hash_mode=real_kv_hash_mode,
            check_verify_expected_token=check_verify_expected_token,
            faults=faults,
        )
        faults.finish(fault, num_slots=int(canary_buf.shape[0]))

    @checked_by(check_write_args)
    def write(
        self,
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
        expected_input_tokens: torch.Tensor | None = None,
        expected_input_positions: torch.Tensor | None = None,
        enable_write_input_assert: bool = False,
        real_kv_sources: Sequence[RealKvSource] = (),
        real_kv_hash_mode: RealKvHashMode = RealKvHashMode.NONE,
        fault: torch.Tensor | None = None,
    ) -> None:
        """See ``Backend.write``."""
        faults = FaultLog()
        write_reference(
            canary_buf=canary_buf,
            plan=plan,
            kernel_kind=kernel_kind,
            violation_ring=violation_ring,
            violation_write_index=violation_write_index,
            slot_run_counter=slot_run_counter,
            kernel_run_counter=kernel_run_counter,
            input_ids=input_ids,
            positions=positions,
            out_cache_loc=out_cache_loc,
            enable_chain_position_assert=enable_chain_position_assert,
            expected_input_tokens=expected_input_tokens,
            expected_input_positions=expected_input_positions,
            real_kv_sources=real_kv_sources,
            real_kv_hash_mode=real_kv_hash_mode,
            faults=faults,
        )
        faults.finish(fault, num_slots=int(canary_buf.shape[0]), num_tokens=int(positions.shape[0]))

    @checked_by(check_real_kv_args)
    def real_kv_hash(
        self,
        *,
        slots: torch.Tensor,
        real_kv_sources: Sequence[RealKvSource],
        real_kv_hash_mode: RealKvHashMode,
        fault: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See ``Backend.real_kv_hash``."""
        faults = FaultLog()
        hashes = [
            to_signed(real_kv_hash_of_slot(slot, real_kv_sources, real_kv_hash_mode, faults))
            for slot in slots.tolist()
        ]
        faults.finish(fault)
        return torch.tensor(hashes, dtype=torch.int64)

    @checked_by(check_scatter_args)
    def scatter_req_token_ids(
        self,
        *,
        flat_in: torch.Tensor,
        offsets: torch.Tensor,
        req_pool_indices: torch.Tensor,
        pool_out: torch.Tensor,
    ) -> None:
        """See ``Backend.scatter_req_token_ids``."""
        scatter_reference(
            flat_in=flat_in, offsets=offsets, req_pool_indices=req_pool_indices, pool_out=pool_out
        )

    @checked_by(check_diff_args)
    def diff_rows(
        self,
        *,
        rows: torch.Tensor,
        lens: torch.Tensor,
        table: torch.Tensor,
        shadow: torch.Tensor,
        entries_out: torch.Tensor,
        count_out: torch.Tensor,
        width: int,
    ) -> None:
        """See ``Backend.diff_rows``."""
        diff_rows_reference(
            rows=rows,
            lens=lens,
            table=table,
            shadow=shadow,
            entries_out=entries_out,
            count_out=count_out,
            width=width,
        )
