"""Index facts: the data is healthy, what leads to it is not."""

from __future__ import annotations

from kvcanary_cli.attribution.damage import Cause, Damage, at_event, event_or_none
from kvcanary_cli.attribution.ledger import (
    BY_COPY,
    BY_VERIFY,
    NEVER,
    NOBODY,
    TREE,
)
from kvcanary_cli.attribution.result import CERTAIN, POSSIBLE, PROBABLE, Culprit, RuledOut
from kvcanary_cli.attribution.rules.facts import Facts

CELL_NOT_MAPPED = "cell_not_mapped"
CELLS_REWRITTEN = "cells_rewritten"
ROW_NOT_AS_READ = "row_not_as_read"


class IndexFacts(Facts):
    """Translation, speculation and cells of the request table."""

    def unmapped_cell(self, damage: Damage) -> Cause | None:
        """The row never got a slot for a position of its prefix."""
        if not damage.unmapped:
            return None
        writes, slot, row = damage.writes, damage.slot, damage.row
        wrote = int(writes.true_position[slot]) == damage.position
        victim, at = self.names.name(damage.victim), damage.position
        event = damage.writer_event() if wrote else damage.event
        return Cause(
            cls="stale_mapping",
            subtype=CELL_NOT_MAPPED,
            group=(damage.victim, row, at),
            cause_event=event,
            corrupting_event=event,
            culprit=Culprit(
                req=victim,
                step=int(writes.step[slot]) if wrote else damage.step,
                event=event,
                details={"req_table_row": row},
            ),
            ruled_out=[RuledOut("use_after_free", "the row names no slot at that position")],
            evidence=[
                f"cell {at} of row {row} was not set when event {damage.event} read up to it",
                f"event {event} wrote position {at} of {victim} to slot {slot}"
                if wrote
                else f"no slot that {victim} owns was written for position {at}",
            ],
        )

    def bad_translation(self, damage: Damage) -> Cause | None:
        if damage.pool_kind != "SWA":
            return None
        writes, slot = damage.writes, damage.slot
        wrote, full = damage.came_event(), damage.full_slot
        if writes.foreign[slot]:
            meant = int(writes.batch_row[slot])
            return self._mislanded(damage, meant, wrote, self.writer(damage))
        if damage.kv_only:
            # The row is the right one, only its bytes changed: the translation led there rightly.
            return None
        if damage.full_writes is not None and full > 0:
            written = int(damage.full_writes.event[full])
            changed = self.context.lut_event.get(full, NEVER)
            if changed != NEVER and changed < written and wrote < written:
                culprit = self.writer_of(damage.full_writes, full)
                return self._mislanded(damage, full, written, culprit)
        changed = self.context.lut_event.get(full, NEVER)
        after = changed != NEVER and changed > wrote
        other = int(writes.batch_row[slot])
        shared = self.context.lut_event.get(other, NEVER)
        if not after and 0 < full != other > 0 and NEVER != changed < shared < wrote:
            return self._shared(damage, other, shared, wrote)
        return Cause(
            cls="bad_translation",
            subtype="stale_lut",
            cause_event=event_or_none(changed if after else wrote),
            corrupting_event=event_or_none(changed if after else wrote),
            culprit=self.writer(damage),
            ruled_out=[
                RuledOut("use_after_free", "the full-pool lane is clean at the same positions")
            ],
            confidence=CERTAIN if after else PROBABLE,
            evidence=[
                f"event {changed} translates full slot {full} to SWA slot {slot}, which was "
                f"written for another {at_event(wrote)}"
                if after
                else "only the SWA lane fails",
            ],
        )

    def _shared(self, damage: Damage, other: int, shared: int, wrote: int) -> Cause:
        """Event ``shared`` translated full slot ``other`` to a SWA slot that was in use."""
        slot, full = damage.slot, damage.full_slot
        return Cause(
            cls="bad_translation",
            subtype="shared_swa_slot",
            cause_event=shared,
            corrupting_event=event_or_none(wrote),
            culprit=self.writer(damage),
            ruled_out=[
                RuledOut("use_after_free", "the full-pool lane is clean at the same positions")
            ],
            evidence=[
                f"event {shared} translates full slot {other} to SWA slot {slot}, which full slot "
                f"{full} is translated to since event {self.context.lut_event[full]}",
                f"{self.names.name(int(damage.writes.req[slot]))} wrote it at event {wrote}",
            ],
        )

    def _mislanded(self, damage: Damage, full: int, wrote: int, culprit: Culprit) -> Cause:
        """Event ``wrote`` wrote full slot ``full`` to a SWA slot that the table does not say."""
        changed = self.context.lut_event.get(full, NEVER)
        # What the table said when the write landed is not kept where it was changed since.
        said = changed if changed <= wrote else wrote
        return Cause(
            cls="bad_translation",
            subtype="stale_translation_cache",
            cause_event=event_or_none(said),
            corrupting_event=event_or_none(wrote),
            culprit=culprit,
            ruled_out=[
                RuledOut("use_after_free", "the full-pool lane is clean at the same positions")
            ],
            evidence=[
                f"event {wrote} wrote full slot {full} to a SWA slot that the table does not say",
                f"SWA slot {damage.slot} is read at position {damage.position}",
            ],
        )

    def spec_commit(self, damage: Damage) -> Cause | None:
        writes, slot = damage.writes, damage.slot
        whose = int(writes.req[slot])
        own = whose == damage.victim
        if damage.kv_only:
            # The row is that of an accepted node, in its place: only its bytes changed.
            return None
        if writes.kind[slot] != BY_VERIFY or not (own or self.published_draft(damage)):
            return None
        accept = self.context.accepts.get(whose)
        if accept is None or accept.event < damage.writer_event():
            return None
        if own and damage.row >= 0 and self.held_since(damage) > accept.event:
            # Cells that were set since name other slots: the accepted path is not to blame.
            return None
        if int(writes.position[slot]) != int(writes.true_position[slot]) == damage.position:
            # The verified rows stood at other positions than their tree says.
            return None
        step = int(writes.step[slot])
        kept = damage.stored_token not in accept.tokens
        # Nodes are accepted from the first one on: what lies behind them was never committed.
        verified = (writes.event == damage.writer_event()) & (writes.req == whose)
        end = int(writes.true_position[verified].min()) + len(accept.nodes)
        too_long = end <= damage.position < (accept.committed_len or 0)
        return Cause(
            cls="spec_commit",
            subtype="committed_len_too_high" if too_long else "accepted_path_not_compacted",
            cause_event=accept.event,
            corrupting_event=accept.event,
            culprit=Culprit(req=self.names.name(whose), step=step, event=accept.event),
            ruled_out=[
                RuledOut("position_misalign", "the draft's positions followed its tree"),
            ],
            evidence=[
                f"accept at event {accept.event} committed nodes {list(accept.nodes)}",
                *(
                    [f"its committed_len is {accept.committed_len}; its nodes end at {end}"]
                    if too_long
                    else []
                ),
                f"slot {slot} still holds a rejected draft token"
                if kept
                else f"slot {slot} holds the token of another position",
            ],
            rests_on={"transfer": POSSIBLE},
        )

    def rejected_moved(self, damage: Damage) -> Cause | None:
        """A copy of the accepted path took a rejected node, which verification had written."""
        writes, slot, victim = damage.writes, damage.slot, damage.victim
        if writes.kind[slot] != BY_COPY or int(writes.req[slot]) != victim or damage.kv_only:
            return None
        accept, wrote = self.context.accepts.get(victim), damage.writer_event()
        before = int(writes.before_event[slot])
        if accept is None or not NEVER < before < accept.event < wrote:
            return None
        copy = self.context.copies.get(wrote)
        if copy is None or copy.via != "d2d" or not copy.canary:
            return None
        mine = int(writes.before_req[slot]) == victim
        cargo = self.context.cargos.at(wrote)
        entry = None if cargo is None else cargo.entry(slot)
        if cargo is not None and entry is not None:
            # What another request had written is no node of this one's draft.
            mine &= int(cargo.writers[entry]) in (victim, NOBODY)
        if not mine or damage.stored_token in accept.tokens or self.held_since(damage) > wrote:
            return None
        return Cause(
            cls="spec_commit",
            subtype="rejected_node_moved",
            cause_event=wrote,
            corrupting_event=wrote,
            culprit=self.writer(damage),
            ruled_out=[
                RuledOut("transfer_mismatch", f"the copy moves what event {accept.event} accepted"),
            ],
            evidence=[
                f"accept at event {accept.event} committed nodes {list(accept.nodes)}",
                f"the copy at event {wrote} put token {damage.stored_token} into slot {slot}, "
                "which is none of the accepted ones",
            ],
        )

    def anothers_slot(self, damage: Damage) -> Cause | None:
        """The cell was set to a slot that another request had: what is in it is that one's."""
        if damage.row < 0 or damage.kv_only or damage.pool_kind != "FULL":
            return None
        held, slot = self.held_since(damage), damage.slot
        since, wrote = int(self.state.since[slot]), damage.came_event()
        if held == NEVER or not self.is_anothers(damage) or not NEVER < since < held:
            return None
        owner = self.names.name(int(self.state.owner[slot]))
        cause = self._cells(damage, held)
        cause.rests_on = {"prefix": PROBABLE}
        cause.ruled_out = [
            RuledOut("use_after_free", f"slot {slot} was {owner}'s already when the cell was set")
        ]
        cause.evidence[1] = f"slot {slot} belongs to {owner} since event {since}"
        if wrote < int(self.state.alloc_event[slot]):
            cause.ruled_out.append(
                RuledOut("unwritten_read", f"that {owner} had not written its slot is no fault")
            )
        else:
            cause.evidence[1] += f" and holds what came there {at_event(wrote)}"
        return cause

    def other_row_seen(self, damage: Damage) -> Cause | None:
        """The forward saw another slot in a cell than the one with the reader's content."""
        slot, there, row = damage.slot, damage.mapped_slot, damage.row
        if damage.kv_only or damage.pool_kind != "FULL" or there <= 0 or there == slot:
            return None
        writes, position = damage.writes, damage.position
        own = int(writes.req[there]) == damage.victim
        match = self.context.matched(damage.victim, there)
        if own and int(writes.true_position[there]) != position:
            return None
        if not own and (match is None or match.position(there) != position):
            return None
        victim = self.names.name(damage.victim)
        held = self.context.row(row).mapped_at(position)
        return Cause(
            cls="stale_mapping",
            subtype=ROW_NOT_AS_READ,
            group=(damage.victim, row, damage.event),
            cause_event=event_or_none(held),
            corrupting_event=damage.event,
            culprit=Culprit(
                req=victim,
                step=damage.step,
                event=damage.event,
                details={"req_table_row": row},
            ),
            ruled_out=[RuledOut("use_after_free", f"slot {there} holds the reader's content")],
            evidence=[
                f"the forward at event {damage.event} saw slot {slot} in cell {position} of row "
                f"{row}; the table names slot {there} there, set {at_event(held)}",
                f"slot {there} holds position {position} of {victim}",
            ],
        )

    def moved_cells(self, damage: Damage) -> Cause | None:
        """Healthy content, reached through a cell that does not lead to it."""
        if damage.row < 0 or damage.kv_only:
            return None
        held = self.held_since(damage)
        if held == NEVER or held < damage.came_event():
            return None
        cause = self._cells(damage, held)
        behind = damage.expected_token is None
        if behind or int(self.state.owner[damage.slot]) == damage.victim:
            # A copy may have put what is read there; nobody moves what is shared. Where only what
            # follows the slot differs, it may have brought what that followed before.
            cause.rests_on = {"transfer": POSSIBLE}
        return cause

    def cell_set_behind_copy(self, damage: Damage) -> Cause | None:
        """A copy brought what the row names, and the cell was set to another slot of it since."""
        if damage.writes.kind[damage.slot] != BY_COPY:
            return None
        sound = self.read_sound_since_it_came(damage)
        cause = self.moved_cells(damage)
        if cause is None or not (sound or self._set_before(damage) or self._shown(damage)):
            return None
        cause.ruled_out.append(RuledOut("transfer_mismatch", self._not_the_copy(damage, sound)))
        if not sound:
            cause.confidence = PROBABLE
        return cause

    def _not_the_copy(self, damage: Damage, sound: bool) -> str:
        wrote, slot = damage.writer_event(), damage.slot
        if sound:
            return (
                f"what the copy at event {wrote} brought was sound when event "
                f"{damage.writes.sound_read(slot)} read slot {slot}"
            )
        if self._shown(damage):
            return f"what the copy at event {wrote} brought is what a match served from slot {slot}"
        return f"the cell had been set before; it was set anew behind the copy at event {wrote}"

    def _shown(self, damage: Damage) -> bool:
        """Whether a match served the slot to somebody at the position that it holds."""
        slot, position = damage.slot, damage.stored_position
        return any(
            fact.event > damage.came_event()
            and slot in fact
            and fact.position(slot) == position != damage.position
            and self.now.token(req, position) == damage.stored_token
            for req, facts in self.context.matches.items()
            for fact in facts
        )

    def _set_before(self, damage: Damage) -> bool:
        """Whether the cell had been set for the reader already, while it was in the row."""
        row, held = self.context.row(damage.row), self.held_since(damage)
        match = self.context.matched(damage.victim, damage.slot)
        # What a match gave is the cache's still.
        served = held if match is None else match.event
        return any(
            (fact.owner == damage.victim or (fact.owner == TREE and served < fact.event))
            and fact.start <= damage.position < fact.stop
            for fact in row.maps
            if row.released_event < fact.event < held
        )

    def _cells(self, damage: Damage, held: int) -> Cause:
        victim, slot = self.names.name(damage.victim), damage.slot
        nothing = damage.came_event() == NEVER
        return Cause(
            cls="stale_mapping",
            subtype=CELLS_REWRITTEN,
            group=(damage.victim, damage.row, self.context.row(damage.row).maps_between(held)),
            cause_event=held,
            corrupting_event=held,
            culprit=Culprit(
                req=victim, step=None, event=held, details={"req_table_row": damage.row}
            ),
            ruled_out=[
                RuledOut("use_after_free", f"slot {slot} was not written since its mapping")
            ],
            evidence=[
                f"cell {damage.position} of row {damage.row} was set at event {held}",
                f"no write of slot {slot} is recorded"
                if nothing
                else f"slot {slot} holds position {damage.stored_position}, written before that",
            ],
        )
