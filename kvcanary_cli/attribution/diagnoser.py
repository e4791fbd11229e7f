"""Watches a replay and names for every damage the victim, the culprit and the cause event.

Violations are explained when they happen, with the ledger as it
then is: a forward's own writes are entered only after its reads have been judged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvcanary_cli.abi.constants import FailReason, PoolKind
from kvcanary_cli.attribution.book import ONE_STEP, FindingBook
from kvcanary_cli.attribution.chunk_ends import is_chunk_end
from kvcanary_cli.attribution.compiled_ledger import CompiledLedger
from kvcanary_cli.attribution.consequences import fold_consequences
from kvcanary_cli.attribution.copy_faults import CopyFaults
from kvcanary_cli.attribution.damage import Cause, Damage
from kvcanary_cli.attribution.follow import Follower
from kvcanary_cli.attribution.late_cells import LateCells
from kvcanary_cli.attribution.ledger import FREE, NOBODY, TREE
from kvcanary_cli.attribution.moved_damage import MovedDamage
from kvcanary_cli.attribution.namespaces import Namespaces
from kvcanary_cli.attribution.own_frees import OwnFreeReads
from kvcanary_cli.attribution.positions import check_positions
from kvcanary_cli.attribution.ranks import RankRecord
from kvcanary_cli.attribution.read_roots import ReadRoots
from kvcanary_cli.attribution.rules import Classifier
from kvcanary_cli.attribution.rules.index import CELL_NOT_MAPPED
from kvcanary_cli.attribution.sidecars import Sidecars
from kvcanary_cli.attribution.snapshot import Snapshots
from kvcanary_cli.attribution.transfer_races import TransferRaces
from kvcanary_cli.attribution.unread import explain_unread
from kvcanary_cli.replay.chains import slot_hash
from kvcanary_cli.replay.lanes import get_rows
from kvcanary_cli.replay.violations import CHAIN_POSITION, INPUT_ASSERT, VERIFY, ViolationChunk
from kvcanary_cli.replay.watcher import Reads

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvcanary_cli.attribution.result import Finding
    from kvcanary_cli.replay.driver import Replay
    from kvcanary_cli.replay.forwards import Forward
    from kvcanary_cli.trace.header import TraceHeader
    from kvcanary_cli.trace.notes import TraceNotes
    from kvcanary_cli.trace.segment import Segment

    Ints = NDArray[np.int64]

_KV_ONLY = int(FailReason.VERIFY_REAL_KV_HASH_MISMATCH)
_KV_AND_CHAIN = _KV_ONLY | int(FailReason.VERIFY_CHAIN_HASH_MISMATCH)


class Diagnoser:
    """Watches one replay (``replay.watcher.Watcher``)."""

    def __init__(self, header: TraceHeader, notes: TraceNotes, *, ranks: bool = True) -> None:
        self.follower = Follower(header)
        self.record = RankRecord.of(header, kept=ranks)
        self.replay: Replay | None = None
        self.ends_in_gap = False
        follower = self.follower
        has_swa = bool(header.pool.swa_slots)
        self.book = FindingBook(follower.names, follower.context.ended, notes, has_swa=has_swa)
        self._classifier = Classifier(
            follower.rules.state,
            follower.context,
            follower.names,
            header.records,
            self._is_cached_chain,
        )
        self._sidecars = Sidecars(follower)
        self._namespaces = Namespaces(follower)
        self._snapshots = Snapshots(follower)
        self._races = TransferRaces(follower, self._snapshots)
        self._moved_damage = MovedDamage(follower, self._classifier.taken)
        self._own_frees = OwnFreeReads(follower, self._snapshots)
        self._late_cells = LateCells(follower, self._snapshots)
        self._copy_faults = CopyFaults(follower, self._classifier.copied)
        self._codes: NDArray[np.int32] = np.empty(0, dtype=np.int32)
        self._foreign: Ints = np.empty(0, dtype=np.int64)
        self._lanes: list[Ints] = []
        # Events after the first, up to the second, lie before or in a step to check.
        self._checked_events: tuple[int | None, int | None] = (None, None)
        self._last_forward: int | None = None
        self._row_writing = np.full(header.pool.max_slot + 1, NOBODY, dtype=np.int64)
        # Entries of what the forward reads that another of its rows writes.
        self._overwritten: Ints = self._foreign
        self._read = Reads.none()

    @property
    def findings(self) -> list[Finding]:
        return self.book.findings

    # Watcher.

    def event(self, segment: Segment, k: int, kind: str, row: int) -> None:
        self.book.event_now = int(segment.index[k])
        if self.follower.pool is None and self.replay is not None:
            self.follower.pool = self.replay.pool
        if kind == "sidecar_hash":
            self._sidecars.event(segment, k, row, self.book.add)
            step = segment.tables[kind].get_int("step", row)
            self._snapshots.take(self.book.findings, event=int(segment.index[k]), step=step)
        if self.record.kept:
            self.record.event(segment, k, kind, row)
        self._transfer(segment, k, kind, row)
        self.follower.event(segment, k, kind, row)
        if kind == "copy":
            self._copy_faults.landed(int(segment.index[k]))
        self._snapshots.note_broken_rules()

    def _transfer(self, segment: Segment, k: int, kind: str, row: int) -> None:
        """Look at a copy, or at the window of one, with the ledger as it is before it."""
        event, races = int(segment.index[k]), self._races
        if kind == "copy":
            self._moved_damage.copy(segment, row, event, races.copy(segment, row, event))
            self._sidecars.copied(segment, row)
        elif kind == "transfer_begin":
            races.begin(segment, row, event)
        elif kind in ("transfer_end", "transfer_fail"):
            races.end(segment, row, event, failed=kind == "transfer_fail")
        elif kind == "match":
            races.match(segment, row, event)

    @property
    def watches_matches(self) -> bool:
        """Whether a match may tell more than whose slots it serves."""
        return self._races.any

    def ledger(self) -> CompiledLedger | None:
        """What compiled code keeps of the ledger; ranks are compared by every event."""
        return None if self.record.kept else CompiledLedger(self)

    def begun(self, forward: Forward, reads: Reads, written: list[Ints]) -> None:
        follower = self.follower
        self.book.event_now = forward.event
        if follower.pool is None and self.replay is not None:
            follower.pool = self.replay.pool
        if self.replay is not None:
            self._keep_reads(forward.worker)
        self._note_range(forward)
        self._codes = follower.req_codes(forward)
        if self.record.kept:
            self.record.forward(forward)
        for code, row in zip(self._codes.tolist(), forward.rows.tolist(), strict=True):
            if row:
                follower.context.row(row).run(code, forward.event)
        read_slots, reader_rows = reads.slots, reads.batch_rows
        others = self._not_own_writes(forward, read_slots, reader_rows, written[0])
        broken = follower.reads(forward, read_slots[others], reader_rows[others], self._codes)
        if broken.any():
            self._late_cells.note(forward, reads, np.flatnonzero(others)[broken], self._codes)
        self._own_frees.note(forward, reads, self._codes)
        self._namespaces.check(forward, read_slots, reader_rows, self._codes, self.book.add)
        self._read_again(forward, reads, np.flatnonzero(others)[broken])
        check_positions(
            forward,
            written[0],
            self._codes,
            self._classifier.inputs,
            follower.names,
            self.book.add,
        )
        self._foreign = follower.write_rules(forward, written[0], self._codes)
        self._lanes, self._read = written, reads
        self._snapshots.note_broken_rules(forward)

    def _keep_reads(self, worker: str) -> None:
        """Let incremental verification keep the events of reads that it leaves out."""
        assert self.replay is not None
        lane = self.replay.pool.lanes.get((worker, PoolKind.FULL))
        known = None if lane is None else lane.known
        writes = self.follower.lane(worker, "FULL")
        if known is not None and writes.settle is None:
            known.keep_reads(writes.reads)
            writes.settle = known.settle

    def _read_again(self, forward: Forward, reads: Reads, broken: Ints) -> None:
        """Say what must be told of each time it is read: what is not all right, or may change."""
        if forward.namespaces is not None:
            reads.again[:] = True
        reads.again[broken] = True
        reads.again[self.follower.rules.state.owner[reads.slots] == FREE] = True

    def _note_range(self, forward: Forward) -> None:
        if self.replay is None or self.replay.options.steps is None:
            return
        if self.replay.options.checks_step(forward.step):
            first = self._checked_events[0]
            before = forward.event if self._last_forward is None else self._last_forward
            self._checked_events = (before if first is None else first, forward.event)
        elif self._checked_events[0] is None:
            # Nothing to check yet: no event has counted so far.
            self._checked_events = (None, None)
        self._last_forward = forward.event

    def _not_own_writes(
        self, forward: Forward, read_slots: Ints, reader_rows: Ints, written: Ints
    ) -> NDArray[np.bool_]:
        """Which reads are prefix reads: a row's own out_cache_loc is none."""
        kept = written >= 0
        self._row_writing[written[kept]] = forward.token_row[kept]
        writing = self._row_writing[read_slots]
        others: NDArray[np.bool_] = writing != reader_rows
        self._overwritten = np.flatnonzero(others & (writing != NOBODY) & (read_slots != 0))
        self._row_writing[written[kept]] = NOBODY
        return others

    def finished(self, forward: Forward, found: list[ViolationChunk]) -> None:
        for chunk in found:
            self._explain(chunk, forward)
        self._snapshots.take(self.book.findings, found, forward=forward)
        writes = self.follower.lane(forward.worker, "FULL")
        if not found:
            writes.reads[self._read.slots] = forward.event
        lut = None if self.replay is None else self.replay.pool.lut
        self.follower.written(forward, self._lanes, self._codes, self._foreign, lut)
        self._explain_overwritten(forward, found)
        self._sidecars.written(forward, self._lanes)

    def _explain_overwritten(self, forward: Forward, found: list[ViolationChunk]) -> None:
        """One row of the batch wrote what another one of it reads: the model saw the new content.

        Canary rows alone show that at the next read, if there is one.
        """
        if self.replay is None or not self.replay.options.checks_step(forward.step):
            return
        if not len(self._overwritten):
            return
        slots, rows = self._read.slots, self._read.batch_rows
        shown = {int(slot) for chunk in found for slot in chunk.columns["slot"]}
        writes = self.follower.lane(forward.worker, "FULL")
        for k in self._overwritten.tolist():
            slot, row = int(slots[k]), int(rows[k])
            key = (forward.worker, "FULL", slot, int(writes.came(slots[k : k + 1])[0]))
            if key in self.book.known or slot in shown:
                continue
            victim, position = int(self._codes[row]), int(self._read.positions[k])
            damage = Damage(
                worker=forward.worker,
                pool_kind="FULL",
                victim=victim,
                row=int(forward.rows[row]),
                position=position,
                slot=slot,
                stored_position=int(writes.position[slot]),
                stored_token=NOBODY,
                expected_token=None,
                kv_only=False,
                step=forward.step,
                event=forward.event,
                forward=forward,
                true_position=None,
                row_offset=0,
                writes=writes,
            )
            finding = self.book.known[key] = self.book.of_damage(
                self._classifier.cause(damage), damage
            )
            name = self.follower.names.name(victim)
            self.book.enter(finding, slot, position, victim, name, forward.step)
            finding.violations -= 1

    def swept(self, step: int, event: int, found: list[ViolationChunk]) -> None:
        for chunk in found:
            self._explain(chunk, None)
        self._snapshots.take(self.book.findings, found, event=event, step=step)

    def ended(self) -> None:
        if not self.ends_in_gap:
            # What was lost there may have given the slots back.
            self.follower.leaks()
        self._races.explain(self.book)
        self.book.tell_awaited()
        roots = ReadRoots(self.follower, self._late_cells)
        explain_unread(
            self.follower.rules, self.book.findings, self.book.add, roots, self._copy_faults
        )
        self._own_frees.explain(self.book.findings, self.book.add)
        self._snapshots.take(self.book.findings)
        fold_consequences(self.book.findings)
        self.book.findings.sort(
            key=lambda f: (f.first_bad_step is None, f.first_bad_step or 0, int(f.id[1:]))
        )
        for number, finding in enumerate(self.book.findings, 1):
            finding.id = f"F{number}"

    def is_checked_event(self, event: int) -> bool:
        """Whether an event outside forwards belongs to the steps to check."""
        first, last = self._checked_events
        return first is None or (event > first and (last is None or event <= last))

    # From violations to findings.

    def _explain(self, chunk: ViolationChunk, forward: Forward | None) -> None:
        if chunk.event != self.book.event:
            self.book.event = chunk.event
            self.book.in_full.clear()
        seam = chunk.columns["seam"]
        for k in np.flatnonzero(~seam).tolist():
            self._explain_primary(chunk, k, forward)
        for k in np.flatnonzero(seam).tolist():
            self._explain_seam(chunk, k, forward)

    def _explain_primary(self, chunk: ViolationChunk, k: int, forward: Forward | None) -> None:
        slot = int(chunk.columns["slot"][k])
        position = int(chunk.columns["expected_position"][k])
        victim, reader = self._victim(chunk, k)
        place = (victim, position, chunk.event)
        both = self.book.in_full.get(place) if chunk.pool_kind == "SWA" else None
        if both is not None:
            # The full lane failed here too: the SWA lane only follows it.
            both.violations += 1
            self.book.by_slot[(*self._lane(chunk), slot)] = both
            return
        if chunk.check == INPUT_ASSERT:
            self._wrong_input(chunk, k, victim, forward)
            return
        if chunk.check == CHAIN_POSITION and forward is not None:
            known = self._known_before(chunk, k, forward)
            if known is not None:
                known.violations += 1
                return
            position = self._true_position_of(forward, slot, chunk)
        damage = self._damage(chunk, k, forward, slot, position, victim)
        padded = int(damage.writes.pad_event[slot])
        key = (*self._lane(chunk), slot, max(damage.came_event(), padded))
        finding = self.book.known.get(key)
        if finding is None:
            finding = self.book.of_damage(self._cause(damage, chunk), damage)
            self.book.known[key] = finding
        if finding.pool_kind != chunk.pool_kind:
            finding.violations += 1
            self.book.by_slot[(*self._lane(chunk), slot)] = finding
            return
        if self.book.has_swa:
            self.book.in_full[place] = finding
        self.book.enter(finding, slot, position, victim, reader, chunk.step)

    def _known_before(self, chunk: ViolationChunk, k: int, forward: Forward) -> Finding | None:
        """The finding that a wrong chain value of what a forward writes goes back to.

        Its token may be wrong, too, or what it follows was damaged; the write itself is neither.
        """
        columns = chunk.columns
        fed = self.book.known.get((*self._lane(chunk), int(columns["slot"][k]), chunk.event))
        if fed is not None or self._row_offset(forward, int(columns["row"][k])):
            return fed
        return self.book.by_slot.get((*self._lane(chunk), int(columns["prev_slot"][k])))

    def _victim(self, chunk: ViolationChunk, k: int) -> tuple[int, str | None]:
        assert self.replay is not None
        code = int(chunk.columns["req"][k])
        if code < 0:
            return TREE, None
        name = self.replay.violations.requests[code]
        return self.follower.names.code(name), name

    def _lane(self, chunk: ViolationChunk) -> tuple[str, str]:
        return chunk.worker, chunk.pool_kind

    def _true_position_of(self, forward: Forward, slot: int, chunk: ViolationChunk) -> int:
        lane = 1 if chunk.pool_kind == "SWA" else 0
        at = np.flatnonzero(self._lanes[lane] == slot)
        return int(forward.true_positions[at[-1]]) if len(at) else -1

    def _damage(
        self,
        chunk: ViolationChunk,
        k: int,
        forward: Forward | None,
        slot: int,
        position: int,
        victim: int,
    ) -> Damage:
        columns = chunk.columns
        row = int(columns["row"][k])
        true_position = None
        if forward is not None and chunk.check != VERIFY:
            true_position = position
        elif forward is not None:
            true_position = self._row_end(forward, row)
        row_offset = 0 if forward is None else self._row_offset(forward, row)
        checked = bool(columns["token_checked"][k])
        return Damage(
            worker=chunk.worker,
            pool_kind=chunk.pool_kind,
            victim=victim,
            row=row,
            position=position,
            slot=slot,
            stored_position=int(columns["position"][k]),
            stored_token=int(columns["stored_token"][k]),
            expected_token=int(columns["expected_token"][k]) if checked else None,
            kv_only=self._kv_only(chunk, k),
            seam=int(chunk.bits[k]) == _KV_AND_CHAIN,
            step=chunk.step,
            event=chunk.event,
            forward=forward,
            true_position=true_position,
            row_offset=row_offset,
            writes=self.follower.lane(*self._lane(chunk)),
            full_slot=self._full_slot(chunk, forward, row, position),
            full_writes=self.follower.lane(chunk.worker, "FULL"),
            mapped_slot=self._cell(None, row, position),
        )

    def _kv_only(self, chunk: ViolationChunk, k: int) -> bool:
        """Whether only the bytes changed: a predecessor that was replaced since is no change."""
        bits = int(chunk.bits[k])
        if bits != _KV_AND_CHAIN:
            return bits == _KV_ONLY
        slot, prev = int(chunk.columns["slot"][k]), int(chunk.columns["prev_slot"][k])
        came = self.follower.lane(*self._lane(chunk)).came(np.array([slot, max(prev, 0)]))
        return prev > 0 and bool(came[1] > came[0])

    def _full_slot(
        self, chunk: ViolationChunk, forward: Forward | None, row: int, position: int
    ) -> int:
        """What the reader's row names at ``position``; 0 in the full pool, or if not known."""
        return self._cell(forward, row, position) if chunk.pool_kind == "SWA" else 0

    def _cell(self, forward: Forward | None, row: int, position: int) -> int:
        """What a row names at ``position`` for a forward; 0 if that is not known."""
        if row <= 0 or position < 0 or self.replay is None:
            return 0
        as_read = [] if forward is None else forward.row_as_read.get(row, [])
        if position < len(as_read):
            return int(as_read[position])
        table = self.replay.pool.table
        return int(table[row, position]) if position < table.shape[1] else 0

    @staticmethod
    def _row_end(forward: Forward, row: int) -> int | None:
        """First position that the row writes by its lengths."""
        batch_row = np.flatnonzero(forward.rows == row)
        if not len(batch_row):
            return None
        mine = forward.true_positions[forward.token_row == batch_row[0]]
        return int(mine.min()) if len(mine) else None

    @staticmethod
    def _row_offset(forward: Forward, row: int) -> int:
        """How far the positions that the row writes are off its lengths."""
        batch_row = np.flatnonzero(forward.rows == row)
        if not len(batch_row):
            return 0
        mine = np.flatnonzero(forward.token_row == batch_row[0])
        if not len(mine):
            return 0
        return int(forward.positions[mine[0]] - forward.true_positions[mine[0]])

    def _cause(self, damage: Damage, chunk: ViolationChunk) -> Cause:
        """The rules' conclusion; a slot that this very forward overwrote is judged as rewritten."""
        if chunk.check == VERIFY and damage.forward is not None and damage.kv_only:
            index = 1 if damage.pool_kind == "SWA" else 0
            hit = np.flatnonzero(self._lanes[index] == damage.slot)
            if len(hit):
                self._enter_early(damage.forward)
                return self._classifier.cause(damage)
        return self._classifier.cause(damage)

    def _enter_early(self, forward: Forward) -> None:
        lut = None if self.replay is None else self.replay.pool.lut
        self.follower.written(forward, self._lanes, self._codes, self._foreign, lut)

    def _wrong_input(
        self, chunk: ViolationChunk, k: int, victim: int, forward: Forward | None
    ) -> None:
        columns = chunk.columns
        slot, token = int(columns["slot"][k]), int(columns["stored_token"][k])
        assert self.replay is not None
        cause = self._classifier.inputs.wrong_token_fed(
            victim,
            token,
            chunk.event,
            chunk.step,
            ends_chunk=is_chunk_end(chunk, k, forward, self.replay.pool.histories),
        )
        name = self.follower.names.name(victim)
        finding = self.book.by_cause.get(self.book.cause_key(cause, chunk.worker, chunk.pool_kind))
        if finding is None:
            finding = self.book.new(cause, chunk.worker, chunk.pool_kind, name, chunk.step)
        self.book.known[(*self._lane(chunk), slot, chunk.event)] = finding
        self.book.by_slot[(*self._lane(chunk), slot)] = finding
        if finding.pool_kind != chunk.pool_kind:
            finding.violations += 1
            return
        position = int(columns["position"][k])
        self.book.enter(finding, slot, position, victim, name, chunk.step)

    def _explain_seam(self, chunk: ViolationChunk, k: int, forward: Forward | None) -> None:
        """A seam belongs to the damage before it; without one, the slot before is the damage."""
        columns = chunk.columns
        slot, prev = int(columns["slot"][k]), int(columns["prev_slot"][k])
        victim, reader = self._victim(chunk, k)
        position = int(columns["expected_position"][k]) - 1
        if chunk.check == CHAIN_POSITION and forward is not None:
            position = self._true_position_of(forward, slot, chunk) - 1
            # Where a position was left out, the chain skips it; the row still names its slot.
            cell = self._cell(forward, int(columns["row"][k]), position)
            if (
                cell > 0
                and chunk.pool_kind == "FULL"
                and (*self._lane(chunk), prev) not in (self.book.by_slot)
            ):
                prev = cell
        finding = self.book.by_slot.get((*self._lane(chunk), prev))
        if finding is None and chunk.pool_kind == "SWA":
            finding = self.book.in_full.get(
                (victim, position, chunk.event)
            ) or self.book.in_full.get((victim, position + 1, chunk.event))
        if finding is None:
            finding = self._fed_wrongly(chunk, (slot, prev))
        if finding is None:
            place = prev if prev > 0 else slot
            unmapped = prev <= 0 and self._is_unmapped(chunk, k, forward, position)
            if unmapped:
                place = self._stranded(chunk, victim, position) or slot
            damage = self._damage(chunk, k, forward, place, position, victim)
            damage.expected_token, damage.unmapped = None, unmapped
            if forward is not None and (self._lanes[chunk.pool_kind == "SWA"] == place).any():
                self._enter_early(forward)
            finding = self.book.of_damage(self._classifier.cause(damage), damage)
            if finding.pool_kind == chunk.pool_kind:
                self.book.enter(finding, place, position, victim, reader, chunk.step)
                finding.violations -= 1
        finding.violations += 1
        if self.book.has_swa and chunk.pool_kind == "FULL":
            self.book.in_full[victim, position + 1, chunk.event] = finding
        if finding.pool_kind != chunk.pool_kind or finding.subtype == CELL_NOT_MAPPED:
            # Behind a cell without a slot nothing was replaced.
            return
        if finding.cls in ONE_STEP and chunk.step != finding.first_bad_step:
            return
        if slot not in finding.slots:
            finding.seam_slots.add(slot)

    def _is_unmapped(
        self, chunk: ViolationChunk, k: int, forward: Forward | None, position: int
    ) -> bool:
        """Whether the row of a forward names no slot at a position of its prefix."""
        row = int(chunk.columns["row"][k])
        if forward is None or chunk.pool_kind != "FULL" or row <= 0 or position < 0:
            return False
        return self._cell(forward, row, position) == 0

    def _stranded(self, chunk: ViolationChunk, victim: int, position: int) -> int:
        """Slot that ``victim`` wrote for a position and still owns; 0 = there is none."""
        writes, state = self.follower.lane(*self._lane(chunk)), self.follower.rules.state
        mine = (writes.req == victim) & (writes.true_position == position)
        at = np.flatnonzero(mine[: len(state.owner)] & (state.owner == victim))
        return int(at[np.argmax(writes.event[at])]) if len(at) else 0

    def _fed_wrongly(self, chunk: ViolationChunk, slots: tuple[int, int]) -> Finding | None:
        """The finding of a wrong input that the chain of one of ``slots`` goes back to.

        Rows that were written behind a wrong token carry its chain; beside the cache's rows for
        the same tokens, to which cells were set later, they look replaced.
        """
        writes = self.follower.lane(*self._lane(chunk))
        for finding in self.book.findings:
            if finding.cls in ONE_STEP and finding.worker == chunk.worker:
                code = self.follower.names.code(finding.culprit.req or "")
                for slot in slots:
                    mine = slot > 0 and int(writes.req[slot]) == code
                    if mine and int(writes.event[slot]) == finding.corrupting_event:
                        return finding
        return None

    def _is_cached_chain(self, slot: int) -> bool:
        """Whether the prefix cache holds the chain that ``slot`` held when it was freed."""
        chain = int(self.follower.free_chain[slot])
        if self.replay is None or chain == 0:
            return False
        lane = self.replay.pool.lanes.get(("target", PoolKind.FULL))
        cached = np.flatnonzero(self.follower.rules.state.owner == TREE)
        if lane is None or not len(cached):
            return False
        return bool((slot_hash(get_rows(lane.group.k_head, cached), cached) == chain).any())
