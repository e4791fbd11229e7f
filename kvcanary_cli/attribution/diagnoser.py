"""Watches a replay and names for every damage the victim, the culprit and the cause event.

Violations are explained when they happen: a forward's own writes are entered only after its reads
have been judged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvcanary_cli.abi.constants import PoolKind
from kvcanary_cli.attribution.book import FindingBook
from kvcanary_cli.attribution.checked_events import CheckedEvents
from kvcanary_cli.attribution.compiled_ledger import CompiledLedger
from kvcanary_cli.attribution.consequences import fold_consequences
from kvcanary_cli.attribution.copy_faults import CopyFaults
from kvcanary_cli.attribution.explainer import Explainer
from kvcanary_cli.attribution.follow import Follower
from kvcanary_cli.attribution.late_cells import LateCells
from kvcanary_cli.attribution.ledger import FREE
from kvcanary_cli.attribution.moved_damage import MovedDamage
from kvcanary_cli.attribution.namespaces import Namespaces
from kvcanary_cli.attribution.note_cargo import CargoNotes
from kvcanary_cli.attribution.overwritten import Overwritten
from kvcanary_cli.attribution.own_frees import OwnFreeReads
from kvcanary_cli.attribution.padded_slots import PaddedSlots
from kvcanary_cli.attribution.positions import check_positions
from kvcanary_cli.attribution.ranks import RankRecord
from kvcanary_cli.attribution.read_roots import ReadRoots
from kvcanary_cli.attribution.rules import Classifier
from kvcanary_cli.attribution.sidecars import Sidecars
from kvcanary_cli.attribution.snapshot import Snapshots
from kvcanary_cli.attribution.stored_keys import StoredKeys
from kvcanary_cli.attribution.transfer_races import TransferRaces
from kvcanary_cli.attribution.under_way import UnderWay
from kvcanary_cli.attribution.unread import explain_unread

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvcanary_cli.attribution.result import Finding
    from kvcanary_cli.replay.driver import Replay
    from kvcanary_cli.replay.forwards import Forward
    from kvcanary_cli.replay.violations import ViolationChunk
    from kvcanary_cli.replay.watcher import Reads
    from kvcanary_cli.trace.header import TraceHeader
    from kvcanary_cli.trace.notes import TraceNotes
    from kvcanary_cli.trace.segment import Segment

    Ints = NDArray[np.int64]


class Diagnoser:
    """Watches one replay (``replay.watcher.Watcher``).

    Attributes:
        kept_by_transfers: Slots of requests that had ended, and a transfer of them had not.
    """

    def __init__(self, header: TraceHeader, notes: TraceNotes, *, ranks: bool = True) -> None:
        self.follower = Follower(header)
        self.record = RankRecord.of(header, kept=ranks)
        self._now = UnderWay(self.follower)
        self.ends_in_gap = False
        self.kept_by_transfers = 0
        follower = self.follower
        has_swa = bool(header.pool.swa_slots)
        self.book = FindingBook(
            follower.names, follower.context.ended, notes, header.records, has_swa=has_swa
        )
        self._classifier = Classifier(
            follower.rules.state,
            follower.context,
            follower.names,
            header.records,
            follower.is_cached_chain,
            self._now,
        )
        self._explainer = Explainer(self._now, self.book, self._classifier)
        self._sidecars = Sidecars(follower)
        self._namespaces = Namespaces(follower)
        self._snapshots = Snapshots(follower)
        self._races = TransferRaces(follower, self._snapshots)
        self._cargo = CargoNotes(follower)
        self._stored_keys = StoredKeys(follower, self._snapshots)
        self._moved_damage = MovedDamage(follower, self._classifier.taken)
        self._own_frees = OwnFreeReads(follower, self._snapshots)
        self._late_cells = LateCells(follower, self._snapshots)
        self._padded, self._has_kv = PaddedSlots(follower), "kv_hash" in header.records
        self._copy_faults = CopyFaults(
            follower, self._classifier.copied, self._classifier.misdirected
        )
        slots = header.pool.max_slot + 1
        self._overwritten = Overwritten(self._now, self.book, self._classifier, slots)
        self.checked = CheckedEvents()
        # Whether all so far may be the state that a cut begins with.
        self._in_state = "cut" in header.raw

    @property
    def replay(self) -> Replay | None:
        """What is watched."""
        return self._now.replay

    @replay.setter
    def replay(self, replay: Replay | None) -> None:
        self._now.replay = replay

    @property
    def findings(self) -> list[Finding]:
        return self.book.findings

    # Watcher.

    def event(self, segment: Segment, k: int, kind: str, row: int) -> None:
        self.book.event_now = int(segment.index[k])
        self.follower.begins(segment, kind, row, int(segment.index[k]))
        if self.follower.pool is None and self.replay is not None:
            self.follower.pool = self.replay.pool
        if kind == "sidecar_hash":
            self._sidecars.event(segment, k, row, self.book)
            step = segment.tables[kind].get_int("step", row)
            self._snapshots.take(self.book.findings, event=int(segment.index[k]), step=step)
        if self.record.kept:
            self.record.event(segment, k, kind, row)
        self._transfer(segment, k, kind, row)
        self.follower.event(segment, k, kind, row)
        if kind == "transfer_begin":
            self._stored_keys.begin(segment, row, int(segment.index[k]))
        if kind == "copy":
            self._copy_faults.landed(int(segment.index[k]))
        self._snapshots.note_broken_rules()

    def _transfer(self, segment: Segment, k: int, kind: str, row: int) -> None:
        """Look at a copy, or at the window of one, with the ledger as it is before it."""
        event, races = int(segment.index[k]), self._races
        if kind == "copy":
            self._cargo.copy(segment, row, event)
            self._moved_damage.copy(segment, row, event, races.copy(segment, row, event))
            self._stored_keys.copy(segment, row, event)
            self._sidecars.copied(segment, row, event)
        elif kind == "transfer_begin":
            races.begin(segment, row, event)
        elif kind in ("transfer_end", "transfer_fail"):
            races.end(segment, row, event, failed=kind == "transfer_fail")
            self._stored_keys.end(segment, row, event, failed=kind == "transfer_fail")
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
        if self._in_state:
            self._in_state = False
            self.book.cut_ends(forward.event)
            self.checked.begin_at(forward.event)
        if follower.pool is None and self.replay is not None:
            follower.pool = self.replay.pool
        if self.replay is not None:
            self._keep_reads(forward.worker)
            steps = self.replay.options
            self.checked.note(forward.event, checked=steps.checks_step(forward.step))
        self._now.codes = follower.req_codes(forward)
        if self.record.kept:
            self.record.forward(forward)
        for code, row in zip(self._now.codes.tolist(), forward.rows.tolist(), strict=True):
            if row:
                follower.context.row(row).run(code, forward.event)
        read_slots, reader_rows = reads.slots, reads.batch_rows
        others = self._overwritten.others(forward, read_slots, reader_rows, written[0])
        broken = follower.reads(forward, read_slots[others], reader_rows[others], self._now.codes)
        if broken.any():
            entries = np.flatnonzero(others)[broken]
            self._late_cells.note(forward, reads, entries, self._now.codes)
            self._copy_faults.missed(forward, reads, entries, self._now.codes)
        self._own_frees.note(forward, reads, self._now.codes)
        if not self._has_kv:
            self._padded.note(forward, reads, self._now.codes)
        self._stored_keys.note(forward, reads, self._now.codes)
        if follower.pool is not None:
            self._sidecars.read(forward, self._now.codes, follower.pool)
        self._namespaces.check(forward, read_slots, reader_rows, self._now.codes, self.book)
        self._read_again(forward, reads, np.flatnonzero(others)[broken])
        check_positions(
            forward,
            written[0],
            self._now.codes,
            self._classifier.inputs,
            follower.names,
            self.book,
        )
        self._now.foreign = follower.write_rules(forward, written[0], self._now.codes)
        self._now.lanes, self._now.read = written, reads
        self._snapshots.note_broken_rules(forward)

    def _keep_reads(self, worker: str) -> None:
        """Keep the events of reads where the replay tells of what it leaves out or cannot check."""
        assert self.replay is not None
        lane = self.replay.pool.lanes.get((worker, PoolKind.FULL))
        known = None if lane is None else lane.known
        writes = self.follower.lane(worker, "FULL")
        if lane is None or writes.keeps_reads:
            return
        if known is None:
            writes.keep_reads_in(lane.records["read"], None)
            return
        if worker == "target":
            lane.move_records(self.follower.rules.state.records)
        writes.keep_reads_in(known.keep_reads(), known.settle)

    def _read_again(self, forward: Forward, reads: Reads, broken: Ints) -> None:
        """Say what must be told of each time it is read: what is not all right, or may change."""
        if forward.namespaces is not None:
            reads.again[:] = True
        reads.again[broken] = True
        reads.again[self.follower.rules.state.owner[reads.slots] == FREE] = True

    def finished(self, forward: Forward, found: list[ViolationChunk]) -> None:
        for chunk in found:
            self._explainer.explain(chunk, forward)
        self._snapshots.take(self.book.findings, found, forward=forward)
        writes = self.follower.lane(forward.worker, "FULL")
        assert self.replay is not None
        collector = self.replay.worker(forward.worker).collector
        if collector.sound and not found:
            slots = self._now.read.slots
            if collector.untold:
                slots = slots[~np.isin(slots, list(collector.untold))]
            writes.note_read(slots, forward.event)
        self._now.enter_writes(forward)
        self._overwritten.explain(forward, found)
        self._snapshots.take(self.book.findings, forward=forward)
        self._sidecars.written(forward, self._now.lanes)

    def swept(self, step: int, event: int, found: list[ViolationChunk]) -> None:
        for chunk in found:
            self._explainer.explain(chunk, None)
        self._snapshots.take(self.book.findings, found, event=event, step=step)

    def ended(self) -> None:
        if not self.ends_in_gap:
            # What was lost there may have given the slots back.
            self.kept_by_transfers = self.follower.leaks(self._races.slots_under_way())
        self._races.explain(self.book)
        self._stored_keys.explain(self.book)
        self.book.tell_awaited()
        roots = ReadRoots(self.follower, self._late_cells)
        explain_unread(self.follower.rules, self.book, roots, self._copy_faults)
        self._padded.explain(self.book.findings)
        self._own_frees.explain(self.book)
        self._namespaces.explain(self.book)
        self._snapshots.take(self.book.findings)
        fold_consequences(self.book.findings)
        self.book.findings.sort(
            key=lambda f: (f.first_bad_step is None, f.first_bad_step or 0, int(f.id[1:]))
        )
        for number, finding in enumerate(self.book.findings, 1):
            finding.id = f"F{number}"
