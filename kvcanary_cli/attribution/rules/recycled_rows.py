"""Rows of the request table that went to another request while the one before still used them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvcanary_cli.attribution.damage import Cause, Damage
from kvcanary_cli.attribution.ledger import NEVER, NOBODY, TREE
from kvcanary_cli.attribution.result import CERTAIN, PROBABLE, Culprit, RuledOut
from kvcanary_cli.attribution.rules.facts import Facts

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcanary_cli.attribution.context import MapFact, RowFacts
    from kvcanary_cli.attribution.rules.row_tenancies import RowTenancies, Tenancy

RECYCLED = "row_recycled_in_flight"


class RecycledRows(Facts):
    """Two requests in one row: either reads what was set for the other one."""

    def __init__(self, tenancies: RowTenancies, *facts: Any) -> None:
        super().__init__(*facts)
        self._tenancies = tenancies

    @property
    def rules(self) -> tuple[Callable[[Damage], Cause | None], ...]:
        """In their order of precedence."""
        return (self.released, self.taken, self.begun)

    def released(self, damage: Damage) -> Cause | None:
        """The row was given to another request while the work of the one before still used it."""
        if damage.row < 0 or damage.victim == TREE:
            return None
        facts = self.context.row(damage.row)
        released = facts.released_event
        if released == NEVER:
            return None
        fact = facts.fact_after(released)
        writer = int(damage.writes.req[damage.slot])
        if fact is None:
            return None
        # A retracted request, or a new one of its name, may get the row anew and put its own slots
        # there; what is still under way of one that lost its row sets no cells.
        again = any(f.owner == damage.victim and f.event > released for f in facts.maps)
        if facts.released_by != damage.victim or writer == damage.victim or again:
            return self._shared_row(damage, released, fact)
        # The row's new tenant; what it shares with others was written by them.
        taker = facts.taker(damage.victim, released)
        if fact.owner > TREE and fact.owner != damage.victim:
            taker = fact.owner
        elif taker == NOBODY:
            got = self._tenancies.newest(facts, fact.event)
            taker = writer if got is None or got.req == damage.victim else got.req
        return self._recycled(damage, released, fact.event, taker)

    def taken(self, damage: Damage) -> Cause | None:
        """Another request runs in the reader's row, with its own slots there; none released it."""
        if damage.row < 0 or damage.victim == TREE or damage.kv_only:
            return None
        held, slot = self.held_since(damage), damage.slot
        if held == NEVER or damage.pool_kind != "FULL":
            return None
        facts = self.context.row(damage.row)
        taker = facts.taker(damage.victim, held)
        # What the taker shares with others came with slots of its own.
        whose = {int(self.state.owner[slot]), int(damage.writes.req[slot])}
        whose |= {fact.owner for fact in facts.maps if fact.event == held}
        ran = max(
            (at for req, at in facts.ran if req == damage.victim and at < held), default=NEVER
        )
        if (
            taker == NOBODY
            or taker not in whose
            or ran == NEVER
            or (facts.released_by == damage.victim and ran < facts.released_event < held)
        ):
            return None
        first, name = facts.maps_between(held), self.names.name(taker)
        return Cause(
            cls="stale_mapping",
            subtype=RECYCLED,
            group=(damage.victim, damage.row, first),
            cause_event=first,
            corrupting_event=held,
            culprit=Culprit(req=name, step=None, event=held, details={"req_table_row": damage.row}),
            ruled_out=[
                RuledOut("use_after_free", "what the reader's row names moved, not its data")
            ],
            evidence=[
                f"cell {damage.position} of row {damage.row} was set to slot {slot} at event "
                f"{held}, for {name}, which ran in that row next",
                *([] if facts.released_event > ran else ["the reader had not released the row"]),
            ],
        )

    def _shared_row(self, damage: Damage, released: int, fact: MapFact) -> Cause | None:
        """Two requests run in the row: either reads what the other one mapped."""
        facts = self.context.row(damage.row)
        here = {req for req, at in facts.ran if at > released}
        both = facts.released_by in here and len(here) > 1
        known = self.context.recycled.get((damage.row, NEVER)) == released
        if damage.victim not in here or damage.kv_only or not (both or known):
            return None
        if damage.victim == facts.released_by and self.held_since(damage) <= released:
            return None
        taker = fact.owner if fact.owner in here else facts.taker(facts.released_by, released)
        return self._recycled(damage, released, fact.event, taker)

    def _recycled(self, damage: Damage, released: int, remapped: int, taker: int) -> Cause:
        self.context.recycled[damage.row, NEVER] = released
        self.context.recycled[damage.row, remapped] = released
        return Cause(
            cls="stale_mapping",
            subtype=RECYCLED,
            cause_event=released,
            corrupting_event=remapped,
            culprit=Culprit(
                req=self.names.name(taker),
                step=None,
                event=remapped,
                details={"req_table_row": damage.row},
            ),
            ruled_out=[
                RuledOut("use_after_free", "what the reader's row names moved, not its data")
            ],
            evidence=[
                f"row {damage.row} released at event {released}, remapped at {remapped}",
                "the slots it names now are intact",
            ],
        )

    def begun(self, damage: Damage) -> Cause | None:
        """Another request began in the row while the reader, or the one before it, ran there.

        Who lost its row goes on to set cells in it, so that the newest of them tell nothing.
        """
        held, came = self.held_since(damage), damage.came_event()
        if damage.row < 0 or damage.victim <= TREE or held == NEVER:
            return None
        if damage.pool_kind != "FULL" or (damage.kv_only and came != damage.event):
            return None
        facts, victim = self.context.row(damage.row), damage.victim
        begin = self._tenancies.newest(facts, held)
        if begin is None or (came > held and int(self.state.owner[damage.slot]) == victim):
            return None
        if not begin.sure and not int(self.state.alloc_event[damage.slot]) <= came <= held:
            # What was sound when the cells were set says nothing against them.
            return None
        before = self._tenancies.before(facts, begin)
        if before is None or before.req == begin.req or victim not in (before.req, begin.req):
            return None
        if victim == begin.req and not self._goes_on(facts, before.req, begin.event, held):
            return None
        newest = self._tenancies.newest(facts, damage.event)
        if newest is not None and newest.req == victim == before.req:
            # It got the row anew: what stands there from before is no content that it set.
            return None
        return self._begun(damage, begin, before)

    def _begun(self, damage: Damage, begin: Tenancy, before: Tenancy) -> Cause:
        """``before``: who had the row before ``begin``, and since when."""
        row, released = damage.row, self.context.row(damage.row).released_event
        known = self.context.recycled.get((row, begin.event))
        given = before.event < released < begin.event
        cause = known or (released if given else begin.event)
        self.context.recycled[row, begin.event] = cause
        name, loser = self.names.name(begin.req), self.names.name(before.req)
        return Cause(
            cls="stale_mapping",
            subtype=RECYCLED,
            cause_event=cause,
            corrupting_event=begin.event,
            culprit=Culprit(req=name, step=None, event=begin.event, details={"req_table_row": row}),
            confidence=CERTAIN if begin.sure else PROBABLE,
            ruled_out=[
                RuledOut("use_after_free", "what the reader's row names moved, not its data")
            ],
            evidence=[
                f"row {row} was set for {name} from event {begin.event} on; {loser} had it before, "
                "and goes on in it",
                f"row {row} was released at event {cause}"
                if cause != begin.event
                else "no release of the row is recorded",
            ],
        )

    def _goes_on(self, facts: RowFacts, req: int, event: int, held: int) -> bool:
        """Whether a request ran in a row behind an event, or set the cell at ``held``."""
        if any(who == req and at > event for who, at in facts.ran):
            return True
        its = held > event and any(f.event == held and f.owner == req for f in facts.maps)
        return its and not self._tenancies.runs_elsewhere(facts.row, req, held)
