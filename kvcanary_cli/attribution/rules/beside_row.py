"""The batch and the request table disagree: a forward wrote, or read, beside its own row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvcanary_cli.attribution.damage import Cause, Damage
from kvcanary_cli.attribution.ledger import BY_FORWARD, FREE, NEVER, NOBODY, TREE
from kvcanary_cli.attribution.result import Culprit, RuledOut
from kvcanary_cli.attribution.row_table import END
from kvcanary_cli.attribution.rules.facts import Facts
from kvcanary_cli.attribution.rules.index import CELLS_REWRITTEN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from kvcanary_cli.attribution.context import RowFacts
    from kvcanary_cli.attribution.rules.row_tenancies import RowTenancies

    Ints = NDArray[np.int64]

WRITTEN_BESIDE_ROW = "written_beside_row"
ANOTHERS_ROW = "anothers_row"


class BesideRow(Facts):
    """Slots and rows that a batch named and the request table does not give its requests."""

    # Whose writes were looked up last, in which lane and at which event: their positions in order,
    # and the slots. A long prompt may miss all of its positions.
    _written: tuple[tuple[str, int, int] | None, NDArray[np.int32], Ints] = (
        None,
        np.empty(0, dtype=np.int32),
        np.empty(0, dtype=np.int64),
    )

    # The rows that were looked up last, and of whom, before which event.
    _rows: tuple[tuple[int, int] | None, list[int]] = (None, [])

    def __init__(self, tenancies: RowTenancies, *facts: Any) -> None:
        super().__init__(*facts)
        self._tenancies = tenancies

    def overwritten(self, damage: Damage) -> Cause | None:
        """The last writer's own row names another slot for what it wrote here."""
        writes, slot, wrote = damage.writes, damage.slot, damage.writer_event()
        if not self._is_written_by_forward(damage) or wrote != damage.came_event():
            return None
        held, writer = self.held_since(damage), int(writes.req[slot])
        position, ended = int(writes.true_position[slot]), self.context.ended.get(writer, NEVER)
        # Who was not the owner wrote beside its row whoever came to read the slot later.
        later = held > wrote and not writes.foreign[slot]
        if writer <= TREE or later or int(writes.position[slot]) != position:
            return None
        if NEVER != ended < wrote:
            return None
        if writer == damage.victim:
            return self._over_its_own(damage, position, held)
        if int(self.state.owner[slot]) == writer or self._gave_it_back(slot, writer, wrote):
            return None
        row = self._row_of(writer)
        if row is None or self._was_queued_before(damage, row, position):
            return None
        there = self._named(row, position, before=wrote)
        if there in (0, slot) or not self._is_its_own(row, position, writer):
            return None
        return self._beside(damage, wrote, writer, row, (position, slot, there))

    def _over_its_own(self, damage: Damage, position: int, held: int) -> Cause | None:
        """The reader itself wrote another position than the one that its row names the slot at."""
        slot, row, wrote = damage.slot, damage.row, damage.writer_event()
        if position == damage.position or row < 0 or not NEVER < held < wrote:
            return None
        there = self._named(row, position, before=wrote)
        if there == slot:
            mine = self._is_its_own(row, damage.position, damage.victim)
            return self._named_twice(damage, position, held) if mine else None
        if self._was_queued_before(damage, row, damage.position):
            return None
        return self._beside(damage, wrote, damage.victim, row, (position, slot, there))

    def _named_twice(self, damage: Damage, position: int, held: int) -> Cause:
        """The reader's row names the slot at two positions, and what is in it is of one of them."""
        row, slot, name = damage.row, damage.slot, self.names.name(damage.victim)
        also = self.context.row(row).mapped_at(position)
        later = max(held, also)
        return Cause(
            cls="stale_mapping",
            subtype=CELLS_REWRITTEN,
            group=(damage.victim, row, self.context.row(row).maps_between(later)),
            cause_event=later,
            corrupting_event=damage.writer_event(),
            culprit=Culprit(req=name, step=None, event=later, details={"req_table_row": row}),
            ruled_out=[
                RuledOut("position_misalign", f"row {row} names slot {slot} for both positions")
            ],
            evidence=[
                f"row {row} names slot {slot} at position {damage.position} since event {held} and "
                f"at position {position} since event {also}",
                f"the forward at event {damage.writer_event()} wrote position {position} there",
            ],
        )

    def missed(self, damage: Damage) -> Cause | None:
        """The reader wrote the position, after its row had got the slot, and to another one."""
        if damage.row < 0 or damage.victim <= TREE or damage.kv_only or damage.pool_kind != "FULL":
            return None
        if damage.forward is not None and damage.row in damage.forward.row_as_read:
            return None
        position = damage.position
        held = self.context.row(damage.row).mapped_at(position)
        if held == NEVER or damage.came_event() > held or damage.mapped_slot != damage.slot:
            return None
        at = self._wrote(damage)
        wrote = NEVER if at is None else int(damage.writes.event[at])
        if at is None or wrote <= held:
            return None
        return self._beside(damage, wrote, damage.victim, damage.row, (position, at, damage.slot))

    def _wrote(self, damage: Damage) -> int | None:
        """The slot to which the reader's newest write of the damaged position went."""
        key = damage.worker, damage.victim, damage.event
        if self._written[0] != key:
            writes = damage.writes
            slots = np.flatnonzero((writes.req == damage.victim) & (writes.kind == BY_FORWARD))
            slots = slots[np.lexsort((writes.event[slots], writes.true_position[slots]))]
            self._written = key, writes.true_position[slots], slots
        _, positions, slots = self._written
        at = int(np.searchsorted(positions, damage.position, side="right")) - 1
        return int(slots[at]) if at >= 0 and int(positions[at]) == damage.position else None

    def anothers_row(self, damage: Damage) -> Cause | None:
        """The batch named a row that was set up for another; the reader's own row is sound."""
        if damage.row < 0 or damage.victim <= TREE or damage.kv_only or damage.pool_kind != "FULL":
            return None
        facts, victim, position = self.context.row(damage.row), damage.victim, damage.position
        since = next((at for req, at in reversed(facts.ran) if req == victim), NEVER)
        theirs = self._set_up_for(damage, since)
        if theirs is None:
            return None
        # What was found once holds: the reader's own row may go to another while it reads here.
        place = victim, damage.row, since
        own = self.context.misread.get(place)
        if own is None:
            left = self._had_it_since(damage)
            rows = self._sound_rows(damage, since)
            own = next((r for r in rows if self.context.row(r).mapped_at(position) > left), None)
        if own is None:
            return None
        self.context.misread[place] = own
        name, tenant = self.names.name(victim), self.names.name(theirs)
        return Cause(
            cls="stale_mapping",
            subtype=ANOTHERS_ROW,
            cause_event=since,
            corrupting_event=since,
            culprit=Culprit(
                req=name,
                step=damage.step if since == damage.event else None,
                event=since,
                details={"req_table_row": damage.row},
            ),
            ruled_out=[
                RuledOut("use_after_free", f"row {own} of {name} names slots with its content")
            ],
            # Rows that one batch exchanged are one fault: each of its requests is named.
            of_reader=(
                name or "",
                (
                    f"the forward at event {since} names row {damage.row} for {name}; its cells "
                    f"were set for {tenant} at event {self.held_since(damage)}",
                    f"row {own} names the slot with position {position} of {name}",
                ),
            ),
        )

    def _had_it_since(self, damage: Damage) -> int:
        """When the reader got the row that it reads through, if it had it before others did.

        A row that it had before that is not its own any more.
        """
        facts = self.context.row(damage.row)
        got = self._tenancies.newest(facts, self.held_since(damage))
        before = None if got is None else self._tenancies.before(facts, got)
        return NEVER if before is None or before.req != damage.victim else before.event

    def _set_up_for(self, damage: Damage, since: int) -> int | None:
        """Whom the cell that led to the damage was set for, if not for its reader.

        Args:
            damage: The damage.
            since: First forward of the reader in that row.
        """
        facts, held, slot = self.context.row(damage.row), self.held_since(damage), damage.slot
        if not NEVER < held < since:
            return None
        whose = next((fact.owner for fact in facts.maps if fact.event == held), NOBODY)
        before = [req for req, at in facts.ran if at < since]
        if whose <= TREE and before and not self._gave_the_row_back(facts, before[-1], held):
            # The last of the cells may be the prefix cache's: then who ran there tells.
            whose = before[-1]
        if whose <= TREE or whose == damage.victim:
            return None
        gone = self.context.ended.get(whose, NEVER)
        if facts.released_event > held:
            gone = max(gone, facts.released_event)
        if gone != NEVER:
            return whose if held < gone else None
        has = whose in (int(self.state.owner[slot]), int(damage.writes.req[slot]))
        return whose if has or self.context.matched(whose, slot) is not None else None

    @staticmethod
    def _gave_the_row_back(facts: RowFacts, req: int, before: int) -> bool:
        """Whether ``req`` had given its row back when a cell was set at event ``before``."""
        ran = max((at for who, at in facts.ran if who == req), default=NEVER)
        return facts.released_by == req and ran < facts.released_event < before

    def _sound_rows(self, damage: Damage, before: int) -> Iterator[int]:
        """Rows that are the reader's by then, and that lead to its content."""
        writes, victim, position = damage.writes, damage.victim, damage.position
        for row in self._rows_of(victim, before):
            slot = self.now.cell(None, row, position)
            if row == damage.row or slot <= 0 or self._has_left(victim, row):
                continue
            mine = int(writes.req[slot]) == victim
            match = None if mine else self.context.matched(victim, slot)
            matched = match is not None and match.position(slot) == position
            if matched or (mine and int(writes.true_position[slot]) == position):
                yield row

    def _has_left(self, req: int, row: int) -> bool:
        """Whether ``req`` gave the row back, and neither ran in it nor had it set since."""
        facts = self.context.row(row)
        gone = facts.released_event
        if gone == NEVER or facts.released_by != req:
            return False
        ran = any(who == req and at > gone for who, at in facts.ran)
        return not ran and all(fact.owner != req or fact.event < gone for fact in facts.maps)

    def _rows_of(self, victim: int, before: int) -> list[int]:
        """Rows that ``victim`` ran in before an event, or that were last set for it before."""
        if self._rows[0] != (victim, before):
            table = self.context.table
            ran = (table.ran[:, :, 0] == victim) & (table.ran[:, :, 1] < before)
            rows = np.flatnonzero(ran.any(axis=1)).tolist()
            for row in np.flatnonzero(table.heads != END).tolist():
                event, _start, _stop, owner = next(table.newest_first(row))
                if owner == victim and event < before and row not in rows:
                    rows.append(row)
            self._rows = (victim, before), rows
        return self._rows[1]

    def _is_written_by_forward(self, damage: Damage) -> bool:
        # A verified node stands in the next cell of its row, wherever its tree puts it.
        kind = int(damage.writes.kind[damage.slot])
        return damage.pool_kind == "FULL" and not damage.kv_only and kind == BY_FORWARD

    def _gave_it_back(self, slot: int, writer: int, wrote: int) -> bool:
        """Whether the writer had had the slot and given it back: its write only came late."""
        state = self.state
        freed = int(state.free_event[slot])
        by_it = freed != NEVER and freed < wrote and int(state.free_by[slot]) == writer
        last = int(state.last_owner[slot]) == writer and int(state.owner[slot]) == FREE
        return by_it or last

    def _row_of(self, writer: int) -> int | None:
        """The row that ``writer`` ran in last, if nobody else has run in it since."""
        rows = np.flatnonzero(self.context.table.tenants == writer).tolist()
        return max(rows, key=lambda row: self.context.row(row).ran[-1][1], default=None)

    def _is_its_own(self, row: int, position: int, writer: int) -> bool:
        """Whether a cell was set while the row was the writer's, not that of who got it since."""
        facts = self.context.row(row)
        got = self._tenancies.newest(facts, facts.mapped_at(position))
        return got is None or got.req == writer

    def _named(self, row: int, position: int, *, before: int) -> int:
        """What a row named at ``position`` at event ``before``, 0 = that is not known."""
        facts = self.context.row(row)
        if facts.mapped_at(position) in range(NEVER + 1, before):
            return self.now.cell(None, row, position)
        return 0

    def _was_queued_before(self, damage: Damage, row: int, position: int) -> bool:
        """Whether the write had been queued when the cell was set."""
        writes, slot = damage.writes, damage.slot
        queued = self.context.launches.get((int(writes.req[slot]), int(writes.step[slot])), NEVER)
        return queued != NEVER and self.context.row(row).mapped_at(position) > queued

    def _beside(
        self, damage: Damage, wrote: int, writer: int, row: int, place: tuple[int, int, int]
    ) -> Cause:
        """``place``: position, the slot that it was written to, and the one that the row names."""
        position, slot, there = place
        name, writes, facts = self.names.name(writer), damage.writes, self.context.row(row)
        step = int(writes.step[slot])
        its_row = (
            f"its row {row} named slot {there} there, set at event {facts.mapped_at(position)}"
            if there
            else f"its row {row} named that slot at position {damage.position}"
        )
        return Cause(
            cls="stale_mapping",
            subtype=WRITTEN_BESIDE_ROW,
            cause_event=wrote,
            corrupting_event=wrote,
            culprit=Culprit(
                req=name,
                step=None if step == NOBODY else step,
                event=wrote,
                details={"req_table_row": row},
            ),
            ruled_out=[
                RuledOut(
                    "late_write",
                    f"{name} had not given slot {slot} back"
                    if there
                    else f"slot {slot} was {name}'s when it wrote",
                )
            ],
            evidence=[
                f"the forward at event {wrote} wrote position {position} of {name} to slot {slot}; "
                f"{its_row}",
            ],
        )
