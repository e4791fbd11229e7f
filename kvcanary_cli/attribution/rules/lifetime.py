"""Lifetime facts: never written, recycled, freed too early, published wrongly."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcanary_cli.attribution.damage import Cause, Damage, at_event, event_or_none
from kvcanary_cli.attribution.ledger import (
    BY_STATE,
    NEVER,
    NOBODY,
    TREE,
    UNKNOWN,
)
from kvcanary_cli.attribution.result import Culprit, RuledOut
from kvcanary_cli.attribution.rules.facts import Facts

if TYPE_CHECKING:
    from collections.abc import Callable


class LifetimeFacts(Facts):
    """Unwritten reads, recycled rows, use after free, the prefix index."""

    @property
    def rules(self) -> tuple[Callable[[Damage], Cause | None], ...]:
        """In their order of precedence."""
        return (
            # A row that moved names slots in any state, unwritten ones too.
            self._recycled_row,
            self._never_written,
            self._use_after_free,
            self._phantom_hit,
        )

    def _never_written(self, damage: Damage) -> Cause | None:
        state, slot, writes = self.state, damage.slot, damage.writes
        wrote, allocated = damage.writer_event(), int(state.alloc_event[slot])
        if damage.kv_only or writes.kind[slot] == BY_STATE:
            return None
        if wrote != NEVER and (allocated == NEVER or wrote >= allocated):
            return None
        if wrote == NEVER and allocated == NEVER and int(state.owner[slot]) == UNKNOWN:
            return None
        published = int(state.published_event[slot])
        owner = int(state.owner[slot])
        if published != NEVER and published > allocated and owner != damage.victim:
            publisher = self.names.name(int(state.published_by[slot]))
            return Cause(
                cls="prefix_index",
                subtype="premature_publish",
                cause_event=published,
                corrupting_event=published,
                culprit=Culprit(req=publisher, step=None, event=published),
                ruled_out=[
                    RuledOut("unwritten_read", f"the slot was published at event {published}")
                ],
                evidence=[f"published at event {published}, before anyone wrote the slot"],
            )
        former = self.names.name(int(writes.req[slot]))
        forked = self.context.cow_event.get(slot, NEVER)
        culprit = Culprit(
            req=None,
            step=None,
            event=None,
            details={"last_writer": former} if former is not None else {},
        )
        skipped = forked != NEVER
        return Cause(
            cls="unwritten_read",
            subtype="copy_on_write_skipped" if skipped else "never_written_since_alloc",
            cause_event=forked if skipped else event_or_none(allocated),
            corrupting_event=None,
            culprit=culprit,
            ruled_out=[
                RuledOut("use_after_free", "the reader owns the slot; nobody wrote it since alloc")
            ],
            evidence=[
                f"slot {slot} allocated {at_event(allocated)}, no write and no copy since",
                f"last written by {former}" if former is not None else "never written",
            ],
        )

    def _recycled_row(self, damage: Damage) -> Cause | None:
        """The row was given to another request while the victim's work still used it."""
        if damage.row < 0 or damage.victim == TREE:
            return None
        facts = self.context.row(damage.row)
        released = facts.released_event
        if released == NEVER or facts.released_by != damage.victim:
            return None
        fact = facts.fact_after(released)
        writer = int(damage.writes.req[damage.slot])
        if fact is None or writer == damage.victim:
            return None
        remapped = fact.event
        # The row's new tenant; what it shares with others was written by them.
        taker = facts.taker(damage.victim, released)
        if fact.owner > TREE and fact.owner != damage.victim:
            taker = fact.owner
        elif taker == NOBODY:
            taker = writer
        return Cause(
            cls="stale_mapping",
            subtype="row_recycled_in_flight",
            cause_event=released,
            corrupting_event=remapped,
            culprit=Culprit(
                req=self.names.name(taker),
                step=None,
                event=remapped,
                details={"req_table_row": damage.row},
            ),
            ruled_out=[
                RuledOut(
                    "use_after_free",
                    f"slot {damage.slot} never belonged to the reader: its row moved, not its data",
                )
            ],
            evidence=[
                f"row {damage.row} released at event {released}, remapped at {remapped}",
                "the slots it names now are intact",
            ],
        )

    def _use_after_free(self, damage: Damage) -> Cause | None:
        state, slot = self.state, damage.slot
        freed, wrote = int(state.free_event[slot]), damage.writer_event()
        held = self.held_since(damage)
        writer = int(damage.writes.req[slot])
        if freed == NEVER or held == NEVER or held > freed or writer == damage.victim:
            return None
        if damage.pool_kind != "FULL":
            return None
        reused = wrote > freed
        name = self.names.name(int(state.free_by[slot]))
        return Cause(
            cls="use_after_free",
            subtype=self._free_subtype(damage, freed),
            cause_event=freed,
            corrupting_event=wrote if reused else None,
            culprit=self.writer(damage) if reused else Culprit(req=name, step=None, event=freed),
            ruled_out=[
                RuledOut("double_alloc", "exactly one owner at every event"),
                RuledOut(
                    "late_write",
                    f"{self.names.name(writer)} owned slot {slot} when it wrote",
                ),
            ],
            evidence=[
                f"named by the reader since event {held}",
                f"freed by {name} at event {freed} while still named",
                f"written by {self.names.name(writer) or 'another'} at event {wrote}"
                if reused
                else "not written since",
            ],
        )

    def _free_subtype(self, damage: Damage, freed: int) -> str:
        state, slot = self.state, damage.slot
        reason = state.reasons[int(state.free_reason[slot])].lower()
        if "dedup" in reason or "duplicate" in reason:
            return "freed_by_dedup"
        if "window" in reason or "swa" in reason:
            return "window_evicted_slot_recached"
        if "retract" in reason:
            return "freed_by_retract_while_in_tree"
        if self.cached_chain(slot):
            return "freed_by_dedup"
        if int(state.free_by[slot]) != damage.victim:
            return "shared_slot_refcount"
        return "freed_while_mapped"

    def _phantom_hit(self, damage: Damage) -> Cause | None:
        match = self.context.matched(damage.victim, damage.slot)
        freed = int(self.state.free_event[damage.slot])
        if match is None or freed == NEVER or freed > match.event:
            return None
        return Cause(
            cls="prefix_index",
            subtype="phantom_hit",
            cause_event=freed,
            corrupting_event=match.event,
            culprit=self.writer(damage),
            ruled_out=[
                RuledOut("use_after_free", "the reader matched the slot after it was freed")
            ],
            evidence=[
                f"entry {match.entry} matched at event {match.event}",
                f"its slot {damage.slot} had been freed at event {freed}",
            ],
        )
