"""Takes the facts of a finding while the ledger still shows them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from kvcanary_cli.attribution import result as what
from kvcanary_cli.attribution.facts import (
    MAX_ENTRIES,
    MAX_LIFE,
    EntryFact,
    FindingFacts,
    OtherReader,
)
from kvcanary_cli.attribution.ledger import NEVER
from kvcanary_cli.attribution.slot_life import Life, slots_life
from kvcanary_cli.attribution.slot_owners import owner_map
from kvcanary_cli.attribution.snapshot_entries import Entries
from kvcanary_cli.attribution.snapshot_rows import Rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kvcanary_cli.attribution.follow import Follower
    from kvcanary_cli.attribution.result import Finding
    from kvcanary_cli.replay.forwards import Forward
    from kvcanary_cli.replay.violations import ViolationChunk

    Ints = NDArray[np.int64]

# A trace with more findings than this has one story told many times.
_MAX_FINDINGS = 500
# By what a broken rule was met.
_RULE_ACCESS = {
    what.DOUBLE_ALLOC: "alloc",
    what.DOUBLE_FREE: "free",
    what.FREE_BY_NON_OWNER: "free",
    what.OWN_BY_NON_OWNER: "own",
    what.WRITE_BY_NON_OWNER: "write",
    what.READ_OF_FOREIGN: "read",
    what.READ_OF_FREE: "read",
    what.READ_BEFORE_WRITE: "read",
    what.PUBLISH_OF_FREE: "publish",
    what.MATCH_OF_FREE: "match",
    what.MATCH_OF_FOREIGN: "match",
    what.LEAK: "check",
}


@dataclass(slots=True)
class Snapshots:
    """Fills ``Finding.facts``.

    Args:
        follower: The ledger.
    """

    follower: Follower
    _taken: int = 0
    _rules_seen: int = 0
    _broken: dict[int, list[tuple[frozenset[int], FindingFacts]]] = field(default_factory=dict)

    def take(
        self,
        findings: list[Finding],
        found: Sequence[ViolationChunk] = (),
        *,
        forward: Forward | None = None,
        event: int | None = None,
        step: int | None = None,
    ) -> None:
        """Facts for the findings that are new since the last call.

        Args:
            findings: All findings, the new ones last.
            found: The violations that made them, if any.
            forward: The forward that showed them, or None.
            event, step: Of a sweep or another event, where there is no forward.
        """
        new = findings[self._taken : _MAX_FINDINGS]
        self._taken = len(findings)
        for finding in new:
            noted = self._noted(finding)
            if noted is not None:
                finding.facts = noted
                continue
            seen = forward.event if forward is not None else event
            if seen is None:
                seen = finding.cause_event or 0
            when = forward.step if forward is not None else step
            finding.facts = self._facts(finding, Rows.of(finding, found), forward, seen, when)

    def note_broken_rules(self, forward: Forward | None = None) -> None:
        """Keep the scene of ownership findings that are new: they may become findings later."""
        rules = self.follower.rules
        if len(rules.findings) == self._rules_seen:
            return
        for k in range(self._rules_seen, min(len(rules.findings), _MAX_FINDINGS)):
            broken = rules.findings[k]
            slots = np.array(broken.slots, dtype=np.int64)
            life = self._life("target", "FULL", slots, broken.actor, broken.owner)
            owner = "the free list" if broken.owner is None else f"owner {broken.owner}"
            life.drop(broken.event, broken.what)
            life.add(broken.event, broken.what, broken.actor, slots, step=broken.step, note=owner)
            facts = self._scene(
                slots,
                life,
                event=broken.event,
                step=broken.step,
                forward=forward,
                actor=broken.actor,
                access=_RULE_ACCESS[broken.what],
            )
            for event in {broken.event, *(root.event for root in rules.roots[k])}:
                self._broken.setdefault(event, []).append((frozenset(broken.slots), facts))
        self._rules_seen = len(rules.findings)

    def note_read(self, cause: int, slots: Ints, reader: str | None, forward: Forward) -> None:
        """Keep the scene of a read of ``slots`` that event ``cause`` made wrong."""
        life = self._life("target", "FULL", slots, reader, None)
        life.add(forward.event, "read", reader, slots, step=forward.step)
        facts = self._scene(
            slots,
            life,
            event=forward.event,
            step=forward.step,
            forward=forward,
            actor=reader,
            access="read",
        )
        self._broken.setdefault(cause, []).append((frozenset(slots.tolist()), facts))

    def note_transfer(
        self, cause: int, slots: Ints, actor: str | None, event: int, access: str
    ) -> None:
        """Keep the scene of a transfer that raced for ``slots`` with event ``cause``."""
        life = self._life("target", "FULL", slots, actor, None)
        life.add(event, f"transfer {access}", actor, slots)
        facts = self._scene(
            slots, life, event=event, step=None, forward=None, actor=actor, access=access
        )
        self._broken.setdefault(cause, []).append((frozenset(slots.tolist()), facts))

    def _scene(
        self,
        slots: Ints,
        life: Life,
        *,
        event: int,
        step: int | None,
        forward: Forward | None,
        actor: str | None,
        access: str,
    ) -> FindingFacts:
        """The scene of a broken rule."""
        return self._assemble(
            event=event,
            step=step,
            forward=forward,
            reader=actor,
            row=-1,
            life=life,
            slots=slots,
            access=access,
        )

    def _noted(self, finding: Finding) -> FindingFacts | None:
        """The scene of the broken rule that a finding without violations stands for.

        Where several broke it, that of the victim.
        """
        if finding.violations or finding.cause_event is None or finding.pool_kind != "FULL":
            return None
        for event in (finding.corrupting_event, finding.cause_event):
            noted = self._broken.get(NEVER if event is None else event, ())
            scenes = [facts for slots, facts in noted if slots & finding.slots]
            if scenes:
                return next((s for s in scenes if s.reader == finding.victim), scenes[0])
        return None

    def _life(
        self, worker: str, kind: str, slots: Ints, reader: str | None, writer: str | None
    ) -> Life:
        return slots_life(self.follower, (worker, kind), slots, reader=reader, writer=writer)

    def _facts(
        self,
        finding: Finding,
        rows: Rows,
        forward: Forward | None,
        event: int,
        step: int | None,
    ) -> FindingFacts:
        slots = np.array(sorted(finding.slots), dtype=np.int64)
        reader = finding.victim
        life = self._life(finding.worker, finding.pool_kind, slots, reader, finding.culprit.req)
        if finding.cls == "use_after_free" and finding.cause_event is not None:
            life.add_free(finding.cause_event, slots)
        row = rows.of_reader(reader, forward)
        met = rows.met(row)
        not_met: set[int] = set()
        if met and rows.access == "read" and forward is not None and finding.pool_kind == "FULL":
            met |= self._cells_read(forward, row)
            not_met = set(slots.tolist()) - met
        others = rows.others(row, forward, met)
        primary = ~rows.seam & (rows.rows == row)
        where: dict[int, int] = {}
        for slot, position in zip(
            rows.slot[primary].tolist(), rows.position[primary].tolist(), strict=True
        ):
            where.setdefault(slot, position)
        if row >= 0:
            life.add_row(row, where, forward, reader)
        name = reader if reader is not None else "the prefix cache's sweep"
        mine = slots[~np.isin(slots, list(not_met))] if not_met else slots
        life.add(event, rows.access, name, mine, step=step)
        for other in others:
            life.add(event, "read", other.reader, np.array(other.slots, dtype=np.int64), step=step)
        return self._assemble(
            event=event,
            step=step,
            forward=forward,
            reader=reader,
            row=row,
            life=life,
            slots=slots,
            access=rows.access,
            rows=rows,
            others=others,
            not_met=frozenset(not_met),
            entries=Entries(self.follower).of(finding, rows, forward, slots),
            lane=(finding.worker, finding.pool_kind),
        )

    def _cells_read(self, forward: Forward, row: int) -> set[int]:
        """Slots that the prefix of the batch row in table row ``row`` names."""
        at = np.flatnonzero(forward.rows == row)
        if self.follower.pool is None or not len(at):
            return set()
        prefix = int(forward.prefix[at[0]])
        cells = self.follower.pool.table[row, :prefix].tolist()
        as_read = forward.row_as_read.get(row, [])[:prefix]
        return {*as_read, *cells[len(as_read) :]}

    def _assemble(
        self,
        *,
        event: int,
        step: int | None,
        forward: Forward | None,
        reader: str | None,
        row: int,
        life: Life,
        slots: Ints,
        access: str,
        rows: Rows | None = None,
        entries: tuple[EntryFact, ...] = (),
        lane: tuple[str, str] = ("target", "FULL"),
        others: tuple[OtherReader, ...] = (),
        not_met: frozenset[int] = frozenset(),
    ) -> FindingFacts:
        seams = () if rows is None else rows.seams()
        table_row, prefix = _row_and_prefix(forward, row, reader)
        told = life.told()
        kept = told if len(told) <= MAX_LIFE else [*told[: MAX_LIFE // 2], *told[-MAX_LIFE // 2 :]]
        return FindingFacts(
            event=event,
            step=step,
            mode=None if forward is None else forward.mode.name,
            reader=reader,
            row=table_row,
            prefix=prefix,
            access=access,
            reasons=() if rows is None else rows.reasons(),
            entries=entries,
            entries_total=len(slots),
            seams=seams[:MAX_ENTRIES],
            seams_total=len(seams),
            owners=owner_map(
                self.follower, lane, slots, reader, forward, read=access == "read" or bool(entries)
            ),
            owners_are_writers=lane[1] != "FULL",
            life=tuple(kept),
            life_total=len(told),
            others=others,
            not_met=not_met,
        )


def _row_and_prefix(
    forward: Forward | None, row: int, reader: str | None
) -> tuple[int | None, int | None]:
    if forward is None:
        return (None if row < 0 else row), None
    for b, req in enumerate(forward.reqs):
        if (row >= 0 and int(forward.rows[b]) == row) or (row < 0 and req == reader):
            return int(forward.rows[b]), int(forward.prefix[b])
    return (None if row < 0 else row), None
