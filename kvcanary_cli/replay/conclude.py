"""What a replay found, put together once the trace has been read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcanary_cli.replay.coverage import WITHOUT, blind_to, silent_families
from kvcanary_cli.replay.result import Coverage, ReplayResult, TraceSummary, Verdict
from kvcanary_cli.trace.fields import printable
from kvcanary_cli.trace.header import MAX_LEFT_OUT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcanary_cli.replay.driver import Replay
    from kvcanary_cli.replay.violations import ViolationTable
    from kvcanary_cli.trace.reader import TraceReader


@dataclass(frozen=True, slots=True)
class Stretch:
    """What is kept of the replay of a stretch that ended in a gap.

    Attributes:
        kernel_counters, slot_counters: Worker to one number for each tag.
        slots_seen: See ``ReplayResult``.
        ring_lost: Violations beyond the ring.
    """

    kernel_counters: dict[str, list[int]]
    slot_counters: dict[str, list[int]]
    slots_seen: frozenset[int]
    ring_lost: int


def stretch_of(replay: Replay) -> Stretch:
    """What must be kept of ``replay`` when another goes on behind a gap."""
    workers = replay.workers.items()
    return Stretch(
        {name: w.state.kernel_run_counters.tolist() for name, w in workers},
        {name: w.state.slot_run_counters.tolist() for name, w in workers},
        _slots_seen(replay),
        sum(w.collector.ring_lost for _, w in workers),
    )


def conclude(replay: Replay, reader: TraceReader, former: Sequence[Stretch] = ()) -> ReplayResult:
    """What was found, after ``run``.

    Args:
        replay: The replay, of a trace with gaps that of the last stretch.
        reader: The trace.
        former: The stretches before.
    """
    options = replay.options
    stretches = [*former, stretch_of(replay)]
    violations = replay.violations
    if options.reqs or options.slots:
        violations = violations.select(options.reqs, options.slots)
    notes = reader.notes
    lost = notes.lost_events + sum(torn.events or 0 for torn in notes.torn)
    tally = replay.tally
    silent = silent_families(replay.header, replay.kinds_met) if replay.forwards else ()
    coverage = Coverage(
        records=tuple(sorted(replay.header.records)),
        blind_to=blind_to(replay.header, ranks=1, check_kv=replay.check_kv, silent=silent),
        silent=silent,
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
        ended_at_event=None if notes.ended is None else notes.ended.event,
        stopped_at_step=replay.stopped_at_step,
        notes=(
            *notes.messages(),
            *_gap_notes(former),
            *(_silent_note(family) for family in silent),
            *_own_notes(replay),
        ),
        not_recorded=replay.header.not_recorded,
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
        violations=violations,
        slots_seen=frozenset().union(*(stretch.slots_seen for stretch in stretches)),
        step_filter=_step_filter(replay),
        report_filters=_report_filters(replay),
        filtered_out=len(replay.violations) - len(violations),
        coverage=coverage,
        verdict=_verdict(replay, violations),
        kernel_counters=_added([stretch.kernel_counters for stretch in stretches]),
        slot_counters=_added([stretch.slot_counters for stretch in stretches]),
        request_ids=frozenset(replay.requests_checked),
        diagnosed=replay.watcher is not None,
        ring_lost=sum(stretch.ring_lost for stretch in stretches),
    )


def _added(counters: Sequence[dict[str, list[int]]]) -> dict[str, tuple[int, ...]]:
    """Counters of all stretches, added up for each worker."""
    out: dict[str, tuple[int, ...]] = {}
    for each in counters:
        for name, numbers in each.items():
            so_far = out.get(name, (0,) * len(numbers))
            out[name] = tuple(a + b for a, b in zip(so_far, numbers, strict=True))
    return out


def _gap_notes(former: Sequence[Stretch]) -> list[str]:
    if not former:
        return []
    gaps = "the gap" if len(former) == 1 else f"each of the {len(former)} gaps"
    return [
        f"behind {gaps} nothing is taken as known until the trace tells it again: entries of slots "
        "that were not written since are not checked, and faults that began before do not show"
    ]


def _silent_note(family: str) -> str:
    return f"the header promises {family} events and the trace has none: {WITHOUT[family]}"


def _verdict(replay: Replay, violations: ViolationTable) -> str:
    if len(violations):
        return Verdict.CORRUPT
    if replay.findings:
        return Verdict.CAPACITY
    if not _was_checked(replay):
        return Verdict.NOT_CHECKED
    return Verdict.CLEAN


def _was_checked(replay: Replay) -> bool:
    """Whether any check was made at all: a verdict of clean must rest on something."""
    tally = replay.tally
    if tally.entries_verified:
        return True
    if tally.skipped:
        # Reads, and none of them could be checked: sweeps and rows that read nothing are sound as
        # far as they go, which is not what the requests saw.
        return False
    return bool(
        tally.sweep_entries
        or (tally.entries_written and "map" in replay.header.records & replay.kinds_met)
    )


def _own_notes(replay: Replay) -> list[str]:
    notes = [
        f"{count} forwards of mode {mode} were not replayed: the canary has no rule for it "
        "(KVC-R11)"
        for mode, count in replay.unsupported.items()
    ]
    for what, number in replay.uncompared.items():
        hint = " (--v-half compares them)" if what == "the V half" else ""
        notes.append(f"{number} KV fingerprints of {what} were not compared{hint}")
    if replay.slots_copied_unknown:
        notes.append(
            f"{replay.slots_copied_unknown} slots received copied content that the trace does not "
            "show: it is not judged"
        )
    if replay.skipped_sweeps:
        notes.append(
            f"{replay.skipped_sweeps} sweeps did not run: without the alloc family it is not "
            "known which slots the prefix index still holds"
        )
    notes += [
        f"not recorded: {printable(what, MAX_LEFT_OUT)}" for what in replay.header.not_recorded
    ]
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
    if replay.unread_from_step is not None:
        notes.append(
            f"not read from step {replay.unread_from_step} on (--steps): damage that shows there, "
            "and slots that leak, are not known"
        )
    return notes


def _slots_seen(replay: Replay) -> frozenset[int]:
    """Slots asked for that a lane wrote or the request table names."""
    seen = set()
    for slot in replay.options.slots:
        written = any(
            0 <= slot < lane.num_slots and lane.written_at[slot] > 0
            for lane in replay.pool.lanes.values()
        )
        if written or (slot > 0 and bool((replay.pool.table == slot).any())):
            seen.add(slot)
    return frozenset(seen)


def _step_filter(replay: Replay) -> str:
    steps = replay.options.steps
    if steps is None:
        return ""
    first, last = ("" if bound is None else str(bound) for bound in steps)
    return f"steps {first}:{last}"


def _report_filters(replay: Replay) -> tuple[str, ...]:
    options = replay.options
    out = []
    if options.reqs:
        out.append("requests " + ", ".join(sorted(options.reqs)))
    if options.slots:
        out.append("slots " + ", ".join(map(str, sorted(options.slots))))
    return tuple(out)
