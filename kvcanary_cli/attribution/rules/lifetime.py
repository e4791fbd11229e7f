"""Lifetime facts: never written, freed too early, published wrongly."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcanary_cli.attribution.damage import Cause, Damage, at_event, event_or_none
from kvcanary_cli.attribution.ledger import (
    BY_STATE,
    NEVER,
    TREE,
    UNKNOWN,
)
from kvcanary_cli.attribution.result import CERTAIN, POSSIBLE, PROBABLE, Culprit, RuledOut
from kvcanary_cli.attribution.rules.facts import is_window
from kvcanary_cli.attribution.rules.prefix_hits import IN_TREE, PrefixHits, is_leaving

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcanary_cli.attribution.context import Window
    from kvcanary_cli.attribution.past_frees import Free


class LifetimeFacts(PrefixHits):
    """Unwritten reads, use after free, the prefix index."""

    @property
    def rules(self) -> tuple[Callable[[Damage], Cause | None], ...]:
        """In their order of precedence."""
        return (
            self._never_written,
            self.use_after_free,
            self.phantom_hit,
            self.wrong_entry,
        )

    def _never_written(self, damage: Damage) -> Cause | None:
        """A slot that the reader may read, and that nobody wrote.

        Of a slot that is free or another's it does not matter whether it was written.
        """
        forked = self.context.cow_event.get(damage.slot, NEVER) != NEVER
        return self.unwritten(damage) if forked or self.may_be_read(damage) else None

    def unwritten(self, damage: Damage) -> Cause | None:
        """A slot that nobody wrote since its alloc, whosever it is."""
        state, slot, writes = self.state, damage.slot, damage.writes
        if damage.kv_only or writes.kind[slot] == BY_STATE or damage.pool_kind != "FULL":
            return None
        wrote, allocated = damage.came_event(), int(state.alloc_event[slot])
        if wrote != NEVER and (allocated == NEVER or wrote >= allocated):
            return None
        if wrote == NEVER and allocated == NEVER and int(state.owner[slot]) == UNKNOWN:
            return None
        published = int(state.published_event[slot])
        owner = int(state.owner[slot])
        reads_another = owner != damage.victim or damage.victim == TREE
        if published != NEVER and published > allocated and reads_another:
            return self.published_unwritten(slot, published)
        return self._unwritten(damage, allocated)

    def _unwritten(self, damage: Damage, allocated: int) -> Cause:
        slot, writes, owner = damage.slot, damage.writes, int(self.state.owner[damage.slot])
        former = self.names.name(int(writes.req[slot]))
        forked = self.context.cow_event.get(slot, NEVER)
        culprit = Culprit(
            req=None,
            step=None,
            event=None,
            details={"last_writer": former} if former is not None else {},
        )
        skipped = forked != NEVER
        cause = Cause(
            cls="unwritten_read",
            subtype="copy_on_write_skipped" if skipped else "never_written_since_alloc",
            cause_event=forked if skipped else event_or_none(allocated),
            corrupting_event=None,
            culprit=culprit,
            evidence=[
                f"slot {slot} allocated {at_event(allocated)}, no write and no copy since",
                f"last written by {former}" if former is not None else "never written",
            ],
            rests_on={"transfer": POSSIBLE},
        )
        whose = "the reader owns" if owner == damage.victim else f"{self.names.name(owner)} owns"
        if owner > TREE:
            text = f"{whose} the slot; nobody wrote it since alloc"
            cause.ruled_out.append(RuledOut("use_after_free", text))
        window = self.context.window_onto(slot, allocated)
        if window is None:
            return cause
        begun, unfilled = self.context.unfilled.get(window.key, (NEVER, None))
        if unfilled is not None and begun == window.begun and slot not in window.brought:
            return replace(unfilled, confidence=POSSIBLE, evidence=list(unfilled.evidence))
        self._unseen_transfer(cause, window, slot)
        return cause

    @staticmethod
    def _unseen_transfer(cause: Cause, window: Window, slot: int) -> None:
        """A transfer said that it fills the slot, and no copy of it had done so."""
        if window.failed != NEVER:
            cause.cls, cause.subtype = "transfer_mismatch", "failed_transfer_served"
            cause.cause_event = cause.corrupting_event = window.failed
            cause.culprit.details["transfer"] = window.key
            cause.evidence.append(
                f"transfer {window.key} was to fill it and failed at event {window.failed}"
            )
        elif window.brought and window.ended != NEVER:
            cause.cls, cause.subtype = "transfer_mismatch", "incomplete_transfer"
            cause.cause_event = window.ended
            cause.culprit.details["transfer"] = window.key
            cause.evidence.append(
                f"transfer {window.key} began at event {window.begun} for {len(window.slots)} "
                f"slots and ended at event {window.ended}; its copies brought "
                f"{len(window.brought)}, slot {slot} is not among them"
            )
            cause.ruled_out.append(
                RuledOut("transfer_race", "the slot did not change hands while the transfer ran")
            )
        else:
            # How it went on is not known yet.
            cause.confidence, cause.awaited = POSSIBLE, window

    def use_after_free(self, damage: Damage) -> Cause | None:
        """A slot was given back while the reader still named it."""
        state, slot = self.state, damage.slot
        if damage.pool_kind != "FULL":
            return None
        last, wrote = int(state.free_event[slot]), damage.came_event()
        held = self.held_since(damage)
        writer = int(damage.writes.req[slot])
        if last == NEVER or held == NEVER or held > last or writer == damage.victim:
            return None
        match = self.context.matched(damage.victim, slot)
        if match is not None and match.event < last and self.phantom_hit(damage) is not None:
            # The entry had lost the slot before: whoever freed it behind the match took it from
            # nobody.
            return None
        free, surely = self.frees.since(slot, held, damage.event)
        reused = wrote > free.event
        culprit = Culprit(req=free.by, step=None, event=free.event)
        # What nobody wrote since its alloc may be what a copy brought.
        written = wrote != NEVER and wrote >= int(state.alloc_event[slot])
        return Cause(
            cls="use_after_free",
            rests_on={} if reused or written else {"transfer": POSSIBLE},
            subtype=self._free_subtype(damage, free),
            cause_event=free.event,
            corrupting_event=wrote if reused else None,
            culprit=self.writer(damage) if reused else culprit,
            ruled_out=self._not_taken(damage),
            confidence=CERTAIN if surely else PROBABLE,
            evidence=[
                f"named by the reader since event {held}",
                f"freed by {free.by} at event {free.event} while still named",
                f"written by {self.names.name(writer) or 'another'} at event {wrote}"
                if reused
                else self._not_written_since(damage),
                *([] if free.event == last else [f"given out again since, and freed at {last}"]),
                *([] if surely else ["whether it was freed before, too, is not kept so long"]),
            ],
        )

    def _not_written_since(self, damage: Damage) -> str:
        """What became of a slot that was given back and not written since."""
        owner, since = int(self.state.owner[damage.slot]), int(self.state.since[damage.slot])
        had = "" if damage.came_event() != NEVER else "; nobody had written it before"
        if owner <= TREE:
            return f"not written since{had}"
        return f"given to {self.names.name(owner)} at event {since}, not written since{had}"

    def _not_taken(self, damage: Damage) -> list[RuledOut]:
        """Why the slot was not taken from its holder, as far as the trace shows it."""
        state, slot = self.state, damage.slot
        out = []
        bad = int(state.bad_event[slot])
        if bad == NEVER:
            out.append(RuledOut("double_alloc", "exactly one owner at every event"))
        elif bad > damage.came_event():
            out.append(RuledOut("double_alloc", f"event {bad} broke a rule after the slot's write"))
        else:
            text = f"of what event {bad} broke only the writer's claim was left"
            out.append(RuledOut("double_alloc", text))
        name = self.names.name(int(damage.writes.req[slot]))
        allocated = int(state.alloc_event[slot])
        if name is not None and allocated != NEVER and not damage.writes.foreign[slot]:
            out.append(RuledOut("late_write", f"{name} owned slot {slot} when it wrote"))
        return out

    def _free_subtype(self, damage: Damage, free: Free) -> str:
        state, slot = self.state, damage.slot
        reason = free.reason.lower()
        if "dedup" in reason or "duplicate" in reason:
            return "freed_by_dedup"
        if is_window(reason) and self.was_cached(damage):
            return "window_evicted_slot_recached"
        if is_leaving(reason) and self.was_cached(damage):
            return IN_TREE
        if free.event == int(state.free_event[slot]) and self.cached_chain(slot):
            return "freed_by_dedup"
        if free.by != self.names.name(damage.victim):
            return "shared_slot_refcount"
        return "freed_while_mapped"
