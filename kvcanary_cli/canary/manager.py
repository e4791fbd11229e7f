"""CanaryManager: one runner's canary over many steps (specification 5.2, 5.4)."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from kvcanary_cli.abi.constants import PoolKind
from kvcanary_cli.canary.config import CanaryMode
from kvcanary_cli.canary.delayed_copy import DelayedHostCopy
from kvcanary_cli.canary.enable_warner import EnableWarner
from kvcanary_cli.canary.endpoint import make_endpoints
from kvcanary_cli.canary.expected_tokens import SnapshotTokens
from kvcanary_cli.canary.health import HealthChecker, expected_tags
from kvcanary_cli.canary.phase import Phase
from kvcanary_cli.canary.single_forward_manager import SingleForwardManager
from kvcanary_cli.canary.state import CanaryDeviceState
from kvcanary_cli.canary.stats import StatsLogger
from kvcanary_cli.canary.swa_report import SwaDivergenceReport
from kvcanary_cli.canary.sweep import SweepOrchestrator
from kvcanary_cli.canary.violations import ViolationManager

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch

    from kvcanary_cli.backends.interface import Backend
    from kvcanary_cli.canary.buffer_group import CanaryBufferGroup
    from kvcanary_cli.canary.config import CanaryConfig
    from kvcanary_cli.canary.endpoint import LaunchObserver
    from kvcanary_cli.canary.expected_tokens import ExpectedTokens, InputOracle
    from kvcanary_cli.canary.forward_batch import ForwardBatch
    from kvcanary_cli.canary.perturb import PerturbManager
    from kvcanary_cli.capacities.launch import CanaryLaunchCapacities


class CanaryManager:
    """Device state, one single-forward manager per inner draft step, and the host's reactions.

    An outer step is ``with manager.with_ops_outside_graph(indices, batch)``; inside it each inner
    forward is ``with manager.with_active_single_forward_manager(i)``, with
    ``pre_ops_maybe_inside_graph``, the model, ``post_ops_maybe_inside_graph``.
    """

    def __init__(
        self,
        *,
        config: CanaryConfig,
        groups: Sequence[CanaryBufferGroup],
        capacities: CanaryLaunchCapacities,
        req_to_token: torch.Tensor,
        backend: Backend,
        swa_window_size: int = 0,
        speculative_num_steps: int = 0,
        is_draft: bool = False,
        oracle: InputOracle | None = None,
        expected_tokens: ExpectedTokens | None = None,
        perturb: PerturbManager | None = None,
        observer: LaunchObserver | None = None,
        engine_version: str | None = None,
        stream: torch.cuda.Stream | None = None,
    ) -> None:
        """
        Args:
            config: Mode log or raise.
            groups: Buffer groups in launch order.
            capacities: Of the launch buffers.
            req_to_token: [rows, row_len] int32 request table.
            backend: Computes everything on the device.
            swa_window_size: Window of the SWA group, in tokens.
            speculative_num_steps: Draft steps; there is one single-forward manager per inner one.
            is_draft: Draft runner: no sweeps are expected, no input assert in DECODE.
            oracle: For the input assert.
            expected_tokens: For the verify-token assert; default the batch's snapshots.
            perturb: Self-test damage, or None.
            observer: Sees each launch, sweeps included.
            engine_version: Picks the text of KVC-B03.
            stream: Side stream for read-backs on a GPU; default a new one.

        Raises:
            ValueError: Mode none, which installs nothing; KVC-A09.
        """
        if config.mode is CanaryMode.NONE:
            raise ValueError("kv-canary: mode none installs no manager; use log or raise")
        if stream is None and backend.device != "cpu":
            import torch

            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self.config = config
        self.outer_step_counter = 0
        self.prefix_index: object | None = None
        """Prefix cache that sweeps walk; attach it to the target runner's manager."""
        self.state = CanaryDeviceState.allocate(
            config=config,
            device=backend.device,
            req_to_token_alloc_size=int(req_to_token.shape[0]),
            max_context_len=int(req_to_token.shape[1]),
        )
        self.state.enable_chain_position_assert.zero_()
        self.endpoints = make_endpoints(
            groups, backend=backend, state=self.state, real_kv_hash_mode=config.real_kv_hash_mode
        )
        if expected_tokens is None and self.state.expected_token_pool is not None:
            expected_tokens = SnapshotTokens(backend=backend, pool=self.state.expected_token_pool)
        swa_totals = self._make_swa_report(groups, req_to_token, stream)
        self.single_forward_managers = tuple(
            SingleForwardManager(
                backend=backend,
                groups=groups,
                endpoints=self.endpoints,
                state=self.state,
                config=config,
                capacities=capacities,
                req_to_token=req_to_token,
                swa_window_size=swa_window_size,
                oracle=oracle,
                expected_tokens=expected_tokens,
                observer=observer,
                is_draft=is_draft,
                engine_version=engine_version,
                swa_totals=swa_totals,
            )
            for _ in range(max(1, speculative_num_steps - 1))
        )
        self._warners = [
            EnableWarner(
                enable=single.output.enable,
                verify_capacity=capacities.per_forward_verify_capacity,
                stream=stream,
            )
            for single in self.single_forward_managers
        ]
        self._perturb = perturb
        tags = [endpoint.tag for endpoint in self.endpoints]
        self.sweeps = SweepOrchestrator(
            interval_steps=config.sweep_interval,
            groups=groups,
            endpoints=self.endpoints,
            enable_mha_v=config.enable_mha_v,
            swa_window_size=swa_window_size,
            observer=observer,
            device=backend.device,
        )
        self._violations = ViolationManager(
            mode=config.mode, violation_log=self.state.violation_log, stream=stream
        )
        self._health = HealthChecker(
            tags=expected_tags(
                tags,
                enable_mha_v=config.enable_mha_v,
                sweep_interval=config.sweep_interval,
                is_draft=is_draft,
            ),
            kernel_run_counters=self.state.kernel_run_counters,
            stream=stream,
        )
        self._stats = StatsLogger(
            interval_steps=config.stats_print_every_n_steps,
            tags=tags,
            state=self.state,
            stream=stream,
        )
        self._faults = DelayedHostCopy(stream)
        self._active: int | None = None
        # Bounds for the text of a fault.
        self._fault_sizes = {
            "rows": int(req_to_token.shape[0]),
            "row_len": int(req_to_token.shape[1]),
            "num_slots": max((group.num_slots for group in groups), default=0),
            "lut_len": max(
                (int(g.swa_index_lut.shape[0]) for g in groups if g.swa_index_lut is not None),
                default=0,
            ),
        }

    def _make_swa_report(
        self,
        groups: Sequence[CanaryBufferGroup],
        req_to_token: torch.Tensor,
        stream: torch.cuda.Stream | None,
    ) -> torch.Tensor | None:
        import torch

        self._swa_report: SwaDivergenceReport | None = None
        interval = self.config.swa_divergence_stats_interval
        if interval <= 0:
            return None
        totals = torch.zeros(2, dtype=torch.int32, device=req_to_token.device)
        self._swa_report = SwaDivergenceReport(
            interval_steps=interval,
            totals=totals,
            req_to_token=req_to_token,
            lut=next((g.swa_index_lut for g in groups if g.kind is PoolKind.SWA), None),
            stream=stream,
        )
        return totals

    def mark_init_finished(self) -> None:
        """Start-up is over: positions and phases are checked from now on."""
        self.state.mark_init_finished()
        for single in self.single_forward_managers:
            single.phase_checker.enable()

    @contextmanager
    def with_ops_outside_graph(self, indices: Sequence[int], batch: ForwardBatch) -> Iterator[None]:
        """One outer step.

        Args:
            indices: Single-forward managers used inside: ``[0]`` for the target, 0 to
                ``speculative_num_steps - 2`` for a draft decode.
            batch: May be imprecise (before padding).

        Raises:
            RuntimeError: KVC-B03, B04, E01, E02 at entry; KVC-R01 and, in mode raise, the
                violations at exit. After an exception inside, what the exit raises is added to
                that exception as a note.
            ValueError: At exit, for faulty data of the step before (``abi.faults``).
            PhaseMismatchError: KVC-R09.
        """
        for index in indices:
            self.single_forward_managers[index].pre_ops_outside_graph(batch)
        if self._perturb is not None:
            self._perturb.before_forward(self.outer_step_counter, batch, self.prefix_index)
        try:
            yield
        except BaseException as error:
            # The broken forward may have stopped in any phase; the next one starts afresh.
            for index in indices:
                self.single_forward_managers[index].phase_checker.phase = Phase.AFTER_POST_MAYBE_IN
            try:
                self._leave(indices, batch)
            except Exception as second:
                error.add_note(f"while leaving the canary step: {second}")
            raise
        self._leave(indices, batch)

    def _leave(self, indices: Sequence[int], batch: ForwardBatch) -> None:
        for index in indices:
            self.single_forward_managers[index].post_ops_outside_graph(batch)
            self._warners[index].tick()
        if self._perturb is not None:
            self._perturb.after_forward(self.outer_step_counter, batch)
        self.sweeps.maybe_sweep(self.outer_step_counter, self.prefix_index)
        self.outer_step_counter += 1
        step = self.outer_step_counter
        self._violations.step(step)
        self._health.step(step)
        self._stats.step(step, self.sweeps.passes)
        if self._swa_report is not None:
            self._swa_report.step(batch)
        self._look_at_faults()
        self._faults.stage({"fault": self.state.fault})

    def _look_at_faults(self) -> None:
        staged = self._faults.take()
        if staged is not None and int(staged["fault"]):
            self.state.raise_on_fault(**self._fault_sizes)

    def flush(self) -> None:
        """Report what the last step left, without waiting for a step that may never come.

        Raises:
            RuntimeError, ValueError: As at the exit of a step.
        """
        self._violations.step(self.outer_step_counter)
        self._look_at_faults()

    @contextmanager
    def with_active_single_forward_manager(self, index: int) -> Iterator[SingleForwardManager]:
        """Bracket one inner forward.

        Raises:
            AssertionError: KVC-R05 inside another bracket; KVC-R07 if the index changed.
        """
        if self._active is not None:
            raise AssertionError(
                "kv-canary: nested with_active_single_forward_manager is forbidden"
            )
        self._active = index
        try:
            yield self.single_forward_managers[index]
        finally:
            left, self._active = self._active, None
        if left != index:
            raise AssertionError(
                f"kv-canary: with_active_single_forward_manager({index}) exited with "
                f"_active_single_forward_manager_index={left}; nested or mismatched bracket"
            )

    def pre_ops_maybe_inside_graph(self, batch: ForwardBatch) -> None:
        """Before the model, inside a bracket."""
        self._single("pre_ops_maybe_inside_graph").pre_ops_maybe_inside_graph(batch)

    def post_ops_maybe_inside_graph(self, batch: ForwardBatch) -> None:
        """After the model, inside a bracket."""
        self._single("post_ops_maybe_inside_graph").post_ops_maybe_inside_graph(batch)

    def _single(self, operation: str) -> SingleForwardManager:
        if self._active is None:
            raise AssertionError(
                f"kv-canary: {operation} called without active SingleForwardManager; caller must "
                "wrap in CanaryManager.with_active_single_forward_manager(i)"
            )
        return self.single_forward_managers[self._active]
