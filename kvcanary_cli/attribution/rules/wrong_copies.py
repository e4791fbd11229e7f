"""Copies that wrote slots which were not theirs, though nothing had changed hands meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcanary_cli.attribution.damage import Cause, Damage, at_event
from kvcanary_cli.attribution.ledger import BY_COPY, FREE, NEVER, NOBODY, TREE, UNKNOWN
from kvcanary_cli.attribution.result import CERTAIN, PROBABLE, RuledOut
from kvcanary_cli.attribution.rules.facts import Facts
from kvcanary_cli.backends.cpu.event_state import NO_ROW

if TYPE_CHECKING:
    from kvcanary_cli.attribution.context import CopyFact


class WrongCopies(Facts):
    """A wrong destination, and a queued write through a row with another tenant."""

    def wrong_pages(self, damage: Damage) -> Cause | None:
        """A copy wrote slots that its request never had, and did not lose while it ran."""
        writes, slot, state = damage.writes, damage.slot, self.state
        if writes.kind[slot] != BY_COPY or damage.pool_kind != "FULL":
            return None
        if writes.req[slot] == NOBODY:
            return self._of_nobody(damage)
        if not writes.foreign[slot]:
            return None
        wrote, owner = damage.writer_event(), int(state.owner[slot])
        writer, copy = int(writes.req[slot]), self.context.copies.get(wrote)
        if writer in (UNKNOWN, NOBODY) or owner == UNKNOWN or copy is None:
            return None
        if copy.via == "flush" and copy.via_row is not None:
            return self._late_flush(damage, copy, writer)
        if self._changed_hands(slot, copy.begun_event) or self._claims(slot, writer):
            return None
        # Whatever was before the begin of the copy did not race with it.
        before = copy.begun_event != NEVER and int(writes.before_event[slot]) < copy.begun_event
        had = self._had_it(slot, writer)
        if had and (not before or self._for_the_lost(copy, slot, writer)):
            return None
        name, since = self.who(writer), int(state.since[slot])
        whose = self.who(owner)
        # Only the last tenants are known: an earlier one's copy may be under way for long.
        first = int(state.free_event[slot]) == NEVER or copy.begun_event != NEVER
        return Cause(
            cls="transfer_mismatch",
            subtype="wrong_pages",
            cause_event=wrote,
            corrupting_event=wrote,
            culprit=self.writer(
                damage, **({} if copy.transfer is None else {"transfer": copy.transfer})
            ),
            confidence=CERTAIN if first and since != NEVER else PROBABLE,
            ruled_out=[
                RuledOut(
                    "transfer_race",
                    f"slot {slot} was free, and {name} had not given it back"
                    if owner == FREE
                    else f"{whose} had slot {slot} all the time since it got it"
                    if not had
                    else f"{whose} had slot {slot} when the copy began at event "
                    f"{copy.begun_event}, and did not lose or write it since",
                )
            ],
            evidence=[
                f"the copy at event {wrote} for {name} wrote slot {slot}, which "
                + ("is free" if owner == FREE else f"{whose} owns")
                + f" since {at_event(since).removeprefix('at ')}",
            ],
        )

    def _of_nobody(self, damage: Damage) -> Cause | None:
        """A copy that names nobody wrote over content, while other slots waited for theirs."""
        slot, wrote = damage.slot, damage.writer_event()
        cargo = self.context.cargos.at(wrote)
        entry = None if cargo is None else cargo.entry(slot)
        if cargo is None or entry is None or cargo.reqs or not cargo.over[entry]:
            return None
        if not len(cargo.waiting):
            return None
        whose = self.who(int(cargo.owners[entry]))
        first, count = int(cargo.waiting[0]), len(cargo.waiting)
        waited = f"{count} slots of the prefix cache, from slot {first} on,"
        return Cause(
            cls="transfer_mismatch",
            subtype="wrong_pages",
            cause_event=wrote,
            corrupting_event=wrote,
            culprit=self.writer(damage),
            confidence=PROBABLE,
            ruled_out=[RuledOut("transfer_race", f"{waited} waited for what a copy was to bring")],
            evidence=[
                f"the copy at event {wrote} names nobody that it was made for; it wrote slot "
                f"{slot}, which {whose} had filled",
                f"{waited} were empty since the cache was given them, and got nothing then",
            ],
        )

    def _had_it(self, slot: int, writer: int) -> bool:
        """Whether the writer had the slot, as far back as the ledger knows: it came too late."""
        state = self.state
        freed, bad = int(state.free_event[slot]), int(state.bad_event[slot])
        if freed not in (NEVER, bad) and int(state.free_by[slot]) == writer:
            return True
        return int(state.owner[slot]) == TREE and int(state.last_owner[slot]) == writer

    def _for_the_lost(self, copy: CopyFact, slot: int, writer: int) -> bool:
        """Whether the transfer was set up for a slot that its request had given back, and left."""
        window = None if copy.transfer is None else self.context.window(copy.transfer)
        freed = int(self.state.free_event[slot])
        got = self.now.follower.rules.last_alloc.get(writer, NEVER)
        if window is None or slot not in window.slots or got > freed:
            return False
        return int(self.state.free_by[slot]) == writer

    def _claims(self, slot: int, writer: int) -> bool:
        """Whether a broken rule left the slot with more holders than one, the writer among them."""
        state = self.state
        return int(state.bad_event[slot]) != NEVER and state.custody.holds(slot, writer)

    def _changed_hands(self, slot: int, begun: int) -> bool:
        """Whether somebody was given the slot while the copy ran."""
        return NEVER != begun < int(self.state.since[slot])

    def _late_flush(self, damage: Damage, copy: CopyFact, writer: int) -> Cause | None:
        """Queued content was written through a row that somebody else had taken over."""
        slot, wrote = damage.slot, copy.event
        row = self.context.row(copy.via_row or 0)
        name, tenant = self.names.name(writer), self.names.name(row.tenant)
        if row.tenant in (writer, NOBODY, NO_ROW):
            return None
        released = row.released_event if row.released_by == writer else NEVER
        if released > wrote:
            released = NEVER
        return Cause(
            cls="late_write",
            subtype="deferred_flush_through_reused_row",
            cause_event=wrote if released == NEVER else released,
            corrupting_event=wrote,
            culprit=self.writer(damage, req_table_row=row.row),
            ruled_out=[
                RuledOut("transfer_race", f"slot {slot} did not change hands; row {row.row} did")
            ],
            confidence=PROBABLE if released == NEVER else CERTAIN,
            evidence=[
                f"row {row.row} was released by {name} at event {released}"
                if released != NEVER
                else f"no release of row {row.row} by {name} is recorded",
                f"{tenant} ran in row {row.row} when the flush at event {wrote} looked slot {slot} "
                f"up there for {name}",
            ],
        )
