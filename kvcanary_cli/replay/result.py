"""The result of a replay: what renderers render and what a program reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvcanary_cli.capacities.checks import CapacityViolation
    from kvcanary_cli.replay.violations import ViolationTable


class Verdict:
    """Values of ``ReplayResult.verdict``."""

    CLEAN = "clean"
    CORRUPT = "corrupt"
    CAPACITY = "capacity"
    NOT_CHECKED = "not_checked"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSummary:
    """Which trace was replayed."""

    path: str
    sha256: str
    engine_name: str
    engine_version: str | None
    rank: str
    tokens: str
    records: tuple[str, ...]
    steps: int
    forwards: int
    events: int
    requests: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacities:
    """Launch capacities and where they come from; None = unknown, the check was not made.

    Attributes:
        verify: per_forward_verify_capacity.
        write_req: per_forward_write_req_capacity.
        write_entry: per_forward_write_entry_capacity.
        source: ``serving_args``, ``config: PATH``, ``--capacity`` or ``none``.
        notes: What had to be assumed, one sentence each.
    """

    verify: int | None
    write_req: int | None
    write_entry: int | None
    source: str
    notes: tuple[str, ...] = ()

    @property
    def known(self) -> bool:
        return (self.verify, self.write_req, self.write_entry) != (None, None, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityFinding:
    """A capacity violation and the forward that caused it."""

    step: int
    event: int
    forward_mode: str
    worker: str
    violation: CapacityViolation


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """What was checked, and what this trace cannot show.

    Attributes:
        records: Families that the trace says it recorded.
        blind_to: Root-cause classes that the missing families hide, or the recorder says so.
        silent: Families of ``records`` of which no event occurs, though forwards do.
        not_recorded: What of the engine's KV the families leave out, in the recorder's words.
        steps: Steps that were checked.
        forwards: Forwards that were checked.
        entries_verified: Prefix entries checked, once per lane.
        entries_skipped: Prefix entries that could not be checked; ``skip_reasons`` says why.
        skip_reasons: Reason to count.
        entries_written: Canary rows written, once per lane.
        chain_unlinked: Entries whose link to the predecessor could not be checked: nodes of draft
            trees, and what was written behind content from before the recording.
        kv_hashes: Fingerprints that the trace brought.
        sweeps: Sweeps that ran.
        sweep_entries: Entries that they checked.
        lost_events: Events missing by gaps in ``i`` or torn segments.
        token_entries: Verified entries whose token was compared.
        ended_at_event: ``i`` at which the recording ended early, None if it did not.
        stopped_at_step: Step at which ``--mode raise`` stopped; None = read to the end.
        notes: Further sentences that the reader must know.
    """

    records: tuple[str, ...]
    blind_to: tuple[str, ...]
    steps: int = 0
    forwards: int = 0
    entries_verified: int = 0
    entries_skipped: int = 0
    skip_reasons: dict[str, int] = field(default_factory=dict)
    entries_written: int = 0
    chain_unlinked: int = 0
    token_entries: int = 0
    kv_hashes: int = 0
    sweeps: int = 0
    sweep_entries: int = 0
    lost_events: int = 0
    ended_at_event: int | None = None
    stopped_at_step: int | None = None
    notes: tuple[str, ...] = ()
    not_recorded: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """What one trace's replay found.

    Attributes:
        kernel_counters: Worker to launches per tag [12] (specification 1.12).
        slot_counters: Worker to entries per tag [12].
        request_ids: Requests of the forwards that were checked.
        slots_seen: Those of the slots asked for that hold anything or are named by the table.
        step_filter: The steps that were checked, in words; empty = all. Nothing is known of others.
        report_filters: Requests and slots that the report is limited to, in words.
        filtered_out: Violations in the checked steps that ``report_filters`` left out.
        diagnosed: Whether a watcher looked for owners and causes.
        ring_lost: Violations beyond ``--ring-capacity``, not in ``violations``.
    """

    trace: TraceSummary
    backend: str
    device: str
    capacities: Capacities
    capacity_violations: tuple[CapacityFinding, ...]
    violations: ViolationTable
    coverage: Coverage
    verdict: str
    kernel_counters: dict[str, tuple[int, ...]]
    slot_counters: dict[str, tuple[int, ...]]
    request_ids: frozenset[str] = frozenset()
    slots_seen: frozenset[int] = frozenset()
    step_filter: str = ""
    report_filters: tuple[str, ...] = ()
    filtered_out: int = 0
    ring_lost: int = 0
    diagnosed: bool = False

    @property
    def filters(self) -> tuple[str, ...]:
        """Both kinds of filters, in words."""
        return (*((self.step_filter,) if self.step_filter else ()), *self.report_filters)

    @property
    def ownership_checked(self) -> bool:
        owners = set(self.trace.records) - set(self.coverage.silent)
        return self.diagnosed and "alloc" in owners
