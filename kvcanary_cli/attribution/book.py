"""The findings of one diagnosis: one for each cause, however often its damage is met."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcanary_cli.attribution.awaited import tell_awaited
from kvcanary_cli.attribution.classes import remedy
from kvcanary_cli.attribution.ledger import NEVER, NOBODY, TREE
from kvcanary_cli.attribution.result import CERTAIN, CONFIDENCES, POSSIBLE, PROBABLE, Finding
from kvcanary_cli.replay.coverage import CLASS_NEEDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from kvcanary_cli.attribution.context import Window
    from kvcanary_cli.attribution.damage import Cause, Damage
    from kvcanary_cli.attribution.ledger import Names
    from kvcanary_cli.trace.notes import Gap, TraceNotes

    Ints = NDArray[np.int64]

# Classes whose later instances repeat the same defect on other slots: the first step stands for it.
ONE_STEP = frozenset({"position_misalign", "wrong_token_fed"})

# Readers of one cause of whom something is told.
_READERS_TOLD = 16

# What is copied or matched may have been stored or published long before.
_BRINGS_THE_PAST = frozenset({"transfer_mismatch", "transfer_race", "prefix_index", "key_aliasing"})


class FindingBook:
    """Findings by what they may be met again by.

    Args:
        names: Interned names.
        ended: Requests that ended, by code, with the event.
        notes: Of the reader: events that were lost.
        records: Families that the trace recorded.
        has_swa: Whether there is a SWA pool.

    Attributes:
        findings: In order of detection.
        known: (lane, slot, its writer's event) to the finding of a damage that was met before.
        by_slot: (lane, slot) to the finding that has it.
        by_cause: ``cause_key`` to the finding.
        wrong_inputs: (worker, corrupting event) to the findings of ``ONE_STEP`` that it made.
        in_full: (victim, position, event) to the finding of the full lane, within one forward.
        awaiting: Findings that a transfer may still explain, the transfer and the slot.
        event: Of the violations that are being explained.
        event_now: ``i`` of the event that is being judged.
        named_before: Requests that were named before the last gap, and behind how many gaps first.
        begins: Whether the events since the last gap tell how a request begins.
    """

    def __init__(
        self,
        names: Names,
        ended: Mapping[int, int],
        notes: TraceNotes,
        records: frozenset[str],
        *,
        has_swa: bool,
    ) -> None:
        self.names, self._ended, self._notes, self.has_swa = names, ended, notes, has_swa
        self._records = records
        self.findings: list[Finding] = []
        self.known: dict[tuple[str, str, int, int], Finding] = {}
        self.by_slot: dict[tuple[str, str, int], Finding] = {}
        self.by_cause: dict[tuple[object, ...], Finding] = {}
        self.wrong_inputs: dict[tuple[str, int | None], list[Finding]] = {}
        self.in_full: dict[tuple[int, int, int], Finding] = {}
        self.event = self.event_now = NOBODY
        self.awaiting: list[tuple[Finding, Window, int]] = []
        self._both_sides: set[str] = set()
        self._told: dict[str, set[str]] = {}
        self.named_before: dict[str, int] = {}
        self.begins: Callable[[str], bool] = bool
        # Of a cut: its first forward, and who had been named by then.
        self._state_end = NEVER
        self._of_the_past: set[str | None] = set()

    def of_damage(self, cause: Cause, damage: Damage) -> Finding:
        key = self.cause_key(cause, damage.worker, damage.pool_kind)
        finding = self.by_cause.get(key)
        if finding is None:
            name = self.names.name(damage.victim)
            victim = None if damage.victim == TREE else name
            finding = self.new(cause, damage.worker, damage.pool_kind, victim, damage.step)
            if cause.awaited is not None:
                self.awaiting.append((finding, cause.awaited, damage.slot))
        if cause.of_reader is not None:
            self._tell_reader(finding, *cause.of_reader)
        finding.follows.update(cause.follows)
        finding.sources.update(cause.sources)
        if cause.other_side is not None:
            self._other_side(finding, *cause.other_side, sure=cause.confidence == CERTAIN)
        return finding

    def _tell_reader(self, finding: Finding, reader: str, texts: Iterable[str]) -> None:
        """Add what a cause tells of one of its readers, as far as there is room."""
        told = self._told.setdefault(finding.id, set())
        if reader not in told and len(told) < _READERS_TOLD:
            told.add(reader)
            finding.evidence.extend(texts)

    def _other_side(self, finding: Finding, text: str, slot: int | None, *, sure: bool) -> None:
        """The cause of ``finding`` damaged ``slot``, None = none that counts, as well."""
        if slot is not None:
            finding.slots.add(slot)
        if finding.id in self._both_sides:
            return
        self._both_sides.add(finding.id)
        finding.evidence.append(text)
        if sure and not finding.lost_within:
            finding.confidence = CERTAIN

    def new(
        self, cause: Cause, worker: str, pool_kind: str, victim: str | None, step: int | None
    ) -> Finding:
        self._weigh_needs(cause)
        unseen = self._weigh_silence(cause)
        lost = self._weigh_gaps(cause, victim)
        self._weigh_cut(cause, victim)
        finding = Finding(
            id=f"F{len(self.findings) + 1}",
            cls=cause.cls,
            subtype=cause.subtype,
            first_bad_step=step,
            cause_event=cause.cause_event,
            cause_window=cause.cause_window,
            corrupting_event=cause.corrupting_event,
            victim=victim,
            culprit=cause.culprit,
            worker=worker,
            pool_kind=pool_kind,
            ruled_out=cause.ruled_out,
            confidence=cause.confidence,
            evidence=cause.evidence,
            remedy=remedy(cause.cls, cause.subtype),
            lost_within=lost,
            unseen=unseen,
        )
        self.by_cause[self.cause_key(cause, worker, pool_kind)] = finding
        self.findings.append(finding)
        if finding.cls in ONE_STEP:
            self.wrong_inputs.setdefault((worker, finding.corrupting_event), []).append(finding)
        return finding

    def tell_awaited(self) -> None:
        """Say what became of the transfers that were waited for."""
        tell_awaited(self.awaiting)

    def named(self) -> dict[str, int]:
        """Requests named so far, and behind how many of the trace's gaps first."""
        gaps = len(self._gaps())
        names = (self.names.name(code) for code in range(TREE + 1, len(self.names)))
        return dict.fromkeys((name for name in names if name is not None), gaps) | self.named_before

    def _gaps(self) -> list[Gap]:
        return [gap for gap in self._notes.gaps if gap.after_i < self.event_now]

    def _weigh_gaps(self, cause: Cause, victim: str | None) -> int:
        """How many events were lost between what a finding rests on and the damage.

        It rests on what its victim and its culprit did from their beginning on. What happened to
        the slots and rows is of no concern: all that is known of them came behind the last gap.
        """
        gaps = self._gaps()
        if not gaps:
            return 0
        parties = {victim, cause.culprit.req} - {None, "tree"}
        since = min((self._begun_behind(req, len(gaps)) for req in parties if req), default=0)
        within = gaps[since:]
        if not within:
            return 0
        if cause.confidence == CERTAIN:
            cause.confidence = PROBABLE
        lost = sum(gap.count for gap in within)
        cause.evidence.append(
            f"{lost} events before it were lost, the last ones after event {within[-1].after_i}"
        )
        return lost

    def _weigh_needs(self, cause: Cause) -> None:
        """A class whose families were not recorded is not told from others for certain."""
        ways = CLASS_NEEDS.get(cause.cls, ())
        if cause.confidence != CERTAIN or not ways or any(way <= self._records for way in ways):
            return
        lacking = min((sorted(way - self._records) for way in ways), key=len)
        cause.rests_on = {**dict.fromkeys(lacking, PROBABLE), **cause.rests_on}

    def _weigh_silence(self, cause: Cause) -> tuple[str, ...]:
        """Families that the trace lacks, and whose events would say otherwise."""
        unseen = tuple(family for family in cause.rests_on if family not in self._records)
        for family in unseen:
            cause.confidence = max(cause.confidence, cause.rests_on[family], key=CONFIDENCES.index)
            cause.evidence.append(
                f"{family} events were not recorded: that there was none is not known"
            )
        if unseen and cause.confidence == POSSIBLE:
            cause.evidence.append("a sound engine may leave the same trace")
        return unseen

    def cut_ends(self, event: int) -> None:
        """The state that a cut begins with has been told before ``event``."""
        self._state_end = event
        self._of_the_past = {self.names.name(code) for code in range(TREE, len(self.names))}

    def _weigh_cut(self, cause: Cause, victim: str | None) -> None:
        """Who was there when a cut begins did things before it that may be the real cause."""
        if cause.confidence != CERTAIN or self._state_end == NEVER:
            return
        parties = {victim, cause.culprit.req} & self._of_the_past - {None}
        before = cause.cause_event is not None and cause.cause_event < self._state_end
        if parties or before or cause.cls in _BRINGS_THE_PAST:
            cause.confidence = PROBABLE
            who = " and ".join(sorted(name for name in parties if name)) or "others"
            cause.evidence.append(
                f"the trace is cut: what {who} did before its first step is not in it, only what "
                "came of it"
            )

    def _begun_behind(self, req: str, gaps: int) -> int:
        """Behind how many of ``gaps`` gaps a request began for sure."""
        if req in self.named_before:
            return self.named_before[req]
        return gaps if self.begins(req) else gaps - 1

    def add(
        self,
        cause: Cause,
        victim: str | None,
        step: int | None,
        slots: Ints,
        positions: Ints,
        *,
        read: bool = True,
        lane: tuple[str, str] = ("target", "FULL"),
    ) -> Finding:
        """Enter a finding that no canary violation shows.

        Args:
            cause: Why.
            victim: Request that read or lost data, None if none is known.
            step: Step that shows it, None outside one.
            slots, positions: What is damaged; positions may be empty.
            read: Whether ``victim`` read, or was fed, the damage.
            lane: Worker and pool of the slots.

        Returns:
            The new finding, or the one that has the same cause.
        """
        finding = self.by_cause.get(self.cause_key(cause, *lane))
        if finding is None:
            finding = self.new(cause, *lane, victim, step)
        finding.follows.update(cause.follows)
        if cause.other_side is not None:
            self._other_side(finding, *cause.other_side, sure=cause.confidence == CERTAIN)
        if read and victim is not None:
            finding.blast_radius[victim] = None
        if finding.cls in ONE_STEP and step != finding.first_bad_step:
            return finding
        if finding.pool_kind != lane[1]:
            # Its slots are those of the lane that showed it first.
            return finding
        finding.slots.update(slots.tolist())
        finding.seam_slots.difference_update(finding.slots)
        if finding.positions is not None and victim == finding.victim:
            finding.positions.update(positions.tolist())
        return finding

    def enter(
        self,
        finding: Finding,
        slot: int,
        position: int,
        victim: int,
        reader: str | None,
        step: int,
    ) -> None:
        finding.violations += 1
        self.by_slot[finding.worker, finding.pool_kind, slot] = finding
        if finding.pool_kind == "FULL" and self.has_swa:
            self.in_full[victim, position, self.event] = finding
        finding.last_event = self.event_now
        self._reach(finding, reader)
        if finding.cls in ONE_STEP and step != finding.first_bad_step:
            return
        finding.slots.add(slot)
        finding.seam_slots.discard(slot)
        if finding.positions is not None and self.names.name(victim) == finding.victim:
            finding.positions.add(position)

    def _reach(self, finding: Finding, reader: str | None) -> None:
        """``reader`` met the damage: it suffers from it unless it had ended."""
        if reader is None:
            return
        ended = self._ended.get(self.names.code(reader))
        if ended is None:
            finding.blast_radius[reader] = None
            return
        text = f"{reader} had ended at event {ended}: what it read is discarded"
        if text not in finding.evidence:
            finding.evidence.append(text)

    def cause_key(self, cause: Cause, worker: str, pool_kind: str) -> tuple[object, ...]:
        if cause.group is not None:
            # The same defect met again: one finding, dated by the first time.
            return (cause.cls, cause.subtype, cause.group, worker)
        if cause.cause_event is not None:
            # Both lanes of a worker fail of one cause: one finding, in the lane that showed it.
            return (cause.cls, cause.subtype, cause.cause_event, worker)
        return (cause.cls, cause.subtype, cause.cause_window, worker, pool_kind)
