"""Replay: a trace's events in order through the pool model and the canary.

A forward is taken in two halves (``worker``): HEAD at its event, TAIL before the next event that is
no fingerprint taken after it. A sweep that the trace recorded runs when its last fingerprint has been read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvcanary_cli.backends import get_backend
from kvcanary_cli.capacities.checks import check_plan_rows
from kvcanary_cli.replay import copies, cut_restore
from kvcanary_cli.replay.capacity import NOT_CHECKED, for_manager
from kvcanary_cli.replay.collector import Tally
from kvcanary_cli.replay.coverage import blind_to
from kvcanary_cli.replay.cut_header import cut_info, within_cut
from kvcanary_cli.replay.forwards import Forward, read_forward
from kvcanary_cli.replay.options import Mode, RealData, ReplayOptions
from kvcanary_cli.replay.pool import PoolState
from kvcanary_cli.replay.result import (
    Capacities,
    CapacityFinding,
    Coverage,
    ReplayResult,
    TraceSummary,
    Verdict,
)
from kvcanary_cli.replay.violations import ViolationTable
from kvcanary_cli.replay.worker import WorkerCanary
from kvcanary_cli.trace.schema import TREE_OWNER

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from kvcanary_cli.replay.watcher import Watcher
    from kvcanary_cli.trace.header import TraceHeader
    from kvcanary_cli.trace.reader import TraceReader
    from kvcanary_cli.trace.segment import Segment

    Ints = NDArray[np.int64]

TARGET, DRAFT = "target", "draft"
UNSUPPORTED_MODES = frozenset({"PREBUILT"})
# Errors of the server that log mode records and raise mode stops at; B08 is only ever a warning.
_RAISED_CODES = frozenset({"KVC-B03", "KVC-B04", "KVC-B05", "KVC-C02"})


class _Stop(Exception):
    """``--mode raise`` met its first violation, or the last step to check is past."""


class Replay:
    """One trace's replay. Use ``replay_trace``; the state is public for ``cut``."""

    def __init__(
        self,
        header: TraceHeader,
        options: ReplayOptions,
        capacities: Capacities = NOT_CHECKED,
        watcher: Watcher | None = None,
    ) -> None:
        self.watcher = watcher
        self.header = header
        self.options = options = within_cut(options, header)
        self.is_cut = cut_info(header) is not None
        self.capacities = capacities
        self.backend = get_backend(options.backend)
        strict = options.strict_upstream
        self.check_kv = (
            "kv_hash" in header.records and options.real_data is not RealData.NONE and not strict
        )
        check_tokens = "history" in header.records and header.tokens != "absent" and not strict
        self.pool = PoolState(
            header,
            device=self.backend.device,
            check_kv=self.check_kv,
            check_tokens=check_tokens,
            v_half=options.v_half,
        )
        self.violations = ViolationTable()
        self.tally = Tally()
        self.findings: list[CapacityFinding] = []
        self.workers: dict[str, WorkerCanary] = {}
        self.tiers = copies.Tiers()
        self.steps = self.forwards = self.checked_steps = self.checked_forwards = 0
        self.kv_hashes = self.sweeps = self.events = 0
        self.requests: set[str] = set()
        self.requests_checked: set[str] = set()
        self.stopped_at_step: int | None = None
        self.notes: list[str] = []
        self._unsupported: dict[str, int] = {}
        self._skipped_layers = self._skipped_sweeps = 0
        self.kv_layer: int | None = None
        self._last_step: int | None = None
        self._past: dict[tuple[str, int | None], bool] = {}
        self._last_checked: int | None = None
        self._sweep_due: tuple[int, int] | None = None
        self._last_sweep: int | None = None
        self._outer_steps = 0
        self._capacity_limits = for_manager(capacities)
        self._segment: Segment | None = None
        self._handlers: dict[str, Callable[[Segment, int, int], None]] = {
            "forward": self._forward,
            "map": self._map,
            "free": self._free,
            "own": self._own,
            "history": self._history,
            "finish": self._end,
            "abort": self._end,
            "publish": self._publish,
            "unpublish": self._unpublish,
            "copy": self._copy,
            "lut": self._lut,
            "kv_hash": self._kv_hash,
            "canary_rows": self._canary_rows,
        }
        # Kinds that neither read nor change canary rows, KV bytes or the prefix index.
        self._passive = frozenset({"map", "history", "finish", "abort", "lut"})

    def run(self, reader: TraceReader, progress: Callable[[], None] | None = None) -> None:
        """Replay all of ``reader``.

        Args:
            reader: The trace.
            progress: Called after each segment.

        Raises:
            InputError: The trace cannot be used.
        """
        try:
            for segment in reader.segments():
                self.feed(segment)
                if progress is not None:
                    progress()
            self.flush()
        except _Stop:
            pass
        if self.watcher is not None:
            self.watcher.ended()

    def feed(self, segment: Segment) -> None:
        """Apply the events of one segment."""
        names = segment.kind_names
        handlers = [self._handlers.get(name) for name in names]
        kinds, rows = segment.kind.tolist(), segment.row.tolist()
        for k, (kind, row) in enumerate(zip(kinds, rows, strict=True)):
            if self._waiting and not self._belongs_behind(segment, names[kind], row):
                self.flush_forwards()
            if self._sweep_due is not None and names[kind] not in self._passive:
                self._run_due_sweep(segment, k, kind)
            if self.watcher is not None and names[kind] != "forward":
                self.watcher.event(segment, k, names[kind], row)
            handler = handlers[kind]
            if handler is not None:
                handler(segment, k, row)
        self.events += len(kinds)

    @property
    def _waiting(self) -> bool:
        return any(worker.pending is not None for worker in self.workers.values())

    def _belongs_behind(self, segment: Segment, kind: str, row: int) -> bool:
        """Whether an event is a fingerprint taken after the forward that waits for its TAIL."""
        if kind not in ("kv_hash", "sidecar_hash"):
            return False
        step = segment.tables[kind].get_int("step", row)
        return segment.text(kind, "phase", row) == "after" and any(
            worker.pending is not None and worker.pending.step == step
            for worker in self.workers.values()
        )

    def flush(self) -> None:
        """Finish the forward and the sweep that wait for what stands behind them."""
        for worker in self.workers.values():
            self._finish(worker)
        if self._sweep_due is not None:
            self._sweep(*self._sweep_due)

    # Forwards.

    def worker(self, name: str) -> WorkerCanary:
        """The canary of worker ``name``, made when it first runs."""
        worker = self.workers.get(name)
        if worker is None:
            worker = self.workers[name] = WorkerCanary(
                worker=name,
                lanes=self.pool.make_lanes(name),
                backend=self.backend,
                options=self.options,
                capacities=self._capacity_limits,
                engine_version=self.header.engine_version,
                table=self.pool.table,
                histories=self.pool.histories,
                swa_window=self.header.pool.swa_window,
                partial_table="map" not in self.header.records or self.header.starts_mid_run,
                violations=self.violations,
                tally=self.tally,
            )
            worker.collector.keeps_plans = self.watcher is not None
        return worker

    def _forward(self, segment: Segment, k: int, row: int) -> None:
        for worker in self.workers.values():
            self._finish(worker)
        mode = segment.text("forward", "forward_mode", row) or ""
        if mode in UNSUPPORTED_MODES:
            self._unsupported[mode] = self._unsupported.get(mode, 0) + 1
            return
        forward = read_forward(segment, k)
        self._count(forward)
        self._stop_if_all_past(forward)
        for table_row, req in zip(forward.rows.tolist(), forward.reqs, strict=True):
            if req is not None:
                self.requests.add(req)
                self.pool.row_of[req] = table_row
        active = self.options.checks_step(forward.step)
        worker = self.worker(forward.worker)
        overflows = worker.begin(forward, active=active)
        if self.watcher is not None:
            collector = worker.collector
            self.watcher.begun(
                forward,
                collector.plan_slots,
                np.repeat(np.arange(len(forward.rows), dtype=np.int64), forward.prefix),
                [collector.token_slots(index) for index in range(len(worker.lanes))],
            )
        if not active:
            return
        self.checked_forwards += 1
        self.requests_checked.update(req for req in forward.reqs if req is not None)
        if forward.step != self._last_checked:
            self.checked_steps += 1
            self._last_checked = forward.step
        self._note_capacity(forward, overflows)

    def _stop_if_all_past(self, forward: Forward) -> None:
        """Stop reading when every worker that ran is past the last step to check.

        A cut ends where it should: workers that ran before it may still be behind.
        """
        if self.is_cut:
            return
        lane = (forward.worker, forward.draft_step)
        self._past[lane] = self.options.past_last_step(forward.step)
        if all(self._past.values()):
            raise _Stop

    def _count(self, forward: Forward) -> None:
        self.forwards += 1
        if forward.step != self._last_step:
            self.steps += 1
            self._last_step = forward.step

    def _note_capacity(self, forward: Forward, overflows: list) -> None:  # type: ignore[type-arg]
        if self.capacities.write_req is not None and not self.findings:
            rows = check_plan_rows(write_req_capacity=self.capacities.write_req)
            overflows = [rows, *overflows] if rows is not None else overflows
        for violation in overflows:
            self.findings.append(
                CapacityFinding(
                    step=forward.step,
                    event=forward.event,
                    forward_mode=forward.mode.name,
                    worker=forward.worker,
                    violation=violation,
                )
            )
            if self.options.mode is Mode.RAISE and violation.code in _RAISED_CODES:
                self.stopped_at_step = forward.step
                raise _Stop

    def _finish(self, worker: WorkerCanary) -> None:
        forward = worker.pending
        if forward is None:
            return
        self._keep_kv(worker, forward)
        before = len(self.violations.chunks)
        found = worker.finish()
        if self.watcher is not None:
            self.watcher.finished(forward, self.violations.chunks[before:])
        self._stop_if_raising(found, forward.step)
        interval = self.options.sweep_interval
        if interval and worker.worker == TARGET and not self.options.strict_upstream:
            if self._last_sweep is None or self._outer_steps - self._last_sweep >= interval:
                self._last_sweep = self._outer_steps
                self._sweep(forward.step, forward.event)
            self._outer_steps += 1

    def _stop_if_raising(self, found: int, step: int) -> None:
        if found and self.options.mode is Mode.RAISE:
            self.stopped_at_step = step
            raise _Stop

    # Sweeps.

    def _run_due_sweep(self, segment: Segment, k: int, kind: int) -> None:
        name = segment.kind_names[kind]
        if name == "kv_hash" and segment.text(name, "phase", int(segment.row[k])) == "sweep":
            return
        assert self._sweep_due is not None
        self._sweep(*self._sweep_due)

    def _sweep(self, step: int, event: int) -> None:
        self._sweep_due = None
        if not self.options.checks_step(step):
            return
        if "alloc" not in self.header.records:
            # The index may still name slots that were evicted and handed out again.
            self._skipped_sweeps += 1
            return
        entries = self.pool.prefixes.entries()
        self.sweeps += 1
        before = len(self.violations.chunks)
        found = self.worker(TARGET).sweep(entries, self.pool.lut, step=step, event=event)
        if self.watcher is not None:
            self.watcher.swept(step, event, self.violations.chunks[before:])
        self._stop_if_raising(found, step)

    # Fingerprints.

    def _lane_index(self, pool: str | None) -> tuple[WorkerCanary, int] | None:
        """Worker and lane number of the pool that a fingerprint or copy names."""
        if pool == DRAFT:
            return self.worker(DRAFT), 0
        worker = self.worker(TARGET)
        if pool == "swa":
            return (worker, 1) if len(worker.lanes) > 1 else None
        return worker, 0

    def _kv_hash(self, segment: Segment, k: int, row: int) -> None:
        table = segment.tables["kv_hash"]
        slots, hashes = table.get_ints("slots", row), table.get_ints("hash", row)
        assert slots is not None
        assert hashes is not None
        self.kv_hashes += len(slots)
        phase = segment.text("kv_hash", "phase", row)
        step = table.get_int("step", row) or 0
        pool = segment.text("kv_hash", "pool", row)
        half = segment.text("kv_hash", "half", row) or "k"
        if pool is not None and not copies.is_device_pool(pool):
            if self._is_compared(table.get_int("layer", row)):
                self.tiers.set_prints(pool, half, *_last_of_each(slots, hashes))
            return
        place = self._lane_index(pool)
        if place is None:
            return
        worker, lane = place
        waiting = worker.pending
        is_after = phase == "after" and waiting is not None and waiting.step == step
        if not is_after:
            self.flush_forwards()
        recorded = self.options.sweep_interval is None and not self.options.strict_upstream
        if phase == "sweep" and recorded:
            self._sweep_due = (step, int(segment.index[k]))
        if not self._is_compared(table.get_int("layer", row)):
            self._skipped_layers += len(slots)
            return
        if half not in worker.lanes[lane].kv:
            return
        slots, hashes = _last_of_each(slots, hashes)
        if is_after:
            worker.note_after_hash(lane, half, slots, hashes)
        else:
            worker.adopt(lane, half, slots, hashes)

    def _is_compared(self, layer: int | None) -> bool:
        """Whether fingerprints of ``layer`` count: those of the first layer seen do."""
        if self.kv_layer is None:
            self.kv_layer = layer
        return layer == self.kv_layer

    def flush_forwards(self) -> None:
        for worker in self.workers.values():
            self._finish(worker)

    def _keep_kv(self, worker: WorkerCanary, forward: Forward) -> None:
        """Remember the written positions' fingerprints, for copies that name them."""
        histories = self.pool.histories
        if histories is None or not histories.keeps_kv or "k" not in worker.lanes[0].kv:
            return
        hashed = worker.hashed(0, "k")
        slots = worker.collector.token_slots(0)
        good = np.isin(slots, hashed)
        if not good.any():
            return
        prints = worker.lanes[0].kv["k"].get(np.maximum(slots, 0))
        for b, req in enumerate(forward.reqs):
            mine = good & (forward.token_row == b)
            if req is not None and mine.any():
                histories.note_kv(req, forward.true_positions[mine], prints[mine])

    # The pool's events.

    def _map(self, segment: Segment, k: int, row: int) -> None:
        table = segment.tables["map"]
        slots = table.get_ints("slots", row)
        target, start = table.get_int("row", row), table.get_int("start", row)
        assert slots is not None
        assert target is not None
        assert start is not None
        self.pool.table[target, start : start + len(slots)] = slots
        req = segment.text("map", "req", row)
        if req is not None:
            self.pool.row_of[req] = target

    def _lut(self, segment: Segment, k: int, row: int) -> None:
        table = segment.tables["lut"]
        full, swa = table.get_ints("full", row), table.get_ints("swa", row)
        assert full is not None
        assert swa is not None
        self.pool.set_lut(full, swa)

    def _history(self, segment: Segment, k: int, row: int) -> None:
        table = segment.tables["history"]
        ids = table.get_ints("ids", row)
        assert ids is not None
        if self.pool.histories is not None:
            req = segment.text("history", "req", row) or ""
            self.pool.histories.extend(req, table.get_int("start", row) or 0, ids)
            cut_restore.restore_position_prints(self.pool.histories, segment, row)

    def _end(self, segment: Segment, k: int, row: int) -> None:
        req = segment.text(segment.kind_of(k), "req", row) or ""
        if self.pool.histories is not None:
            self.pool.histories.end(req)

    def _free(self, segment: Segment, k: int, row: int) -> None:
        slots = segment.tables["free"].get_ints("slots", row)
        if slots is not None and segment.text("free", "owner", row) == TREE_OWNER:
            self.pool.prefixes.drop_slots(slots)

    def _own(self, segment: Segment, k: int, row: int) -> None:
        entry = (
            segment.text("own", "entry", row) if "entry" in segment.tables["own"].columns else None
        )
        if entry is None or segment.text("own", "owner", row) != TREE_OWNER:
            return
        slots = segment.tables["own"].get_ints("slots", row)
        assert slots is not None
        cells = self.pool.row_cells(segment.text("own", "from", row) or "")
        # Moved slots may be the end of a path only: without a row their positions are unknown.
        self.pool.prefixes.publish(
            entry, slots, np.empty(0, dtype=np.int32) if cells is None else cells
        )

    def _publish(self, segment: Segment, k: int, row: int) -> None:
        table = segment.tables["publish"]
        slots = table.get_ints("slots", row)
        entry = segment.text("publish", "entry", row) or ""
        if slots is None:
            return
        start = table.get_int("start", row)
        if start is not None:
            prev_slot = table.get_int("prev_slot", row)
            prev_slot = -1 if prev_slot is None else prev_slot
            self.pool.prefixes.place(entry, slots, start, prev_slot, table.get_ints("gone", row))
            return
        req = segment.text("publish", "req", row)
        cells = None if req is None else self.pool.row_cells(req)
        self.pool.prefixes.publish(entry, slots, cells)

    def _unpublish(self, segment: Segment, k: int, row: int) -> None:
        self.pool.prefixes.unpublish(segment.text("unpublish", "entry", row) or "")

    def _copy(self, segment: Segment, k: int, row: int) -> None:
        self.flush_forwards()
        table = segment.tables["copy"]
        dst = table.get_ints("dst", row)
        assert dst is not None
        source = segment.json("copy", "src", row)
        canary = table.get_bool("canary", row) is not False
        src_pool = segment.text("copy", "src_pool", row) or "full"
        dst_pool = segment.text("copy", "dst_pool", row) or "full"
        to = self._lane_index(dst_pool) if copies.is_device_pool(dst_pool) else None
        lane = None if to is None else to[0].lanes[to[1]]
        if isinstance(source, dict):
            if lane is not None:
                lost = copies.copy_from_request(
                    lane, self.pool.histories, source, dst, canary=canary
                )
                self._note_lost(lost)
            return
        src = np.array(source, dtype=np.int64)
        origin = self._lane_index(src_pool) if copies.is_device_pool(src_pool) else None
        if origin is not None and lane is not None:
            from_lane = origin[0].lanes[origin[1]]
            if from_lane is lane:
                lane.copy(src, dst, canary=canary)
            else:
                self.tiers.save(from_lane, src, copies.BETWEEN_POOLS, dst, canary=canary)
                self._note_lost(
                    len(self.tiers.load(copies.BETWEEN_POOLS, dst, lane, dst, canary=canary))
                )
        elif origin is not None:
            self.tiers.save(origin[0].lanes[origin[1]], src, dst_pool, dst, canary=canary)
        elif lane is not None:
            lost_slots = self.tiers.load(src_pool, src, lane, dst, canary=canary)
            if canary:
                lane.forget(lost_slots)
                self._note_lost(len(lost_slots))
        else:
            self.tiers.copy(src_pool, src, dst_pool, dst)

    def _note_lost(self, count: int) -> None:
        if count:
            self.tally.skip("copied from content that the trace does not show (slots)", count)

    def _canary_rows(self, segment: Segment, k: int, row: int) -> None:
        self.flush_forwards()
        cut_restore.restore_rows(self, segment, k, row)

    # The result.

    def result(self, reader: TraceReader) -> ReplayResult:
        """What was found, after ``run``."""
        options = self.options
        if options.reqs or options.slots:
            self.violations = filtered(self.violations, options.reqs, options.slots)
        notes = reader.notes
        lost = notes.lost_events + sum(torn.events or 0 for torn in notes.torn)
        tally = self.tally
        coverage = Coverage(
            records=tuple(sorted(self.header.records)),
            blind_to=blind_to(self.header, ranks=1, check_kv=self.check_kv),
            steps=self.checked_steps,
            forwards=self.checked_forwards,
            entries_verified=tally.entries_verified,
            entries_skipped=sum(tally.skipped.values()),
            skip_reasons=dict(tally.skipped),
            entries_written=tally.entries_written,
            chain_unlinked=tally.chain_unlinked,
            token_entries=tally.token_entries,
            kv_hashes=self.kv_hashes if self.check_kv else 0,
            sweeps=self.sweeps,
            sweep_entries=tally.sweep_entries,
            lost_events=lost,
            stopped_at_step=self.stopped_at_step,
            notes=(*notes.messages(), *self._own_notes()),
        )
        return ReplayResult(
            trace=TraceSummary(
                path=reader.name,
                sha256=reader.sha256(),
                engine_name=self.header.engine_name,
                engine_version=self.header.engine_version,
                rank="-".join(f"{name}{self.header.rank[name]}" for name in ("tp", "pp", "dp")),
                tokens=self.header.tokens,
                records=coverage.records,
                steps=self.steps,
                forwards=self.forwards,
                events=self.events,
                requests=len(self.requests),
            ),
            backend=self.backend.name,
            device=self.backend.device,
            capacities=self.capacities,
            capacity_violations=tuple(self.findings),
            violations=self.violations,
            coverage=coverage,
            verdict=self._verdict(),
            kernel_counters={
                name: tuple(w.state.kernel_run_counters.tolist())
                for name, w in self.workers.items()
            },
            slot_counters={
                name: tuple(w.state.slot_run_counters.tolist()) for name, w in self.workers.items()
            },
            request_ids=frozenset(self.requests_checked),
            diagnosed=self.watcher is not None,
            ring_lost=sum(w.collector.ring_lost for w in self.workers.values()),
        )

    def _verdict(self) -> str:
        if len(self.violations):
            return Verdict.CORRUPT
        if self.findings:
            return Verdict.CAPACITY
        if not self.checked_forwards and not self.sweeps:
            return Verdict.NOT_CHECKED
        return Verdict.CLEAN

    def _own_notes(self) -> list[str]:
        notes = [
            f"{count} forwards of mode {mode} were not replayed: the canary has no rule for it "
            "(KVC-R11)"
            for mode, count in self._unsupported.items()
        ]
        if self._skipped_layers:
            notes.append(f"{self._skipped_layers} fingerprints of further layers were not compared")
        if self._skipped_sweeps:
            notes.append(
                f"{self._skipped_sweeps} sweeps did not run: without the alloc family it is not "
                "known which slots the prefix index still holds"
            )
        if self.header.pool.swa_slots and self.pool.lut is None:
            notes.append("translations to the SWA pool were not recorded: its rows are not checked")
        if "map" not in self.header.records:
            notes.append("the request table was not recorded: prefixes are not verified")
        if len(self.violations) and "transfer" not in self.header.records:
            notes.append(
                "copies were not recorded: KV that was moved outside a forward looks like "
                "corruption here"
            )
        if self.pool.prefixes.unplaced:
            notes.append(
                f"{self.pool.prefixes.unplaced} published slots have no known position: sweeps "
                "leave them out"
            )
        if self.header.tokens == "absent":
            notes.append("tokens were not recorded: links and positions are checked, tokens not")
        elif "history" not in self.header.records:
            notes.append("histories were not recorded: no token is compared with the truth")
        if "kv_hash" not in self.header.records:
            notes.append("KV fingerprints were not recorded: TAIL checks no KV bytes")
        return notes


def _last_of_each(slots: Ints, hashes: Ints) -> tuple[Ints, Ints]:
    """Drop all but the last fingerprint of each slot."""
    if len(np.unique(slots)) == len(slots):
        return slots, hashes
    _, at = np.unique(slots[::-1], return_index=True)
    last = np.sort(len(slots) - 1 - at)
    return slots[last], hashes[last]


def filtered(table: ViolationTable, reqs: frozenset[str], slots: frozenset[int]) -> ViolationTable:
    """The violations of these requests and slots; an empty set lets all pass."""
    out = ViolationTable()
    out.requests, out._codes = table.requests, table._codes
    codes = [code for code, req in enumerate(table.requests) if req in reqs]
    for chunk in table.chunks:
        mask = np.ones(len(chunk), dtype=np.bool_)
        if reqs:
            mask &= np.isin(chunk.columns["req"], codes)
        if slots:
            mask &= np.isin(chunk.columns["slot"], list(slots))
        out.add(chunk.select(mask))
    return out


def replay_trace(
    reader: TraceReader,
    options: ReplayOptions,
    capacities: Capacities = NOT_CHECKED,
    progress: Callable[[], None] | None = None,
    watcher: Watcher | None = None,
) -> ReplayResult:
    """Replay one trace.

    Args:
        reader: An open trace.
        options: What to check.
        capacities: Launch capacities, see ``replay.capacity``.
        progress: Called after each segment.
        watcher: Told of every event, or None.

    Raises:
        InputError: The trace cannot be used.
    """
    replay = Replay(reader.header, options, capacities, watcher)
    replay.run(reader, progress)
    return replay.result(reader)
