"""The batch and the request table disagree: a forward wrote, or read, beside its own row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvcanary_cli.attribution.damage import Cause, Damage
from kvcanary_cli.attribution.ledger import BY_FORWARD, FREE, NEVER, NOBODY, TREE
from kvcanary_cli.attribution.result import Culprit, RuledOut
from kvcanary_cli.attribution.rules.facts import Facts
from kvcanary_cli.attribution.rules.index import CELLS_REWRITTEN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

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

    def overwritten(self, damage: Damage) -> Cause | None:
        """The last writer's own row names another slot for what it wrote here."""
        writes, slot, wrote = damage.writes, damage.slot, damage.writer_event()
        if not self._is_written_by_forward(damage) or wrote != damage.came_event():
            return None
        held, writer = self.held_since(damage), int(writes.req[slot])
        position, ended = int(writes.true_position[slot]), self.context.ended.get(writer, NEVER)
        if writer <= TREE or held > wrote or int(writes.position[slot]) != position:
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
        if there in (0, slot):
            return None
        return self._beside(damage, wrote, writer, row, (position, slot, there))

    def _over_its_own(self, damage: Damage, position: int, held: int) -> Cause | None:
        """The reader itself wrote another position than the one that its row names the slot at."""
        slot, row, wrote = damage.slot, damage.row, damage.writer_event()
        if position == damage.position or row < 0 or held == NEVER:
            return None
        there = self._named(row, position, before=wrote)
        if there == slot:
            return self._named_twice(damage, position, held)
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
        """The batch named the row of a request that still runs; the reader's own row is sound."""
        if damage.row < 0 or damage.victim <= TREE or damage.kv_only or damage.pool_kind != "FULL":
            return None
        facts, victim, position = self.context.row(damage.row), damage.victim, damage.position
        ran, held = facts.ran, self.held_since(damage)
        came = next((k for k in reversed(range(len(ran))) if ran[k][0] == victim), None)
        if not came or NEVER != held > ran[came][1]:
            return None
        tenant, since = ran[came - 1][0], ran[came][1]
        if tenant in self.context.ended or facts.released_event > ran[came - 1][1]:
            return None
        own = next(self._sound_rows(damage, since), None)
        if own is None:
            return None
        name, theirs = self.names.name(victim), self.names.name(tenant)
        return Cause(
            cls="stale_mapping",
            subtype=ANOTHERS_ROW,
            group=(victim, damage.row, since),
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
            evidence=[
                f"the forward at event {since} names row {damage.row} for {name}; that row is "
                f"{theirs}'s, which has not given it back",
                f"row {own} names the slot with position {position} of {name}",
            ],
        )

    def _sound_rows(self, damage: Damage, before: int) -> Iterator[int]:
        """Rows that the reader ran in before, and that lead to its content."""
        writes, victim, position = damage.writes, damage.victim, damage.position
        table = self.context.table
        here = (table.ran[:, :, 0] == victim) & (table.ran[:, :, 1] < before)
        for row in np.flatnonzero(here.any(axis=1)).tolist():
            if row == damage.row:
                continue
            slot = self.now.cell(None, row, position)
            mine = slot > 0 and int(writes.req[slot]) == victim
            match = None if mine or slot <= 0 else self.context.matched(victim, slot)
            matched = match is not None and match.position(slot) == position
            if matched or (mine and int(writes.true_position[slot]) == position):
                yield row

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
