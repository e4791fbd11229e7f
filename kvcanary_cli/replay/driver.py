"""Replay: a trace's events in order through the pool model and the canary.

A forward is taken in two halves (``worker``): HEAD at its event, TAIL before the next event that is
no fingerprint taken after it. A sweep that the trace recorded runs when its last fingerprint has
been read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcanary_cli.backends import get_backend
from kvcanary_cli.capacities.checks import CapacityViolation, check_plan_rows
from kvcanary_cli.replay import copies
from kvcanary_cli.replay.capacity_limits import NOT_CHECKED, for_manager
from kvcanary_cli.replay.collector import Tally
from kvcanary_cli.replay.compiled import CompiledEvents, allows_compiled, is_large, preparing
from kvcanary_cli.replay.conclude import conclude
from kvcanary_cli.replay.cut_header import cut_info, within_cut
from kvcanary_cli.replay.event_columns import COMPILED_KINDS
from kvcanary_cli.replay.forwards import Forward, read_forward
from kvcanary_cli.replay.kv_events import TARGET, KvEvents
from kvcanary_cli.replay.options import Mode, RealData, ReplayOptions
from kvcanary_cli.replay.pool import PoolState
from kvcanary_cli.replay.pool_events import PoolEvents
from kvcanary_cli.replay.result import Capacities, CapacityFinding, ReplayResult
from kvcanary_cli.replay.violations import ViolationTable
from kvcanary_cli.replay.worker import WorkerCanary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kvcanary_cli.replay.violations import ViolationChunk
    from kvcanary_cli.replay.watcher import Watcher
    from kvcanary_cli.trace.header import TraceHeader
    from kvcanary_cli.trace.reader import TraceReader
    from kvcanary_cli.trace.segment import Segment

    _Handler = Callable[[Segment, int, int], None]

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
        options.refuse_verify(self.backend.name)
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
        self.kinds_met: set[str] = set()
        self.requests: set[str] = set()
        self.requests_checked: set[str] = set()
        self.stopped_at_step: int | None = None
        # First step that was not read, because no step to check comes after it.
        self.unread_from_step: int | None = None
        self.unsupported: dict[str, int] = {}
        self.skipped_sweeps = 0
        self.slots_copied_unknown = 0
        self.uncompared: dict[str, int] = {}
        self.kv_layer: int | None = None
        self._last_step: int | None = None
        self._past: dict[tuple[str, int | None], bool] = {}
        self._last_checked: int | None = None
        # Step and event of a sweep whose last fingerprint has not been read.
        self.sweep_due: tuple[int, int] | None = None
        self._last_sweep: int | None = None
        self._outer_steps = 0
        self._compiled: CompiledEvents | None = None
        self._may_compile = options.compiled is not False
        self._capacity_limits = for_manager(capacities)
        self.incremental = options.verifies_incrementally(self.backend.name)
        self._kv = KvEvents(self)
        self._handlers: dict[str, _Handler] = {
            **PoolEvents(self.pool).handlers(),
            "forward": self._forward,
            **self._kv.handlers(),
        }
        if self.incremental and watcher is not None:
            # Who watches judges reads by the slots' owners.
            for kind in ("alloc", "free", "own"):
                self._handlers[kind] = self._with_owners(kind, self._handlers.get(kind))
        # Kinds that neither read nor change canary rows, KV bytes or the prefix index.
        self._passive = frozenset({"map", "history", "finish", "abort", "lut"})

    def run(
        self,
        reader: TraceReader,
        progress: Callable[[], None] | None = None,
        segments: Iterable[Segment] | None = None,
    ) -> None:
        """Replay all of ``reader``.

        Args:
            reader: The trace.
            progress: Called after each segment.
            segments: Those of its segments that are replayed, None = all.

        Raises:
            InputError: The trace cannot be used.
        """
        reader.prepare = preparing(self)
        try:
            for segment in reader.segments() if segments is None else segments:
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
        self.kinds_met.update(name for name, table in segment.tables.items() if table.rows)
        handlers = [self._handlers.get(name) for name in names]
        compiled = self._compiled_events(segment)
        # Lists are faster to go through one by one; compiled code leaves few events to that.
        kinds = segment.kind.tolist() if compiled is None else segment.kind
        rows = segment.row.tolist() if compiled is None else segment.row
        taken = [name in COMPILED_KINDS for name in names]
        k = -1
        while (k := k + 1) < len(kinds):
            if compiled is not None and taken[kinds[k]]:
                if self._waiting and not self._belongs_behind(
                    segment, names[kinds[k]], int(rows[k])
                ):
                    self.flush_forwards()
                if not self._waiting:
                    k = compiled.run(segment, k)
                    if k == len(kinds):
                        break
            kind, row = int(kinds[k]), int(rows[k])
            self.events += 1
            if self._waiting and not self._belongs_behind(segment, names[kind], row):
                self.flush_forwards()
            if self.sweep_due is not None and names[kind] not in self._passive:
                self._run_due_sweep(segment, k, kind)
            if self.watcher is not None and names[kind] != "forward":
                self.watcher.event(segment, k, names[kind], row)
            handler = handlers[kind]
            if handler is not None:
                handler(segment, k, row)

    def _with_owners(self, kind: str, handler: _Handler | None) -> _Handler:
        def apply(segment: Segment, k: int, row: int) -> None:
            slots = segment.tables[kind].get_ints("slots", row)
            if slots is not None:
                for known in self.pool.known:
                    known.forget_slots(slots)
            if kind == "alloc":
                self.pool.requests.begin_again(segment.text(kind, "owner", row) or "")
            if handler is not None:
                handler(segment, k, row)

        return apply

    def _compiled_events(self, segment: Segment) -> CompiledEvents | None:
        """What takes the segment's ordinary events in compiled code, None = nothing."""
        if self.options.compiled is None and not is_large(segment):
            return None
        if self._compiled is None and self._may_compile:
            self._may_compile = False
            if allows_compiled(self):
                ledger = None if self.watcher is None else self.watcher.ledger()
                if ledger is not None or self.watcher is None:
                    self._compiled = CompiledEvents(self, ledger)
        return self._compiled

    def last_steps(self) -> tuple[int, int]:
        """Step of the last forward, and of the last that was checked; -1 = none."""
        last, checked = self._last_step, self._last_checked
        return -1 if last is None else last, -1 if checked is None else checked

    def go_on_from(self, last_step: int, last_checked: int) -> None:
        self._last_step, self._last_checked = last_step, last_checked

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
        if self.sweep_due is not None:
            self._sweep(*self.sweep_due)

    def flush_forwards(self) -> None:
        for worker in self.workers.values():
            self._finish(worker)

    # Forwards.

    def worker(self, name: str) -> WorkerCanary:
        """The canary of worker ``name``, made when it first runs."""
        worker = self.workers.get(name)
        if worker is None:
            if "lut" not in self.kinds_met:
                self.pool.lut = None
            lanes = self.pool.make_lanes(name)
            if self.incremental:
                self.pool.keep_known(lanes[0])
            worker = self.workers[name] = WorkerCanary(
                worker=name,
                lanes=lanes,
                backend=self.backend,
                options=self.options,
                capacities=self._capacity_limits,
                engine_version=self.header.engine_version,
                table=self.pool.table,
                histories=self.pool.histories,
                swa_window=self.header.pool.swa_window,
                # A table of which nothing was told so far is not one that names nothing.
                partial_table="map" not in self.header.records & self.kinds_met
                or self.header.starts_mid_run,
                violations=self.violations,
                tally=self.tally,
            )
            worker.collector.keeps_plans = self.watcher is not None
            worker.collector.compares_tokens = self.header.tokens != "absent"
        return worker

    def _forward(self, segment: Segment, k: int, row: int) -> None:
        for worker in self.workers.values():
            self._finish(worker)
        mode = segment.text("forward", "forward_mode", row) or ""
        if mode in UNSUPPORTED_MODES:
            self.unsupported[mode] = self.unsupported.get(mode, 0) + 1
            return
        forward = read_forward(segment, k)
        self._stop_if_all_past(forward)
        self._count(forward)
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
                collector.reads(),
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
            self.unread_from_step = forward.step
            raise _Stop

    def _count(self, forward: Forward) -> None:
        self.forwards += 1
        if forward.step != self._last_step:
            self.steps += 1
            self._last_step = forward.step

    def _note_capacity(self, forward: Forward, overflows: list[CapacityViolation]) -> None:
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
        self._kv.keep(worker, forward)
        found = worker.finish()
        if self.watcher is not None:
            self.watcher.finished(forward, found)
        if worker.collector.sound and not found:
            worker.note_read(forward)
        self._stop_if_raising(found, forward.step)
        interval = self.options.sweep_interval
        if interval and worker.worker == TARGET and not self.options.strict_upstream:
            if self._last_sweep is None or self._outer_steps - self._last_sweep >= interval:
                self._last_sweep = self._outer_steps
                self._sweep(forward.step, forward.event)
            self._outer_steps += 1

    def _stop_if_raising(self, found: list[ViolationChunk], step: int) -> None:
        if found and self.options.mode is Mode.RAISE:
            self.stopped_at_step = step
            raise _Stop

    # Sweeps.

    def _run_due_sweep(self, segment: Segment, k: int, kind: int) -> None:
        name = segment.kind_names[kind]
        if name == "kv_hash" and segment.text(name, "phase", int(segment.row[k])) == "sweep":
            return
        assert self.sweep_due is not None
        self._sweep(*self.sweep_due)

    def _sweep(self, step: int, event: int) -> None:
        self.sweep_due = None
        if not self.options.checks_step(step):
            return
        if "alloc" not in self.header.records:
            # The index may still name slots that were evicted and handed out again.
            self.skipped_sweeps += 1
            return
        entries = self.pool.prefixes.entries()
        self.sweeps += 1
        found = self.worker(TARGET).sweep(entries, self.pool.lut, step=step, event=event)
        if self.watcher is not None:
            self.watcher.swept(step, event, found)
        self._stop_if_raising(found, step)


def replay_trace(
    reader: TraceReader,
    options: ReplayOptions,
    capacities: Capacities = NOT_CHECKED,
    progress: Callable[[], None] | None = None,
) -> ReplayResult:
    """Replay one trace.

    Args:
        reader: An open trace.
        options: What to check.
        capacities: Launch capacities, see ``replay.capacity_limits``.
        progress: Called after each segment.

    Raises:
        InputError: The trace cannot be used.
    """
    from kvcanary_cli.replay.gaps import replay_stretches

    done = replay_stretches(reader, options, capacities, lambda _header: None, progress)
    return conclude(done.replay, reader, done.former)
