"""Ownership facts: slots given out twice, and writes by those who owned them no more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcanary_cli.attribution.damage import Cause, Damage
from kvcanary_cli.attribution.ledger import (
    BY_COPY,
    BY_FORWARD,
    BY_VERIFY,
    FREE,
    NEVER,
    TREE,
)
from kvcanary_cli.attribution.ownership import BAD_WHATS
from kvcanary_cli.attribution.result import CERTAIN, PROBABLE, PUBLISH_OF_FREE, Culprit, RuledOut
from kvcanary_cli.attribution.rules.facts import Facts, is_window

if TYPE_CHECKING:
    from collections.abc import Callable


# What the broken rule did to the slot, by whether the slot was free then.
_DID = {
    False: "gave the slot a second holder; until then it had one",
    True: "let the free slot go out twice: nobody was to have it then",
}


class OwnershipFacts(Facts):
    """Double alloc, late write, transfer race, padding write."""

    @property
    def rules(self) -> tuple[Callable[[Damage], Cause | None], ...]:
        """In their order of precedence."""
        return (
            self._double_alloc,
            self._late_write,
            self._transfer_race,
            self._pad_or_dummy_write,
        )

    def _double_alloc(self, damage: Damage) -> Cause | None:
        state, slot = self.state, damage.slot
        if damage.pool_kind != "FULL":
            return None
        bad = int(state.bad_event[slot])
        wrote = damage.came_event()
        if bad == NEVER:
            return None
        # Handed out again and not written since: the loser's own row is the proof.
        code = int(damage.writes.req[slot])
        lost = int(state.alloc_event[slot]) >= bad and int(state.owner[slot]) != damage.victim
        # Given back by a stranger, and nobody has it: what is in it was never the loser's.
        lost |= int(state.free_event[slot]) == bad and code != damage.victim
        if wrote < bad and not lost:
            return None
        taken_by = int(state.owner[slot]) if wrote < bad else code
        if not state.custody.contested(slot, taken_by, self.context.ended, damage.victim):
            # Only the writer has a claim: whatever the slot went through before, this is not it.
            return None
        if state.custody.is_stray(slot, damage.writer_event(), code) or not self._has_part(damage):
            # Whoever neither was given the slot nor shares it acts on its own account.
            return None
        belongs = code == damage.victim and damage.stored_position == damage.position
        if belongs and wrote >= bad and wrote != damage.event:
            # The reader's own content, where it belongs: nobody else wrote it. Where this very
            # forward has written to what it reads, its place is that of the content before.
            return None
        name = BAD_WHATS[int(state.bad_what[slot])]
        writer = self.names.name(code)
        culprit = self.writer(damage)
        if wrote < bad and int(state.owner[slot]) == FREE:
            giver = self.names.name(state.custody.broken_by(slot))
            culprit = Culprit(req=giver, step=None, event=bad)
        elif wrote < bad:
            taker = self.names.name(int(state.owner[slot]))
            culprit = Culprit(req=taker, step=None, event=int(state.alloc_event[slot]))
        did = f"event {bad} ({name}) {_DID[state.custody.free_then(slot)]}"
        evicted = self._evicted_before(slot, bad) if name == PUBLISH_OF_FREE else NEVER
        cls, subtype = "prefix_index" if name == PUBLISH_OF_FREE else "double_alloc", name
        ruled_out = RuledOut("use_after_free", did)
        if evicted != NEVER:
            cls, subtype = "use_after_free", "window_evicted_slot_recached"
            ruled_out = RuledOut("prefix_index", f"the window had let the slot go: {did}")
        return Cause(
            cls=cls,
            subtype=subtype,
            cause_event=bad,
            corrupting_event=wrote if wrote >= bad else None,
            culprit=culprit,
            ruled_out=[ruled_out],
            evidence=[
                *([f"the window freed the slot at event {evicted}"] if evicted != NEVER else []),
                f"{name} of slot {slot} at event {bad}",
                "its writer was not recorded"
                if wrote == NEVER
                else f"{writer or 'another'} wrote it at event {wrote}",
            ],
        )

    def _evicted_before(self, slot: int, event: int) -> int:
        """The free before ``event`` if the sliding window was its reason, else ``NEVER``."""
        last = self.frees.last(slot)
        of_window = is_window(last.reason) and last.event < event
        return last.event if of_window else NEVER

    def _has_part(self, damage: Damage) -> bool:
        """Whether the reader is one of those that the broken rule left with the slot.

        It holds it, or its row named the slot before the rule broke, or the cache goes on to
        serve it, and it did not give it back by itself since; or it was served from somebody's
        who holds it.
        """
        state, reader, slot = self.state, damage.victim, damage.slot
        if state.custody.holds(slot, reader):
            return True
        bad, freed = int(state.bad_event[slot]), int(state.free_event[slot])
        gave = freed > bad and int(state.free_by[slot]) == reader
        served = state.custody.cache_lost(slot, int(state.owner[slot]))
        if (served or NEVER != self.held_since(damage) < bad) and not gave:
            return True
        writer = int(damage.writes.req[slot])
        if int(state.owner[slot]) == TREE and int(state.last_owner[slot]) == writer:
            # The cache has it from its writer: whoever is served from there reads what belongs.
            return False
        return bool(state.shared[slot]) or self.context.matched(reader, slot) is not None

    def _late_write(self, damage: Damage) -> Cause | None:
        writes, slot, state = damage.writes, damage.slot, self.state
        by_forward = writes.kind[slot] in (BY_FORWARD, BY_VERIFY)
        if not (by_forward and writes.foreign[slot]) or damage.pool_kind != "FULL":
            return None
        writer, wrote = int(writes.req[slot]), damage.writer_event()
        launched = self.context.launches.get((writer, int(writes.step[slot])), NEVER)
        freed = int(state.free_event[slot])
        freed_by_writer = freed != NEVER and int(state.free_by[slot]) == writer and freed < wrote
        # Who freed what it never had gave nothing back.
        freed_by_writer &= freed != int(state.bad_event[slot])
        known = launched != NEVER and launched < freed
        # Whoever goes on after its slots were taken away may do so for the cause that took them.
        taken = not freed_by_writer and NEVER != freed < wrote
        name = self.names.name(writer)
        return Cause(
            cls="late_write",
            subtype="overlap_forward_after_free" if freed_by_writer else "write_by_non_owner",
            cause_event=freed if freed_by_writer else wrote,
            corrupting_event=wrote,
            culprit=self.writer(damage),
            ruled_out=[
                RuledOut(
                    "use_after_free",
                    f"{name} did not own slot {slot} when its write landed; the reader's mapping "
                    "is valid",
                )
            ],
            confidence=CERTAIN if known else PROBABLE,
            evidence=[
                "the launch was not recorded"
                if launched == NEVER
                else f"launched at event {launched}",
                f"slot {slot} freed by {self.who(int(state.free_by[slot]))} at event {freed}"
                if NEVER != freed < wrote
                else "not freed before",
                f"{name} wrote it at event {wrote} without owning it",
                *self._copy_skipped(slot, wrote),
            ],
            follows=(freed,) if taken else (),
        )

    def _copy_skipped(self, slot: int, wrote: int) -> list[str]:
        """What a fork meant to copy before anybody wrote the slot, and nobody did."""
        fork, dst = self.context.cow_from.get(slot, (NEVER, 0))
        if fork == NEVER or fork > wrote or fork < int(self.state.alloc_event[slot]):
            return []
        copies = self.context.copies
        if any(c.via == "cow" and fork < c.event < wrote for c in copies.values()):
            return []
        return [
            f"the fork at event {fork} shared slot {slot} and meant a copy to slot {dst} before it "
            "is written; no such copy is recorded"
        ]

    def _transfer_race(self, damage: Damage) -> Cause | None:
        writes, slot, state = damage.writes, damage.slot, self.state
        if writes.kind[slot] != BY_COPY or not writes.foreign[slot]:
            return None
        wrote = damage.writer_event()
        copy = self.context.copies.get(wrote)
        freed, since = int(state.free_event[slot]), int(state.since[slot])
        via = copy.via if copy is not None and copy.via else "copy"
        begun = NEVER if copy is None else copy.begun_event
        inside = NEVER != begun < freed
        taken = not inside and NEVER != begun < since
        if not inside and (taken or freed == int(state.bad_event[slot])):
            # A free that broke a rule before the copy began is another fault.
            freed = NEVER
        details: dict[str, int | str] = {}
        if copy is not None and copy.transfer is not None:
            details["transfer"] = copy.transfer
        window = f"copy window [{begun}, {wrote}] contains"
        owner = self.names.name(int(state.owner[slot]))
        return Cause(
            cls="transfer_race",
            subtype=f"{via}_write_after_free" if freed != NEVER else f"{via}_write_by_non_owner",
            cause_event=freed if freed != NEVER else since if taken else wrote,
            corrupting_event=wrote,
            culprit=self.writer(damage, **details),
            ruled_out=[
                RuledOut("transfer_mismatch", "the destination had changed hands before it landed")
            ],
            confidence=CERTAIN if inside else PROBABLE,
            evidence=[
                f"{window} the free at event {freed}"
                if inside
                else f"{window} event {since}, at which {owner} got slot {slot}"
                if taken
                else "the begin of the copy was not recorded"
                if begun == NEVER
                else f"the copy began at event {begun}, when the slot had changed hands already"
            ],
        )

    def _pad_or_dummy_write(self, damage: Damage) -> Cause | None:
        writes, slot = damage.writes, damage.slot
        pad = int(writes.pad_event[slot])
        if not damage.kv_only or pad == NEVER or pad < damage.came_event():
            return None
        row = int(writes.pad_row[slot])
        former = self.context.batch_row_slot.get(row)
        stale = former is not None and former[0] == slot
        return Cause(
            cls="pad_or_dummy_write",
            subtype="stale_padded_tail" if stale else "dummy_write",
            cause_event=pad,
            corrupting_event=pad,
            culprit=Culprit(
                req=None, step=int(writes.pad_step[slot]), event=pad, details={"batch_row": row}
            ),
            ruled_out=[
                RuledOut("payload_mutation", f"padding row {row} wrote the slot at event {pad}")
            ],
            evidence=[
                f"batch row {row} is padding and targets slot {slot}",
                f"the same row wrote slot {slot} at step {former[1]}"
                if stale and former is not None
                else "the slot is no padding slot",
                self.context.padded_batch(pad),
                "the canary row is intact, the bytes changed",
            ],
        )
