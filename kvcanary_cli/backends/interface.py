"""The one interface behind which plan, verify and write are computed.

Three implementations, equal to the bit: ``reference`` (plain, the truth that people read), ``cpu``
(Numba) and ``triton`` (GPU, or Triton's interpreter). All tensors are torch tensors on
``Backend.device``; all arguments are keyword-only and checked by ``abi.checks`` before anything is
launched. ``fault`` is a [1] int64 cell (``abi.faults``): given, it collects faulty data and the
launch does not synchronise; None, the launch reads its own cell back and raises ValueError.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from kvcanary_cli.abi.constants import PLAN_ROWS_LIMIT, RealKvHashMode

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from kvcanary_cli.abi.plans import VerifyPlan, WritePlan
    from kvcanary_cli.abi.sources import RealKvSource


class Backend(Protocol):
    """Plan, verify, write, real-KV fold and token scatter (specification 3 and 1.14)."""

    name: str
    """``reference``, ``cpu`` or ``triton``."""
    device: str
    """Where its tensors live: ``cpu`` or ``cuda``."""

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
        """Fill both plans from the batch's rows (3.1).

        Args:
            req_pool_indices: [bs] int64, 0 = padding row.
            prefix_lens: [bs] int64.
            extend_seq_lens: [bs] int64.
            req_to_token: [rows, row_len] int32, contiguous.
            verify_plan_out: Filled. If more entries are due than fit, no entry is stored,
                ``enable`` becomes 0 and ``verify_num_valid`` the capacity.
            write_plan_out: Filled; capacity >= bs. Seed cells past bs are untouched, offset cells
                past bs are 0.
            swa_window_size: 0 = the whole prefix.
            full_to_swa_index_mapping: [n] int64 or None (slots are not translated).
            verify_capacity: Must equal the verify plan's length.
            req_to_verify_expected_tokens: [rows, any] int32 or int64, or None.
            req_to_verify_expected_tokens_valid_lens: [bs] int64, needed with the tokens.
            kv_token_id_vs_position_offset: 0 for the target pool, 1 for a draft pool.
            rows_limit: Largest bs that is accepted.
            fault: See the module.

        Raises:
            ValueError: see ``check_plan_args``.
        """

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
        """Check the planned entries against the canary buffer, which is not changed (3.2).

        Args:
            canary_buf: [num_slots, stride >= 32] uint8, contiguous.
            plan: Entries; ``verify_num_valid`` is clamped to [0, capacity].
            kernel_kind: Launch tag that goes into field 0 of a violation row.
            violation_ring: [ring_capacity, 8] int64; a row is stored only while
                ``violation_write_index`` < ring_capacity.
            violation_write_index: [1] int32, grows by one per violation.
            slot_run_counter: [1] int64, grows by the active entries.
            kernel_run_counter: [1] int64, grows by one.
            real_kv_sources: At most 4; empty = the fingerprint must be 0.
            real_kv_hash_mode: How much of a strip is folded.
            check_verify_expected_token: Whether tokens are compared (off in sweeps).
            fault: See the module.

        Raises:
            ValueError: see ``check_verify_args``.
        """

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
        """Write the batch's canary rows, request by request (3.3).

        Where requests of one launch touch each other's slots (a seed or a slot that another
        request writes) the result is that of running the requests in order, on every backend.

        Args:
            input_ids, positions, out_cache_loc: [num_tokens] int64, flat in request order;
                a negative out_cache_loc is not written.
            enable_chain_position_assert: [1] int32 device flag.
            expected_input_tokens, expected_input_positions: [num_tokens] int64, given exactly if
                ``enable_write_input_assert``.
            (the rest as in ``verify``)

        Raises:
            ValueError: see ``check_write_args``.
        """

    def real_kv_hash(
        self,
        *,
        slots: torch.Tensor,
        real_kv_sources: Sequence[RealKvSource],
        real_kv_hash_mode: RealKvHashMode,
        fault: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Fingerprint the KV bytes of ``slots`` [n] int64 as [n] int64 (2.3)."""

    def scatter_req_token_ids(
        self,
        *,
        flat_in: torch.Tensor,
        offsets: torch.Tensor,
        req_pool_indices: torch.Tensor,
        pool_out: torch.Tensor,
    ) -> None:
        """Copy each request's token ids into its row of the expected-token pool (1.14).

        Args:
            flat_in: [n] int64, all ids; the low 32 bits are kept.
            offsets: [bs + 1] int64, prefix sums into ``flat_in``.
            req_pool_indices: [bs] int64.
            pool_out: [rows, max_context_len] int32; ids past the width are dropped.

        Raises:
            ValueError: KVC-E03, E05, E06.
            TypeError: KVC-E04.
        """

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
        """Find the cells of some rows that differ from a shadow copy, and take them over.

        All cells are compared with the shadow as it was before the call. Where more differ than
        ``entries_out`` holds, the rest stays as it was in the shadow: the next call finds it.

        Args:
            rows: [n] int64 row numbers; one outside the table has no cells.
            lens: [n] int64, how many first cells of each row are compared; negative = none.
            table: [rows, row_len] int32 or int64, contiguous, unchanged.
            shadow: The same shape and type; changed to ``table`` in the cells that are stored.
            entries_out: [capacity, 3] int64: table row, position, new value, in the order of
                ``rows`` and then of positions; cells past the count are untouched.
            count_out: [1] int64, how many cells differ; may be more than the capacity.
            width: Cells from here on are not compared, whatever ``lens`` says; <= row_len.

        Raises:
            ValueError: see ``check_diff_args``.
        """
