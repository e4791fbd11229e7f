"""Watches the launches of a forward, and collects what they found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from kvcanary_cli.abi.constants import NO_EXPECTED_TOKEN, PoolKind
from kvcanary_cli.errors import KvCanaryError
from kvcanary_cli.replay import explain
from kvcanary_cli.replay.explain import LaunchFindings, SeedRows
from kvcanary_cli.replay.merging import Merger
from kvcanary_cli.replay.watcher import Reads

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from kvcanary_cli.abi.plans import VerifyPlan, WritePlan
    from kvcanary_cli.backends.interface import Backend
    from kvcanary_cli.canary.endpoint import Endpoint
    from kvcanary_cli.canary.state import CanaryDeviceState
    from kvcanary_cli.replay.forwards import Forward
    from kvcanary_cli.replay.known import Entries
    from kvcanary_cli.replay.lanes import Lane
    from kvcanary_cli.replay.violations import ViolationChunk, ViolationTable

    Ints = NDArray[np.int64]


@dataclass(slots=True)
class Tally:
    """Running counts for the coverage statement."""

    entries_verified: int = 0
    entries_written: int = 0
    token_entries: int = 0
    chain_unlinked: int = 0
    sweep_entries: int = 0
    skipped: dict[str, int] = field(default_factory=dict)

    def skip(self, reason: str, count: int) -> None:
        if count:
            self.skipped[reason] = self.skipped.get(reason, 0) + count


UNKNOWN_ROW = "slot holds content from before the recording"
UNMAPPED = "the request table was not recorded there"
PADDING_SLOT_READ = "prefix cell holds the padding slot 0, which the canary does not check"
EVICTED = "not in the SWA pool any more"
OVERFLOW = "verify plan overflow (KVC-B08)"


class Collector:
    """Observer of one worker's launches (``canary.endpoint.LaunchObserver``).

    Attributes:
        active: Whether violations are worked out; the launches run either way.
        forward: The forward under way, None in a sweep.
        entries: Which entries of group 0 are checked in the forward under way, None = all.
        untold: Slots of the worker's full pool that the forward under way read, and with which
            nothing could be compared; what it writes itself does not change that.
        compares_tokens: Whether the trace has tokens: without them nothing tells whose content a
            slot holds.
        sound: Whether the forward under way was checked, and no launch of it counted anything.
        expected: [num_tokens] expected input tokens of the forward, or None.
        keeps_plans: Whether ``plan_slots`` is kept.
        plan_slots: FULL-pool slots that the forward under way reads, in plan order.
        drop_overflow: Capacity above which a group is left unverified, as upstream does; None =
            verify all.
    """

    def __init__(
        self,
        *,
        lanes: list[Lane],
        state: CanaryDeviceState,
        backend: Backend,
        table: ViolationTable,
        tally: Tally,
        ring_capacity: int | None,
        partial_table: bool,
    ) -> None:
        self.active = True
        self.compares_tokens = self.sound = True
        self.untold: set[int] = set()
        self.forward: Forward | None = None
        self.entries: Entries | None = None
        self.expected: Ints | None = None
        self.drop_overflow: int | None = None
        self.sweep: tuple[int, int] = (0, 0)
        self.unhashed: dict[tuple[int, str], Ints] = {}
        self._lanes = lanes
        self._state = state
        self._index = state.violation_log.write_index
        self._backend = backend
        self._tally = tally
        # Whether cells of the request table that hold 0 may only be unrecorded ones.
        self._partial_table = partial_table
        self.keeps_plans = False
        self.plan_slots: Ints = np.empty(0, dtype=np.int64)
        self._row_lineage: dict[int, Ints] = {}
        self._merger = Merger(lanes, table, ring_capacity)
        self._locs: dict[int, Ints] = {}
        self._seeds: SeedRows | None = None

    @property
    def ring_lost(self) -> int:
        """Violations that a ring of the asked-for size would not have kept."""
        return self._merger.ring_lost

    # The manager's side: observer calls.

    def after_plan(self, group_index: int, verify_plan: VerifyPlan, write_plan: WritePlan) -> None:
        """Take out what cannot be checked: content from before the recording, tree links."""
        lane = self._lanes[group_index]
        count = int(verify_plan.verify_num_valid.item())
        if self.keeps_plans and lane.kind is PoolKind.FULL and self.entries is None:
            self.plan_slots = verify_plan.verify_slot_indices[:count].cpu().numpy().copy()
        self._row_lineage.pop(group_index, None)
        if self.drop_overflow is not None and count > self.drop_overflow:
            verify_plan.enable.zero_()
            self.sound = False
            self._skip(OVERFLOW, count)
            self._start_lineages(group_index, lane, write_plan)
            return
        slots = verify_plan.verify_slot_indices[:count]
        prevs = verify_plan.verify_prev_slot_indices[:count]
        host_slots, host_prevs = slots.cpu().numpy(), prevs.cpu().numpy()
        checked = host_slots != 0
        unread = int((~checked).sum())
        # The canary passes over the padding slot whatever a cell names it for.
        self._skip(self._slot_zero_reason(lane), unread)
        entries = self.entries if group_index == 0 else None
        incomplete = ~checked
        proposed = self._proposed(lane, host_slots, verify_plan, count, entries)
        if lane.proposal is not None:
            incomplete |= lane.proposal[host_slots]
        if proposed is not None:
            verify_plan.verify_expected_tokens[:count][_mask(proposed, slots)] = NO_EXPECTED_TOKEN
        if lane.any_unlinked or lane.lineage is not None:
            mask = lane.says_nothing(host_slots, host_prevs)
            if self.active:
                self._tally.chain_unlinked += int(mask.sum())
            prevs[_mask(mask, prevs)] = 0
            incomplete |= mask
        if lane.unknown is not None:
            mask = lane.unknown[host_slots] & checked
            self._cannot_tell(lane, host_slots[mask])
            slots[_mask(mask, slots)] = 0
            unknown_prev = (host_prevs > 0) & lane.unknown[np.maximum(host_prevs, 0)]
            prevs[_mask(unknown_prev, prevs)] = 0
            checked &= ~mask
            incomplete |= mask | unknown_prev
            self._skip(UNKNOWN_ROW, int(mask.sum()))
        if entries is not None:
            entries.mark(incomplete)
        unlinked = checked & (prevs.cpu().numpy() == 0)
        if unlinked.any():
            # Neither token nor chain is compared: nothing tells whose content it is.
            bare = verify_plan.verify_expected_tokens[:count].cpu().numpy() == NO_EXPECTED_TOKEN
            self._cannot_tell(lane, host_slots[unlinked & bare])
        if self.active:
            tokens = verify_plan.verify_expected_tokens[:count].cpu().numpy()
            self._tally.entries_verified += int(checked.sum())
            self._tally.token_entries += int((checked & (tokens != NO_EXPECTED_TOKEN)).sum())
            if entries is not None:
                self._tally.entries_verified += entries.skipped
                self._tally.token_entries += entries.skipped_tokens
        self._start_lineages(group_index, lane, write_plan)

    def _proposed(
        self, lane: Lane, slots: Ints, plan: VerifyPlan, count: int, entries: Entries | None
    ) -> NDArray[np.bool_] | None:
        """Entries of an inner draft step that hold what an earlier inner step proposed.

        They stand past the committed length; their tokens may be rejected later, and are no error.
        """
        forward = self.forward
        if lane.proposal is None or forward is None or not forward.is_draft:
            return None
        if not forward.mode.is_decode_or_idle:
            return None
        if entries is None:
            committed = np.repeat(forward.seq_lens, forward.prefix)
        else:
            committed = forward.seq_lens[entries.batch_rows]
        positions = plan.verify_expected_positions[:count].cpu().numpy()
        proposed: NDArray[np.bool_] = lane.proposal[slots] & (positions >= committed)
        return proposed

    def _slot_zero_reason(self, lane: Lane) -> str:
        if self._partial_table:
            return UNMAPPED
        return EVICTED if lane.kind is PoolKind.SWA else PADDING_SLOT_READ

    def _skip(self, reason: str, count: int) -> None:
        if self.active:
            self._tally.skip(reason, count)

    def _cannot_tell(self, lane: Lane, slots: Ints) -> None:
        lane.cannot_tell(slots)
        if lane.kind is PoolKind.FULL:
            self.untold.update(slots.tolist())

    def _start_lineages(self, group_index: int, lane: Lane, write_plan: WritePlan) -> None:
        """Let rows that follow unknown content begin a chain of their own."""
        rows = int(write_plan.write_num_valid_reqs.item())
        seeds = write_plan.write_seed_slot_indices[:rows]
        host_seeds = seeds.cpu().numpy()
        unknown = np.zeros(rows, dtype=np.bool_)
        if self._partial_table:
            unknown |= host_seeds == 0
        if lane.unknown is not None:
            unknown |= (host_seeds > 0) & lane.unknown[np.maximum(host_seeds, 0)]
        fresh = [lane.new_lineage() for _ in range(int(unknown.sum()))]
        if lane.lineage is None:
            return
        lineage = np.where(host_seeds > 0, lane.lineage[np.maximum(host_seeds, 0)], 0)
        lineage[unknown] = fresh
        seeds[_mask(unknown, seeds)] = -1
        self._row_lineage[group_index] = lineage

    def before_verify(self, endpoint: Endpoint, plan: VerifyPlan) -> None:
        self._index.zero_()

    def after_verify(self, endpoint: Endpoint, plan: VerifyPlan) -> None:
        count = int(self._index.item())
        self.sound &= not count
        entries = None
        if endpoint.group_index == 0 and not endpoint.tag.is_sweep:
            entries = self.entries
        if entries is not None:
            # What upstream would have looked at.
            self._state.slot_run_counters[endpoint.tag] += entries.skipped
        if not count or not self.active:
            if count and entries is not None:
                entries.again[:] = True
            return
        found = explain.explain_verify(
            endpoint,
            plan,
            backend=self._backend,
            tokens_compared=not endpoint.tag.is_sweep,
        )
        if entries is not None:
            entries.again[found.index] = True
            found.index = entries.index[found.index]
        self._add(endpoint, [found], count)

    def before_write(
        self,
        endpoint: Endpoint,
        plan: WritePlan,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        out_cache_loc: torch.Tensor,
        expected_tokens: torch.Tensor | None,
        expected_positions: torch.Tensor | None,
    ) -> None:
        self._index.zero_()
        self._seeds = SeedRows.of(endpoint, plan) if self.active else None
        half = "v" if endpoint.tag.is_v_half else "k"
        if endpoint.tag.is_tail:
            slots = self.unhashed.get((endpoint.group_index, half))
            if slots is not None:
                self._lanes[endpoint.group_index].kv[half].forget(slots)
        elif half == "k":
            self._locs[endpoint.group_index] = out_cache_loc.cpu().numpy()

    def after_write(
        self,
        endpoint: Endpoint,
        plan: WritePlan,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        out_cache_loc: torch.Tensor,
        expected_tokens: torch.Tensor | None,
        expected_positions: torch.Tensor | None,
    ) -> None:
        count = int(self._index.item())
        self.sound &= not count
        if not count or self._seeds is None:
            return
        found = explain.explain_write(
            plan,
            self._seeds,
            input_ids=input_ids.cpu().numpy(),
            positions=positions.cpu().numpy(),
            out_cache_loc=out_cache_loc.cpu().numpy(),
            expected_tokens=None if expected_tokens is None else expected_tokens.cpu().numpy(),
            expected_positions=(
                None if expected_positions is None else expected_positions.cpu().numpy()
            ),
            chain_assert=bool(self._state.enable_chain_position_assert.item()),
        )
        self._add(endpoint, found, count)

    def _add(self, endpoint: Endpoint, found: list[LaunchFindings], count: int) -> None:
        explained = sum(len(part.index) for part in found)
        if explained != count:
            raise KvCanaryError(
                f"launch {endpoint.tag.name} counted {count} violations, but {explained} entries "
                f"fail on the host; the {self._backend.name} backend and the specification "
                "disagree",
                hint="rerun with --backend reference, and report this trace",
            )
        self._merger.add(endpoint, found, count)

    # The driver's side.

    def reads(self) -> Reads:
        """What the forward under way reads."""
        forward, entries = self.forward, self.entries
        assert forward is not None
        if entries is not None:
            return Reads(entries.slots, entries.batch_rows, entries.positions, entries.again)
        rows = np.repeat(np.arange(len(forward.rows), dtype=np.int64), forward.prefix)
        starts = np.cumsum(forward.prefix) - forward.prefix
        positions = np.arange(len(rows), dtype=np.int64) - starts[rows]
        return Reads(self.plan_slots, rows, positions, np.zeros(len(rows), dtype=np.bool_))

    def written_slots(self, group_index: int) -> Ints:
        """Physical slots that the forward under way writes, without those that it skips."""
        locs = self._locs[group_index][: self._tokens_in_use()]
        written: Ints = locs[locs >= 0]
        return written

    def all_slots(self, group_index: int) -> Ints:
        """Physical slots whose bytes the forward writes, those of padding rows too."""
        return self._locs[group_index]

    def note_lineage(self, group_index: int) -> None:
        """Give the rows that the forward wrote the lineage of what they follow."""
        lineage = self._row_lineage.get(group_index)
        lane = self._lanes[group_index]
        if lineage is None or lane.lineage is None or self.forward is None:
            return
        slots = self.token_slots(group_index)
        written = slots >= 0
        lane.lineage[slots[written]] = lineage[self.forward.token_row[written]]

    def token_slots(self, group_index: int) -> Ints:
        """Physical slot of each token that a row writes, negative = not written."""
        slots: Ints = self._locs[group_index][: self._tokens_in_use()]
        return slots

    def _tokens_in_use(self) -> int:
        return 0 if self.forward is None else len(self.forward.token_row)

    def emit(self) -> list[ViolationChunk]:
        """Turn what was collected into violations.

        Returns:
            All of them; the table gets those that the ring kept.
        """
        forward = self.forward
        if forward is not None and forward.tree is not None and self.active:
            groups = range(len(self._lanes))
            self._merger.add_tree(forward, [self.token_slots(group) for group in groups])
        return self._merger.emit(forward, self.sweep, self.expected)


def _mask(mask: NDArray[np.bool_], like: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.from_numpy(mask).to(like.device)
