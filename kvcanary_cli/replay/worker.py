"""One worker's canary in a replay: its lanes, its manager, and the forward under way.

A forward is taken in two halves, because the fingerprints that its TAIL stores stand behind it in
the trace: ``begin`` plans and runs HEAD, ``finish`` runs TAIL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvcanary_cli.abi.constants import PoolKind, RealKvHashMode
from kvcanary_cli.abi.plans import VerifyPlan
from kvcanary_cli.canary.config import CanaryConfig, CanaryMode
from kvcanary_cli.canary.endpoint import make_endpoints
from kvcanary_cli.canary.single_forward_manager import SingleForwardManager
from kvcanary_cli.canary.state import CanaryDeviceState
from kvcanary_cli.errors import InputError
from kvcanary_cli.replay.collector import Collector
from kvcanary_cli.replay.forwards import rows_as_read
from kvcanary_cli.replay.lanes import get_rows, set_rows
from kvcanary_cli.replay.tokens import RecordedTokens, expected_tokens
from kvcanary_cli.replay.under_padding import UnderPadding

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvcanary_cli.backends.interface import Backend
    from kvcanary_cli.capacities.checks import CapacityViolation
    from kvcanary_cli.capacities.launch import CanaryLaunchCapacities
    from kvcanary_cli.replay.collector import Tally
    from kvcanary_cli.replay.forwards import Forward
    from kvcanary_cli.replay.history import TokenHistories
    from kvcanary_cli.replay.known import Known
    from kvcanary_cli.replay.lanes import Lane
    from kvcanary_cli.replay.options import ReplayOptions
    from kvcanary_cli.replay.prefixes import SweepEntries
    from kvcanary_cli.replay.violations import ViolationChunk, ViolationTable

    Ints = NDArray[np.int64]

# Only the count of a launch is read from the ring; the entries are worked out from the plan.
_RING_ROWS = 16


class _UnknownEntries:
    """Plans what incremental verification has to check in the FULL group of one forward."""

    def __init__(
        self, known: Known, forward: Forward, lens: Ints | None, collector: Collector
    ) -> None:
        self._known, self._forward, self._lens = known, forward, lens
        self._collector = collector

    def room(self, group_index: int) -> int | None:
        return self._known.room(self._forward) if group_index == 0 else None

    def fill(self, group_index: int, plan: VerifyPlan) -> None:
        collector = self._collector
        collector.entries = self._known.plan(self._forward, self._lens, plan)


def _changed_slots(forward: Forward) -> Ints:
    """FULL-pool slots whose bytes ``forward`` changes; negative = none."""
    landed = forward.batch.landed.get(PoolKind.FULL)
    return forward.out_cache_loc if landed is None else landed.numpy()


class WorkerCanary:
    """The canary of one worker (``target`` or ``draft``)."""

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
        import torch

        self.worker = worker
        self.lanes = lanes
        self.pending: Forward | None = None
        self._hashed: dict[tuple[int, str], list[Ints]] = {}
        self.under_padding = UnderPadding(lanes[0])
        self._late: list[tuple[int, str, Ints, Ints, int]] = []
        self._backend = backend
        self._table = table
        self._histories = histories
        self._capacities = capacities
        self._options = options
        self._tally = tally
        self._on_host = backend.device == "cpu"
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
        self._sweeps = [
            e for e in endpoints if e.tag.is_sweep and (options.v_half or not e.tag.is_v_half)
        ]
        self._table_tensor = torch.from_numpy(table)
        self._pool_tensor = None if histories is None else torch.from_numpy(histories.pool)
        self._tokens = None if self._pool_tensor is None else RecordedTokens(self._pool_tensor)
        self._manager = SingleForwardManager(
            backend=backend,
            groups=groups,
            endpoints=endpoints,
            state=self.state,
            config=config,
            capacities=capacities,
            req_to_token=self._table_tensor,
            swa_window_size=swa_window,
            oracle=self._tokens,
            expected_tokens=self._tokens,
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
        self._hashed = {}
        self.under_padding.clear()
        self._set_rows(forward)
        self.state.enable_chain_position_assert.fill_(0 if forward.tree is not None else 1)
        self._manager.pre_ops_outside_graph(forward.batch)
        self._manager.pre_ops_maybe_inside_graph(forward.batch)
        self.pending = forward
        return self._manager.capacity_violations

    def _set_rows(self, forward: Forward) -> None:
        """Point the manager at the rows and tokens that this forward reads through."""
        import torch

        bs = len(forward.rows)
        lens = self._bind_tokens(forward)
        batch = forward.batch
        active_rows = forward.rows[forward.rows != 0]
        shared = len(np.unique(active_rows)) != len(active_rows)
        own_rows = bool(forward.row_as_read) or shared or not self._on_host
        pool = self._row_tokens(forward, lens) if lens is not None and own_rows else None
        if self._tokens is not None:
            self._tokens.forward = forward
            self._tokens.lens = None if lens is None else torch.from_numpy(lens)
            self._tokens.expected = self._expected(forward, pool, lens)
            self.collector.expected = self._tokens.expected
        self._manager.verify_planner = None
        self.collector.entries = None
        if not own_rows:
            self._manager.req_to_token = self._table_tensor
            if self._tokens is not None and self._pool_tensor is not None:
                self._tokens.pool = self._pool_tensor
            known = self.lanes[0].known
            if known is not None:
                known.prepare(forward, _changed_slots(forward), lens)
                self._manager.verify_planner = _UnknownEntries(known, forward, lens, self.collector)
            return
        table, tokens = rows_as_read(forward, self._table, pool)
        indices = np.where(forward.rows != 0, np.arange(1, bs + 1, dtype=np.int64), 0)
        batch.req_pool_indices = torch.from_numpy(indices)
        self._manager.req_to_token = torch.from_numpy(table)
        if self._tokens is not None and tokens is not None:
            self._tokens.pool = torch.from_numpy(tokens)
        if not self._on_host:
            self._move(forward)

    def _move(self, forward: Forward) -> None:
        device = self._backend.device
        batch = forward.batch
        for name in (
            "req_pool_indices",
            "seq_lens",
            "input_ids",
            "positions",
            "out_cache_loc",
            "extend_prefix_lens",
            "extend_seq_lens",
        ):
            tensor = getattr(batch, name)
            if tensor is not None:
                setattr(batch, name, tensor.to(device))
        batch.landed = {kind: slots.to(device) for kind, slots in batch.landed.items()}
        self._manager.req_to_token = self._manager.req_to_token.to(device)
        if self._tokens is not None:
            self._tokens.pool = self._tokens.pool.to(device)
            if self._tokens.lens is not None:
                self._tokens.lens = self._tokens.lens.to(device)

    def _expected(self, forward: Forward, own: Ints | None, lens: Ints | None) -> Ints | None:
        """Token that each written token should be, None where nothing is compared.

        Args:
            forward: The forward.
            own: [bs, n] tokens of each batch row, None = those of the pool count.
            lens: [bs] known tokens of each row, or None.
        """
        if lens is None or self._histories is None:
            return None
        if own is not None:
            return expected_tokens(forward, own, np.arange(len(lens), dtype=np.int64), lens)
        return expected_tokens(forward, self._histories.pool, forward.rows, lens)

    def _bind_tokens(self, forward: Forward) -> Ints | None:
        """Known history length of each batch row, with the histories bound to their rows."""
        histories = self._histories
        if histories is None or not histories.any:
            return None
        lens = np.zeros(len(forward.rows), dtype=np.int64)
        for b, (row, req) in enumerate(zip(forward.rows.tolist(), forward.reqs, strict=True)):
            if row and req is not None:
                lens[b] = histories.bind(row, req)
        return lens

    def _row_tokens(self, forward: Forward, lens: Ints) -> NDArray[np.int64]:
        """[bs, n] known tokens of each batch row."""
        assert self._histories is not None
        width = int(lens.max(initial=0))
        rows = forward.rows
        if len(np.unique(rows)) == len(rows):
            tokens: NDArray[np.int64] = self._histories.pool[rows, :width]
            return tokens
        # Two requests in one table row: its pool row can hold only one of them.
        tokens = np.full((len(rows), width), -1, dtype=np.int64)
        for b, req in enumerate(forward.reqs):
            if req is not None:
                own = self._histories.tokens(req)[:width]
                tokens[b, : len(own)] = own
        return tokens

    def hashed(self, lane_index: int, half: str) -> Ints:
        """Slots whose fingerprint was taken after the pending forward."""
        parts = self._hashed.get((lane_index, half), [])
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)

    def note_after_hash(
        self, lane_index: int, half: str, slots: Ints, hashes: Ints, *, event: int
    ) -> None:
        """Fingerprints taken after the pending forward.

        TAIL sees those of slots that the forward wrote; all others count from then on.
        """
        wrote = np.isin(slots, self.collector.all_slots(lane_index))
        kv = self.lanes[lane_index].kv[half]
        if lane_index == 0:
            self.under_padding.note(self.pending, half, slots[wrote])
        kv.set(slots[wrote], hashes[wrote])
        self._hashed.setdefault((lane_index, half), []).append(slots[wrote])
        if not wrote.all():
            self._late.append((lane_index, half, slots[~wrote], hashes[~wrote], event))

    def changed_under_padding(self, slot: int) -> bool:
        """Whether a padding row of the pending forward hit ``slot``, whose bytes were right so far.

        Only where a fingerprint was taken behind the forward did TAIL see what the row had left.
        """
        return any(
            slot in self.hashed(0, half) and not self.under_padding.was_wrong(half, slot)
            for half in self.lanes[0].kv
        )

    def finish(self) -> list[ViolationChunk]:
        """Verify and write the TAIL rows of the pending forward; the violations that it had."""
        forward = self.pending
        if forward is None:
            return []
        written = [self.collector.written_slots(index) for index in range(len(self.lanes))]
        for index, lane in enumerate(self.lanes):
            for half, kv in lane.kv.items():
                known = self.hashed(index, half)
                bare = np.setdiff1d(written[index], known)
                fresh = np.intersect1d(written[index], known)
                # What other rows of the batch read there had no fingerprint to differ from.
                self._take_as_right(index, half, fresh[kv.unhashed[fresh]])
                kv.unhashed[fresh] = False
                if len(bare):
                    # Until TAIL writes the slot its old fingerprint is as good as any.
                    tail = lane.buffers()[half, "tail"]
                    kv.set(bare, get_rows(tail, bare)[:, 3])
                    self.collector.unhashed[index, half] = bare
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
        for lane in self.lanes:
            for kv in lane.kv.values():
                kv.met_by(forward.event if self.collector.sound else None)
        for lane_index, half, slots, hashes, event in self._late:
            self.adopt(lane_index, half, slots, hashes, event=event)
        self._late.clear()
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
                rows=self._table.shape[0],
                row_len=self._table.shape[1],
                num_tokens=len(forward.positions),
            )
        except ValueError as error:
            raise InputError(
                f"event i={forward.event} (step {forward.step}): "
                f"{str(error).removeprefix('kv-canary: ')}",
                hint="the recorded batch and the header's pool sizes do not belong together",
            ) from error

    def adopt(
        self,
        lane_index: int,
        half: str,
        slots: Ints,
        hashes: Ints,
        *,
        event: int,
        before: bool = False,
    ) -> None:
        """Fingerprints of slots as they are now, outside a pending forward.

        A slot that the canary wrote without a recorded fingerprint takes the first one seen as
        the right one.

        Args:
            lane_index, half: Whose bytes.
            slots, hashes: [n] slots and their fingerprints.
            event: That told them.
            before: Whether they were taken for the next forward.
        """
        lane = self.lanes[lane_index]
        kv = lane.kv[half]
        kv.set(slots, hashes)
        first_seen = slots[kv.unhashed[slots]]
        self._take_as_right(lane_index, half, first_seen)
        kv.unhashed[first_seen] = False
        right = get_rows(lane.buffers()[half, "tail"], slots)[:, 3] == hashes
        kv.note_agreed(slots[right], event, before=before)

    def _take_as_right(self, lane_index: int, half: str, slots: Ints) -> None:
        """The bytes of ``slots`` as they are now are those that their canary rows vouch for."""
        if not len(slots):
            return
        lane = self.lanes[lane_index]
        tail = lane.buffers()[half, "tail"]
        rows = get_rows(tail, slots)
        rows[:, 3] = lane.kv[half].get(slots)
        set_rows(tail, slots, rows)

    def sweep(
        self, entries: SweepEntries, lut: Ints | None, *, step: int, event: int
    ) -> list[ViolationChunk]:
        """Verify what the prefix index holds in every lane; the violations."""
        collector = self.collector
        collector.active, collector.forward, collector.sweep = True, None, (step, event)
        for endpoint in self._sweeps:
            lane = self.lanes[endpoint.group_index]
            plan = self._sweep_plan(lane, entries, lut)
            endpoint.launch_sweep(plan, collector)
            self._tally.sweep_entries += int(
                (plan.verify_slot_indices[: len(entries.slots)] != 0).sum()
            )
        return collector.emit()

    def _sweep_plan(self, lane: Lane, entries: SweepEntries, lut: Ints | None) -> VerifyPlan:
        import torch

        slots, prevs = entries.slots.copy(), entries.prev_slots.copy()
        if lane.kind is PoolKind.SWA and lut is not None:
            slots = lut[slots]
            prevs = np.where(prevs < 0, prevs, lut[np.maximum(prevs, 0)])
        prevs[lane.says_nothing(slots, prevs)] = 0
        if lane.unknown is not None:
            prevs[(prevs > 0) & lane.unknown[np.maximum(prevs, 0)]] = 0
            slots[lane.unknown[slots]] = 0
        count = len(slots)
        device = self._backend.device
        plan = VerifyPlan.allocate(verify_capacity=max(1, count), device=device)
        plan.verify_slot_indices[:count] = torch.from_numpy(slots).to(device)
        plan.verify_prev_slot_indices[:count] = torch.from_numpy(prevs).to(device)
        plan.verify_expected_positions[:count] = torch.from_numpy(entries.positions).to(device)
        plan.verify_num_valid.fill_(count)
        return plan
