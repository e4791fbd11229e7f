"""SingleForwardManager: plan, HEAD, model, TAIL of one inner forward (3.5, 5.3, 5.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from kvcanary_cli.abi.constants import PLAN_ROWS_LIMIT, ForwardMode, PoolKind
from kvcanary_cli.canary.endpoint import ForwardLaunch
from kvcanary_cli.canary.expected_tokens import checked_expected_inputs
from kvcanary_cli.canary.forward_output import ForwardOutput
from kvcanary_cli.canary.phase import Phase, PhaseChecker
from kvcanary_cli.canary.plan_buffers import PlanBuffers
from kvcanary_cli.canary.plan_input import PlanInput, as_int64
from kvcanary_cli.canary.swa_slots import translate_out_cache_loc
from kvcanary_cli.capacities.checks import (
    check_batch_size,
    check_padded_batch_size,
    check_token_count,
    check_verify_entries,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from kvcanary_cli.abi.plans import VerifyPlan
    from kvcanary_cli.backends.interface import Backend
    from kvcanary_cli.canary.buffer_group import CanaryBufferGroup
    from kvcanary_cli.canary.config import CanaryConfig
    from kvcanary_cli.canary.endpoint import Endpoint, LaunchObserver
    from kvcanary_cli.canary.expected_tokens import ExpectedTokens, InputOracle
    from kvcanary_cli.canary.forward_batch import ForwardBatch
    from kvcanary_cli.canary.state import CanaryDeviceState
    from kvcanary_cli.capacities.checks import CapacityViolation
    from kvcanary_cli.capacities.launch import CanaryLaunchCapacities


class VerifyPlanner(Protocol):
    """Plans verification otherwise than the plan step does, for a replay with exact rows."""

    def room(self, group_index: int) -> int | None:
        """Entries that ``fill`` needs at most; None = the plan step plans this group."""

    def fill(self, group_index: int, plan: VerifyPlan) -> None:
        """Set all of ``plan`` that a verification reads."""


class SingleForwardManager:
    """Runs the canary around one inner forward, by four calls in a fixed order.

    Two ways to size the buffers: as the server does (``exact_rows=False``: the declared
    capacities, an overflow raises KVC-B03 to B05 or drops a group's verification), or for replay
    (``exact_rows=True``: as large as the batch needs, everything is verified, and what would not
    have fitted is left in ``capacity_violations``).

    Faulty data (``abi.faults``) collects in ``state.fault``; whoever drives the manager reads it.
    """

    def __init__(
        self,
        *,
        backend: Backend,
        groups: Sequence[CanaryBufferGroup],
        endpoints: Sequence[Endpoint],
        state: CanaryDeviceState,
        config: CanaryConfig,
        capacities: CanaryLaunchCapacities | None,
        req_to_token: torch.Tensor,
        swa_window_size: int = 0,
        oracle: InputOracle | None = None,
        expected_tokens: ExpectedTokens | None = None,
        observer: LaunchObserver | None = None,
        is_draft: bool = False,
        exact_rows: bool = False,
        engine_version: str | None = None,
        swa_totals: torch.Tensor | None = None,
    ) -> None:
        """
        Args:
            backend: Computes plan, verify and write.
            groups: Buffer groups in launch order.
            endpoints: From ``make_endpoints`` over the same groups.
            state: Shared device state.
            config: V gate and input assert.
            capacities: Limits; may be None only with ``exact_rows`` (nothing is checked then).
            req_to_token: [rows, row_len] int32 request table, read at each forward.
            swa_window_size: Window of the SWA groups, in tokens.
            oracle: Needed for the input assert (KVC-W05).
            expected_tokens: Source of the verify-token assert, or None.
            observer: Sees each launch.
            is_draft: Draft runner: no input assert in DECODE.
            exact_rows: See the class.
            engine_version: Picks the text of KVC-B03.
            swa_totals: [2] int32 running totals of planned entries by pool kind, or None.
        """
        if capacities is None and not exact_rows:
            raise ValueError("kv-canary: capacities are required unless exact_rows is set")
        self.capacity_violations: list[CapacityViolation] = []
        self.output = ForwardOutput.allocate(state)
        self.phase_checker = PhaseChecker()
        self.req_to_token = req_to_token
        self.observer = observer
        self.verify_planner: VerifyPlanner | None = None
        self.capacities = capacities
        self._backend = backend
        self._groups = tuple(groups)
        self._state = state
        self._config = config
        self._oracle = oracle
        self._expected_tokens = expected_tokens
        self._is_draft = is_draft
        self._exact = exact_rows
        self._engine_version = engine_version
        self._swa_totals = swa_totals
        self._windows = tuple(
            swa_window_size if group.kind is PoolKind.SWA else 0 for group in self._groups
        )
        launched = [e for e in endpoints if config.enable_mha_v or not e.tag.is_v_half]
        indices = range(len(self._groups))
        self._head = [
            [e for e in launched if e.group_index == g and e.tag.is_head] for g in indices
        ]
        self._tail = [
            [e for e in launched if e.group_index == g and e.tag.is_tail] for g in indices
        ]
        self._buffers = PlanBuffers(num_groups=len(self._groups), device=backend.device)
        self._launches: list[ForwardLaunch] = []
        self._overflows = 0

    def pre_ops_outside_graph(self, batch: ForwardBatch) -> None:
        """Check that the batch fits and bring the expected tokens up to date.

        Raises:
            PhaseMismatchError: KVC-R09.
            RuntimeError: KVC-B03, KVC-B04 (not with ``exact_rows``), KVC-E01, KVC-E02.
        """
        self.phase_checker.step("pre_ops_outside_graph", Phase.IDLE, Phase.AFTER_PRE_OUT)
        self.capacity_violations = []
        if self.capacities is not None:
            raw = batch.raw_batch_size
            self._meet(
                check_batch_size(
                    batch_size=batch.batch_size if raw is None else raw,
                    capacity=self.capacities.per_forward_write_req_capacity,
                    engine_version=self._engine_version,
                )
            )
            self._meet(
                check_token_count(
                    num_tokens=batch.num_tokens,
                    capacity=self.capacities.per_forward_write_entry_capacity,
                )
            )
        if self._expected_tokens is not None:
            self._expected_tokens.refresh(batch)

    def pre_ops_maybe_inside_graph(self, batch: ForwardBatch) -> None:
        """Plan once per group; verify and write the HEAD rows.

        Raises:
            PhaseMismatchError: KVC-R09.
            RuntimeError: KVC-B05, KVC-W05, KVC-R04.
            TypeError: KVC-R03.
            NotImplementedError: KVC-R11.
        """
        self.phase_checker.step(
            "pre_ops_maybe_inside_graph", Phase.AFTER_PRE_OUT, Phase.AFTER_PRE_MAYBE_IN
        )
        self._launches = []
        pool, valid_lens = self._tokens(batch)
        rows = self._plan_input(batch, valid_lens)
        input_ids = as_int64("input_ids", batch.input_ids)
        positions = as_int64("positions", batch.positions)
        out_cache_loc = as_int64("out_cache_loc", batch.out_cache_loc)
        expected = self._expected_inputs(batch)
        capacities = self._verify_capacities(rows)
        for index, group in enumerate(self._groups):
            launch = ForwardLaunch(
                verify_plan=self._buffers.verify_plan(index, capacities[index], exact=self._exact),
                write_plan=self._buffers.write_plan(
                    index, max(1, int(rows.req_pool_indices.shape[0])), exact=self._exact
                ),
                input_ids=input_ids,
                positions=positions,
                out_cache_loc=out_cache_loc,
                expected_tokens=expected[0],
                expected_positions=expected[1],
            )
            if group.swa_index_lut is not None:
                launch.out_cache_loc = translate_out_cache_loc(
                    out_cache_loc, group.swa_index_lut, self._state.fault
                )
            landed = batch.landed.get(group.kind)
            if landed is not None:
                launch.out_cache_loc = as_int64("landed", landed)
            self._plan(index, group, rows, launch, pool)
            self._launches.append(launch)
            for endpoint in self._head[index]:
                endpoint.launch_per_forward(launch, self.observer)

    def post_ops_maybe_inside_graph(self, batch: ForwardBatch) -> None:
        """Verify and write the TAIL rows, then copy the results to ``output``."""
        self.phase_checker.step(
            "post_ops_maybe_inside_graph", Phase.AFTER_PRE_MAYBE_IN, Phase.AFTER_POST_MAYBE_IN
        )
        for endpoints, launch in zip(self._tail, self._launches, strict=False):
            for endpoint in endpoints:
                endpoint.launch_per_forward(launch, self.observer)
        self.output.copy_from(self._state, [launch.verify_plan.enable for launch in self._launches])

    def post_ops_outside_graph(self, batch: ForwardBatch) -> None:
        """Close the forward."""
        self.phase_checker.step("post_ops_outside_graph", Phase.AFTER_POST_MAYBE_IN, Phase.IDLE)

    def run(self, batch: ForwardBatch) -> None:
        """All four operations, for a caller that has no model to run in between."""
        self.pre_ops_outside_graph(batch)
        self.pre_ops_maybe_inside_graph(batch)
        self.post_ops_maybe_inside_graph(batch)
        self.post_ops_outside_graph(batch)

    def _meet(self, violation: CapacityViolation | None) -> None:
        if violation is None:
            return
        if not self._exact:
            raise RuntimeError(violation.message)
        self.capacity_violations.append(violation)

    def _tokens(self, batch: ForwardBatch) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        if self._expected_tokens is None:
            return None, None
        valid_lens = self._expected_tokens.valid_lens(batch)
        if valid_lens is None and self._exact:
            return None, None
        return self._expected_tokens.pool, valid_lens

    def _plan_input(self, batch: ForwardBatch, valid_lens: torch.Tensor | None) -> PlanInput:
        if not self._exact:
            assert self.capacities is not None
            return PlanInput.padded(
                batch,
                rows=self.capacities.per_forward_write_req_capacity,
                valid_lens=valid_lens,
            )
        # Where the raw batch is too large already the server never gets as far as the padded one.
        if (
            self.capacities is not None
            and batch.raw_batch_size is not None
            and not any(found.what == "batch_size" for found in self.capacity_violations)
        ):
            self._meet(
                check_padded_batch_size(
                    batch_size=batch.batch_size,
                    capacity=self.capacities.per_forward_write_req_capacity,
                    engine_version=self._engine_version,
                )
            )
        return PlanInput.exact(batch, valid_lens=valid_lens)

    def _verify_capacities(self, rows: PlanInput) -> list[int]:
        if not self._exact:
            assert self.capacities is not None
            return [self.capacities.per_forward_verify_capacity] * len(self._groups)
        totals = rows.verify_totals(self._windows)
        if self.capacities is not None:
            limit = self.capacities.per_forward_verify_capacity
            largest = max(totals, default=0)
            if largest > limit:
                self._overflows += 1
                self._meet(
                    check_verify_entries(
                        total_entries=largest, capacity=limit, occurrences=self._overflows
                    )
                )
        if self.verify_planner is not None:
            for index in range(len(totals)):
                room = self.verify_planner.room(index)
                totals[index] = totals[index] if room is None else room
        return [max(1, total) for total in totals]

    def _expected_inputs(
        self, batch: ForwardBatch
    ) -> tuple[torch.Tensor, torch.Tensor] | tuple[None, None]:
        if not self._config.enable_write_input_assert:
            return None, None
        if self._is_draft and batch.forward_mode is ForwardMode.DECODE:
            return None, None
        return checked_expected_inputs(self._oracle, batch)

    def _plan(
        self,
        index: int,
        group: CanaryBufferGroup,
        rows: PlanInput,
        launch: ForwardLaunch,
        pool: torch.Tensor | None,
    ) -> None:
        bs = int(rows.req_pool_indices.shape[0])
        planner = self.verify_planner
        verify_plan = launch.verify_plan
        is_planned = planner is not None and planner.room(index) is not None
        if is_planned:
            # The plan step then plans the writes only: hardly any forward fits one entry.
            verify_plan = self._buffers.no_verify_plan()
        self._backend.plan(
            req_pool_indices=rows.req_pool_indices,
            prefix_lens=rows.prefix_lens,
            extend_seq_lens=rows.extend_seq_lens,
            req_to_token=self.req_to_token,
            verify_plan_out=verify_plan,
            write_plan_out=launch.write_plan,
            swa_window_size=self._windows[index],
            full_to_swa_index_mapping=group.swa_index_lut,
            verify_capacity=verify_plan.capacity,
            req_to_verify_expected_tokens=pool,
            req_to_verify_expected_tokens_valid_lens=(
                None if pool is None else rows.req_to_verify_expected_tokens_valid_lens
            ),
            kv_token_id_vs_position_offset=group.kv_token_id_vs_position_offset,
            rows_limit=max(PLAN_ROWS_LIMIT, bs) if self._exact else PLAN_ROWS_LIMIT,
            fault=self._state.fault,
        )
        if planner is not None and is_planned:
            planner.fill(index, launch.verify_plan)
        if self._swa_totals is not None:
            self._swa_totals[group.kind : group.kind + 1] += launch.verify_plan.verify_num_valid
        if self.observer is not None:
            self.observer.after_plan(index, launch.verify_plan, launch.write_plan)
