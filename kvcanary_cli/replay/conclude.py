"""What a replay found, put together once the trace has been read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvcanary_cli.replay.coverage import blind_to
from kvcanary_cli.replay.result import Coverage, ReplayResult, TraceSummary, Verdict
from kvcanary_cli.replay.violations import ViolationTable

if TYPE_CHECKING:
    from kvcanary_cli.replay.driver import Replay
    from kvcanary_cli.trace.reader import TraceReader


def conclude(replay: Replay, reader: TraceReader) -> ReplayResult:
    """What was found, after ``run``."""
    options = replay.options
    if options.reqs or options.slots:
        replay.violations = filtered(replay.violations, options.reqs, options.slots)
    notes = reader.notes
    lost = notes.lost_events + sum(torn.events or 0 for torn in notes.torn)
    tally = replay.tally
    coverage = Coverage(
        records=tuple(sorted(replay.header.records)),
        blind_to=blind_to(replay.header, ranks=1, check_kv=replay.check_kv),
        steps=replay.checked_steps,
        forwards=replay.checked_forwards,
        entries_verified=tally.entries_verified,
        entries_skipped=sum(tally.skipped.values()),
        skip_reasons=dict(tally.skipped),
        entries_written=tally.entries_written,
        chain_unlinked=tally.chain_unlinked,
        token_entries=tally.token_entries,
        kv_hashes=replay.kv_hashes if replay.check_kv else 0,
        sweeps=replay.sweeps,
        sweep_entries=tally.sweep_entries,
        lost_events=lost,
        stopped_at_step=replay.stopped_at_step,
        notes=(*notes.messages(), *_own_notes(replay)),
    )
    return ReplayResult(
        trace=TraceSummary(
            path=reader.name,
            sha256=reader.sha256(),
            engine_name=replay.header.engine_name,
            engine_version=replay.header.engine_version,
            rank="-".join(f"{name}{replay.header.rank[name]}" for name in ("tp", "pp", "dp")),
            tokens=replay.header.tokens,
            records=coverage.records,
            steps=replay.steps,
            forwards=replay.forwards,
            events=replay.events,
            requests=len(replay.requests),
        ),
        backend=replay.backend.name,
        device=replay.backend.device,
        capacities=replay.capacities,
        capacity_violations=tuple(replay.findings),
        violations=replay.violations,
        coverage=coverage,
        verdict=_verdict(replay),
        kernel_counters={
            name: tuple(w.state.kernel_run_counters.tolist()) for name, w in replay.workers.items()
        },
        slot_counters={
            name: tuple(w.state.slot_run_counters.tolist()) for name, w in replay.workers.items()
        },
        request_ids=frozenset(replay.requests_checked),
        diagnosed=replay.watcher is not None,
        ring_lost=sum(w.collector.ring_lost for w in replay.workers.values()),
    )


def _verdict(replay: Replay) -> str:
    if len(replay.violations):
        return Verdict.CORRUPT
    if replay.findings:
        return Verdict.CAPACITY
    if not replay.checked_forwards and not replay.sweeps:
        return Verdict.NOT_CHECKED
    return Verdict.CLEAN


def _own_notes(replay: Replay) -> list[str]:
    notes = [
        f"{count} forwards of mode {mode} were not replayed: the canary has no rule for it "
        "(KVC-R11)"
        for mode, count in replay.unsupported.items()
    ]
    if replay.skipped_layers:
        notes.append(f"{replay.skipped_layers} fingerprints of further layers were not compared")
    if replay.skipped_sweeps:
        notes.append(
            f"{replay.skipped_sweeps} sweeps did not run: without the alloc family it is not "
            "known which slots the prefix index still holds"
        )
    if replay.header.pool.swa_slots and replay.pool.lut is None:
        notes.append("translations to the SWA pool were not recorded: its rows are not checked")
    if "map" not in replay.header.records:
        notes.append("the request table was not recorded: prefixes are not verified")
    if len(replay.violations) and "transfer" not in replay.header.records:
        notes.append(
            "copies were not recorded: KV that was moved outside a forward looks like "
            "corruption here"
        )
    if replay.pool.prefixes.unplaced:
        notes.append(
            f"{replay.pool.prefixes.unplaced} published slots have no known position: sweeps "
            "leave them out"
        )
    if replay.header.tokens == "absent":
        notes.append("tokens were not recorded: links and positions are checked, tokens not")
    elif "history" not in replay.header.records:
        notes.append("histories were not recorded: no token is compared with the truth")
    if "kv_hash" not in replay.header.records:
        notes.append("KV fingerprints were not recorded: TAIL checks no KV bytes")
    return notes


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
