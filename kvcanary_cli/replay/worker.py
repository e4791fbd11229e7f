"""One worker's canary in a replay: its lanes, its manager, and the forward under way.

A forward is taken in two halves, because the fingerprints that its TAIL stores stand behind it in
the trace: ``begin`` plans and runs HEAD, ``finish`` runs TAIL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvcanary_cli.abi.constants import RealKvHashMode
from kvcanary_cli.canary.config import CanaryConfig, CanaryMode
from kvcanary_cli.canary.endpoint import make_endpoints
from kvcanary_cli.canary.single_forward_manager import SingleForwardManager
from kvcanary_cli.canary.state import CanaryDeviceState
from kvcanary_cli.errors import InputError
from kvcanary_cli.replay.collector import Collector
from kvcanary_cli.replay.forward_rows import ForwardRows
from kvcanary_cli.replay.lane_prints import LanePrints
from kvcanary_cli.replay.sweeper import Sweeper

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvcanary_cli.backends.interface import Backend
    from kvcanary_cli.capacities.checks import CapacityViolation
    from kvcanary_cli.capacities.launch import CanaryLaunchCapacities
    from kvcanary_cli.replay.collector import Tally
    from kvcanary_cli.replay.forwards import Forward
    from kvcanary_cli.replay.history import TokenHistories
    from kvcanary_cli.replay.lanes import Lane
    from kvcanary_cli.replay.options import ReplayOptions
    from kvcanary_cli.replay.prefixes import SweepEntries
    from kvcanary_cli.replay.violations import ViolationChunk, ViolationTable

    Ints = NDArray[np.int64]

# Only the count of a launch is read from the ring; the entries are worked out from the plan.
_RING_ROWS = 16


class WorkerCanary:
    """The canary of one worker (``target`` or ``draft``).

    Attributes:
        worker, lanes: Whose, and its pools.
        pending: The forward whose TAIL is still to come, None = none.
        state: Counters and faults of its launches.
        collector: Works out what they found.
        prints: Recorded fingerprints of its lanes.
    """

    def __init__(
        self,
        *,
        worker: str,
        lanes: list[Lane],
        backend: Backend,
        options: ReplayOptions,
        capacities: CanaryLaunchCapacities | None,
        engine_version: str | None,
        table: NDArray[np.int32],
        histories: TokenHistories | None,
        swa_window: int,
        partial_table: bool,
        violations: ViolationTable,
        tally: Tally,
    ) -> None:
        self.worker = worker
        self.lanes = lanes
        self.pending: Forward | None = None
        self._table_shape = table.shape
        self._capacities = capacities
        self._options = options
        self._tally = tally
        config = CanaryConfig(
            mode=CanaryMode.LOG,
            ring_capacity=_RING_ROWS,
            real_kv_hash_mode=RealKvHashMode.ALL if lanes[0].kv else RealKvHashMode.NONE,
            enable_write_input_assert=histories is not None,
            stats_print_every_n_steps=0,
            enable_mha_v=options.v_half,
        )
        self.state = CanaryDeviceState.allocate(config=config, device=backend.device)
        self.collector = Collector(
            lanes=lanes,
            state=self.state,
            backend=backend,
            table=violations,
            tally=tally,
            ring_capacity=options.ring_capacity,
            partial_table=partial_table,
        )
        groups = [lane.group for lane in lanes]
        endpoints = make_endpoints(
            groups,
            backend=backend,
            state=self.state,
            real_kv_hash_mode=config.real_kv_hash_mode,
        )
        self.prints = LanePrints(lanes, self.collector)
        self._sweeper = Sweeper(
            [e for e in endpoints if e.tag.is_sweep and (options.v_half or not e.tag.is_v_half)],
            lanes=lanes,
            collector=self.collector,
            tally=tally,
            device=backend.device,
        )
        self._rows = ForwardRows(
            cells=table,
            histories=histories,
            lane=lanes[0],
            collector=self.collector,
            device=backend.device,
        )
        self._manager = SingleForwardManager(
            backend=backend,
            groups=groups,
            endpoints=endpoints,
            state=self.state,
            config=config,
            capacities=capacities,
            req_to_token=self._rows.table,
            swa_window_size=swa_window,
            oracle=self._rows.tokens,
            expected_tokens=self._rows.tokens,
            observer=self.collector,
            is_draft=worker == "draft",
            exact_rows=True,
            engine_version=engine_version,
        )

    def begin(self, forward: Forward, *, active: bool) -> list[CapacityViolation]:
        """Check the forward's size, plan it, verify and write its HEAD rows.

        Args:
            forward: The forward.
            active: Whether violations are wanted; the rows are written either way.

        Returns:
            What would not have fitted the server's buffers.
        """
        collector = self.collector
        collector.active, collector.forward = active, forward
        collector.unhashed = {}
        collector.sound = collector.compares_tokens
        collector.untold.clear()
        collector.drop_overflow = None
        if self._options.strict_upstream and self._capacities is not None:
            collector.drop_overflow = self._capacities.per_forward_verify_capacity
        self.prints.begin()
        manager = self._manager
        manager.req_to_token, manager.verify_planner = self._rows.read_by(forward)
        self.state.enable_chain_position_assert.fill_(0 if forward.tree is not None else 1)
        manager.pre_ops_outside_graph(forward.batch)
        manager.pre_ops_maybe_inside_graph(forward.batch)
        self.pending = forward
        return manager.capacity_violations

    def finish(self) -> list[ViolationChunk]:
        """Verify and write the TAIL rows of the pending forward; the violations that it had."""
        forward = self.pending
        if forward is None:
            return []
        written = [self.collector.written_slots(index) for index in range(len(self.lanes))]
        self.prints.before_tail(written)
        self._manager.post_ops_maybe_inside_graph(forward.batch)
        self._manager.post_ops_outside_graph(forward.batch)
        self._raise_on_fault(forward)
        found = self.collector.emit()
        cells, entries = self.lanes[0].known, self.collector.entries
        if cells is not None and entries is not None:
            cells.learn(forward, entries)
        for index, lane in enumerate(self.lanes):
            lane.note_written(written[index])
            self.collector.note_lineage(index)
            if forward.is_draft and forward.mode.is_decode_or_idle:
                lane.note_proposed(written[index])
            if forward.tree is not None:
                lane.unlink(self._loose_nodes(index, forward))
            if self.collector.active:
                self._tally.entries_written += len(written[index])
        self.pending = None
        self.prints.behind_tail(forward.event if self.collector.sound else None)
        return found

    def note_read(self, forward: Forward) -> None:
        """``forward`` is done with, and found nothing."""
        known = self.lanes[0].known
        if known is not None and self.collector.entries is not None:
            known.note_read(forward)

    def _loose_nodes(self, index: int, forward: Forward) -> Ints:
        """Slots of tree nodes that do not follow the node written before them."""
        assert forward.tree is not None
        parents = forward.tree[: len(forward.token_row)]
        first = np.cumsum(forward.extend) - forward.extend
        within = np.arange(len(parents), dtype=np.int64) - first[forward.token_row]
        slots = self.collector.token_slots(index)
        loose: Ints = slots[(parents != within - 1) & (slots >= 0)]
        return loose

    def _raise_on_fault(self, forward: Forward) -> None:
        try:
            self.state.raise_on_fault(
                lut_len=self.lanes[0].num_slots + 1,
                num_slots=min(lane.num_slots for lane in self.lanes),
                rows=self._table_shape[0],
                row_len=self._table_shape[1],
                num_tokens=len(forward.positions),
            )
        except ValueError as error:
            raise InputError(
                f"event i={forward.event} (step {forward.step}): "
                f"{str(error).removeprefix('kv-canary: ')}",
                hint="the recorded batch and the header's pool sizes do not belong together",
            ) from error

    def sweep(
        self, entries: SweepEntries, lut: Ints | None, *, step: int, event: int
    ) -> list[ViolationChunk]:
        """Verify what the prefix index holds in every lane; the violations (``Sweeper.run``)."""
        return self._sweeper.run(entries, lut, step=step, event=event)
