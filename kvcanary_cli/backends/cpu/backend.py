"""``CpuBackend``: checks, then one kernel call for a small launch or several on threads."""

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
from kvcanary_cli.abi.faults import new_fault_cell, raise_on_fault
from kvcanary_cli.backends.cpu.diff_rows import diff_rows
from kvcanary_cli.backends.cpu.parallel import ParallelWriter, verify_in_ranges
from kvcanary_cli.backends.cpu.plan import plan_entries, plan_rows
from kvcanary_cli.backends.cpu.real_kv import SourceTable, hash_range
from kvcanary_cli.backends.cpu.scatter import scatter_ids
from kvcanary_cli.backends.cpu.threads import (
    MIN_PARALLEL_ENTRIES,
    MIN_PARALLEL_TOKENS,
    run_all,
    split,
)
from kvcanary_cli.backends.cpu.verify import verify_launch
from kvcanary_cli.backends.cpu.write import write_launch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcanary_cli.abi.plans import VerifyPlan, WritePlan
    from kvcanary_cli.abi.sources import RealKvSource


def _require_cpu(name: str, tensor: torch.Tensor) -> None:
    if not tensor.is_cpu:
        raise ValueError(f"kv-canary: the cpu backend needs {name} on cpu, got {tensor.device}")


def _finish(packed: int, cell: torch.Tensor | None, **sizes: int) -> None:
    """Leave a fault in the caller's cell, or raise it if there is no cell."""
    if packed == 0:
        return
    if cell is None:
        own = new_fault_cell()
        own[0] = packed
        raise_on_fault(own, **sizes)
    elif packed > int(cell[0]):
        cell[0] = packed


class CpuBackend:
    """Plan, verify and write compiled by Numba; some nanoseconds an entry.

    Results, the order of violation rows included, are those of the reference whatever the number
    of threads. Launches on different tensors may be made from different Python threads.
    """

    name = "cpu"
    device = "cpu"

    def __init__(self) -> None:
        self._writer = ParallelWriter()

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
        _require_cpu("req_to_token", req_to_token)
        bs = req_pool_indices.shape[0]
        rows, row_len = req_to_token.shape
        lut, lut_len = 0, 0
        if full_to_swa_index_mapping is not None:
            lut = full_to_swa_index_mapping.data_ptr()
            lut_len = full_to_swa_index_mapping.shape[0]
        starts = torch.empty(bs + 1, dtype=torch.int64)
        batch = (bs, req_pool_indices.data_ptr(), prefix_lens.data_ptr())
        table = req_to_token.data_ptr()
        total, packed = plan_rows(
            *batch,
            extend_seq_lens.data_ptr(),
            table,
            rows,
            row_len,
            # No row is longer, and the kernel's integers have 64 bits.
            min(swa_window_size, row_len),
            lut,
            lut_len,
            verify_capacity,
            verify_plan_out.verify_num_valid.data_ptr(),
            verify_plan_out.enable.data_ptr(),
            write_plan_out.write_offsets.data_ptr(),
            write_plan_out.write_offsets.shape[0],
            write_plan_out.write_seed_slot_indices.data_ptr(),
            write_plan_out.write_num_valid_reqs.data_ptr(),
            starts.data_ptr(),
        )
        if 0 < total <= verify_capacity:
            pool, pool_width, pool_is_wide, valid_lens = 0, 0, 0, 0
            if (
                req_to_verify_expected_tokens is not None
                and req_to_verify_expected_tokens_valid_lens is not None
            ):
                pool = req_to_verify_expected_tokens.data_ptr()
                pool_width = req_to_verify_expected_tokens.shape[1]
                pool_is_wide = int(req_to_verify_expected_tokens.dtype == torch.int64)
                valid_lens = req_to_verify_expected_tokens_valid_lens.data_ptr()
            arguments = (
                starts.data_ptr(),
                *batch,
                table,
                row_len,
                lut,
                lut_len,
                pool,
                pool_width,
                pool_is_wide,
                valid_lens,
                kv_token_id_vs_position_offset,
                verify_plan_out.verify_slot_indices.data_ptr(),
                verify_plan_out.verify_expected_tokens.data_ptr(),
                verify_plan_out.verify_expected_positions.data_ptr(),
                verify_plan_out.verify_prev_slot_indices.data_ptr(),
            )
            if total < MIN_PARALLEL_ENTRIES:
                packed = max(packed, plan_entries(0, total, *arguments))
            else:
                calls = [(*part, *arguments) for part in split(total)]
                packed = max(packed, *run_all(plan_entries, calls))
        _finish(packed, fault, lut_len=lut_len, rows=rows, row_len=row_len)

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
        _require_cpu("canary_buf", canary_buf)
        num_slots, stride = canary_buf.shape
        capacity = plan.verify_slot_indices.shape[0]
        sources = SourceTable(real_kv_sources, real_kv_hash_mode)
        rows = (canary_buf.data_ptr(), stride, num_slots)
        entries = (
            plan.verify_slot_indices.data_ptr(),
            plan.verify_expected_tokens.data_ptr(),
            plan.verify_expected_positions.data_ptr(),
            plan.verify_prev_slot_indices.data_ptr(),
        )
        options = (
            int(kernel_kind),
            int(check_verify_expected_token),
            sources.address,
            sources.count,
        )
        if capacity >= MIN_PARALLEL_ENTRIES and int(plan.verify_num_valid) >= MIN_PARALLEL_ENTRIES:
            packed = verify_in_ranges(
                rows,
                entries,
                options,
                plan=plan,
                ring=violation_ring,
                write_index=violation_write_index,
                slot_counter=slot_run_counter,
                kernel_counter=kernel_run_counter,
            )
        else:
            packed = verify_launch(
                *rows,
                *entries,
                capacity,
                plan.verify_num_valid.data_ptr(),
                plan.enable.data_ptr(),
                *options,
                violation_ring.data_ptr(),
                violation_ring.shape[0],
                violation_write_index.data_ptr(),
                slot_run_counter.data_ptr(),
                kernel_run_counter.data_ptr(),
            )
        _finish(packed, fault, num_slots=num_slots)

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
        _require_cpu("canary_buf", canary_buf)
        num_slots, stride = canary_buf.shape
        num_tokens = positions.shape[0]
        capacity = plan.write_seed_slot_indices.shape[0]
        sources = SourceTable(real_kv_sources, real_kv_hash_mode)
        expected = (0, 0)
        if expected_input_tokens is not None and expected_input_positions is not None:
            expected = (expected_input_tokens.data_ptr(), expected_input_positions.data_ptr())
        rows = (canary_buf.data_ptr(), stride, num_slots)
        requests = (plan.write_offsets.data_ptr(), plan.write_seed_slot_indices.data_ptr())
        tokens = (
            num_tokens,
            input_ids.data_ptr(),
            positions.data_ptr(),
            out_cache_loc.data_ptr(),
            *expected,
            int(enable_write_input_assert),
        )
        options = (int(kernel_kind), sources.address, sources.count)
        packed = None
        if num_tokens >= MIN_PARALLEL_TOKENS:
            packed = self._writer.write(
                rows,
                requests,
                tokens,
                options,
                plan=plan,
                chain_flag=enable_chain_position_assert,
                ring=violation_ring,
                write_index=violation_write_index,
                slot_counter=slot_run_counter,
                kernel_counter=kernel_run_counter,
            )
        if packed is None:
            packed = write_launch(
                *rows,
                *requests,
                capacity,
                plan.write_num_valid_reqs.data_ptr(),
                *tokens,
                enable_chain_position_assert.data_ptr(),
                *options,
                violation_ring.data_ptr(),
                violation_ring.shape[0],
                violation_write_index.data_ptr(),
                slot_run_counter.data_ptr(),
                kernel_run_counter.data_ptr(),
            )
        _finish(packed, fault, num_slots=num_slots, num_tokens=num_tokens)

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
        _require_cpu("slots", slots)
        sources = SourceTable(real_kv_sources, real_kv_hash_mode)
        hashes = torch.empty_like(slots)
        total = slots.shape[0]
        parts = [(0, total)] if total < MIN_PARALLEL_ENTRIES else split(total)
        pointers = (slots.data_ptr(), hashes.data_ptr())
        calls = [(*pointers, *part, sources.address, sources.count) for part in parts]
        packed = hash_range(*calls[0]) if len(calls) == 1 else max(run_all(hash_range, calls))
        _finish(packed, fault)
        return hashes

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
        for name, tensor in (
            ("flat_in", flat_in),
            ("offsets", offsets),
            ("req_pool_indices", req_pool_indices),
            ("pool_out", pool_out),
        ):
            _require_cpu(name, tensor)
        scatter_ids(
            flat_in.data_ptr(),
            flat_in.shape[0],
            flat_in.stride(0),
            offsets.data_ptr(),
            offsets.stride(0),
            req_pool_indices.data_ptr(),
            req_pool_indices.stride(0),
            req_pool_indices.shape[0],
            pool_out.data_ptr(),
            *pool_out.shape,
            *pool_out.stride(),
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
        _require_cpu("table", table)
        count_out[0] = diff_rows(
            rows.data_ptr(),
            lens.data_ptr(),
            rows.shape[0],
            table.data_ptr(),
            shadow.data_ptr(),
            *table.shape,
            table.element_size(),
            width,
            entries_out.data_ptr(),
            entries_out.shape[0],
        )
