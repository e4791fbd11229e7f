"""Hits on the prefix index: on what was freed, never committed, unwritten, or another's text."""

from __future__ import annotations

from kvcanary_cli.attribution.damage import Cause, Damage
from kvcanary_cli.attribution.follow_cut import NAMESPACE_PREFIX
from kvcanary_cli.attribution.ledger import BY_COPY, BY_VERIFY, NEVER, TREE
from kvcanary_cli.attribution.namespaces import alias_subtype
from kvcanary_cli.attribution.result import CERTAIN, POSSIBLE, PROBABLE, Culprit, RuledOut
from kvcanary_cli.attribution.rules.facts import Facts
from kvcanary_cli.trace.schema import TREE_OWNER

IN_TREE = "freed_by_retract_while_in_tree"


class PrefixHits(Facts):
    """What a match served, or the index showed."""

    def phantom_hit(self, damage: Damage) -> Cause | None:
        match = self.context.matched(damage.victim, damage.slot)
        taken = None if match is None else self.frees.of_match(match, damage.slot)
        if match is None or taken is None or match.position(damage.slot) != damage.position:
            # Where the cell is not the one that the match set, another event led there.
            return None
        if damage.kv_only and damage.came_event() != damage.event:
            # The row is what the reader asked for: its bytes changed behind the write.
            return None
        free, last = taken.free, int(self.state.free_event[damage.slot])
        # Content that was there before the free is wrong only because the match names it.
        came = damage.came_event()
        # A request that leaves frees what the cache shows: the cache let nothing go.
        left = is_leaving(free.reason.lower()) and free.by != TREE_OWNER
        return Cause(
            cls="use_after_free" if left else "prefix_index",
            subtype=IN_TREE if left else "phantom_hit",
            cause_event=free.event,
            corrupting_event=came if came > free.event else match.event,
            culprit=self.writer(damage),
            ruled_out=[
                RuledOut("prefix_index", f"{free.by} freed the slots, the cache did not evict them")
                if left
                else RuledOut("use_after_free", "the reader matched the slot after it was freed")
            ],
            confidence=CERTAIN if taken.surely else PROBABLE,
            evidence=[
                f"entry {match.entry} matched at event {match.event}",
                f"its slot {damage.slot} had been freed at event {free.event}"
                + (
                    f" by {free.by} ({free.reason}), and the cache went on showing it"
                    if left
                    else ""
                ),
                *([] if free.event == last else [f"given out again since, and freed at {last}"]),
                *([] if taken.surely else ["whether it was freed before, too, is not known"]),
            ],
        )

    def wrong_entry(self, damage: Damage) -> Cause | None:
        """A match led to sound content that is not what the request asked for."""
        slot, writes = damage.slot, damage.writes
        match = self.context.matched(damage.victim, slot)
        writer = int(writes.req[slot])
        if match is None or damage.kv_only or writer == damage.victim or damage.row < 0:
            return None
        copied = writes.kind[slot] == BY_COPY and not self.read_sound_since_it_came(damage)
        if copied or writes.position[slot] != writes.true_position[slot]:
            # What came wrongly from elsewhere, or was fed wrongly, is no fault of the index.
            return None
        if match.position(slot) != damage.position or damage.came_event() > match.event:
            return None
        if self.published_draft(damage):
            return None
        beyond = self._beyond_the_text(damage)
        if beyond is not None:
            return beyond
        theirs = (
            (self.names.name(int(writes.namespace[slot])) or "") if writes.namespace[slot] else ""
        )
        theirs = theirs.removeprefix(NAMESPACE_PREFIX) or match.published or ""
        alias = bool(theirs) and match.namespace is not None and theirs != match.namespace
        return Cause(
            cls="key_aliasing" if alias else "prefix_index",
            subtype=alias_subtype(theirs, match.namespace) if alias else "wrong_entry",
            cause_event=match.event,
            corrupting_event=match.event,
            culprit=self.writer(damage),
            ruled_out=[
                RuledOut("stale_mapping", f"cell {damage.position} names what the match gave"),
                RuledOut("use_after_free", f"slot {slot} was not written since the match"),
            ],
            evidence=[
                f"entry {match.entry} matched at event {match.event}, position {damage.position} "
                f"from slot {slot}",
                f"the slot holds position {damage.stored_position} of "
                f"{self.names.name(writer) or 'another'}, written before",
                f"published under {theirs}, matched under {match.namespace}"
                if alias
                else "the entry is not the prefix that the request's tokens ask for",
            ],
        )

    def _beyond_the_text(self, damage: Damage) -> Cause | None:
        """The entry covers what its publisher wrote, but never had there."""
        slot, state = damage.slot, self.state
        code = int(state.published_by[slot])
        if damage.worker != "target" or code <= TREE or code != int(damage.writes.req[slot]):
            return None
        length, published = self.committed(damage), int(state.published_event[slot])
        if not 0 < length <= damage.position:
            return None
        publisher = self.names.name(code)
        what = "a rejected draft token" if damage.writes.kind[slot] == BY_VERIFY else "a token"
        return Cause(
            cls="prefix_index",
            subtype="over_cover",
            cause_event=published,
            corrupting_event=published,
            culprit=Culprit(req=publisher, step=None, event=published),
            ruled_out=[RuledOut("stale_mapping", "the row names what the match gave")],
            evidence=[
                f"published at event {published}, with position {damage.position}; {publisher} "
                f"committed {length} tokens",
                f"slot {slot} holds {what} that {publisher} wrote there at event "
                f"{damage.writer_event()} and that never became its text",
            ],
        )

    def was_cached(self, damage: Damage) -> bool:
        """Whether the prefix cache shows the slot, or served it to the reader."""
        shared = damage.row < 0 or bool(self.state.shared[damage.slot])
        return shared or self.context.matched(damage.victim, damage.slot) is not None

    def published_unwritten(self, slot: int, published: int) -> Cause:
        """A slot that was published before it was written, or that its publisher never wrote."""
        code = int(self.state.published_by[slot])
        publisher = self.names.name(code)
        ended = self.context.ended.get(code, NEVER)
        evidence = [f"published at event {published}, before anyone wrote the slot"]
        if ended != NEVER:
            evidence.append(f"{publisher} ended at event {ended} and had not written it")
        return Cause(
            cls="prefix_index",
            subtype="premature_publish" if ended == NEVER else "over_cover",
            cause_event=published,
            corrupting_event=published,
            culprit=Culprit(req=publisher, step=None, event=published),
            ruled_out=[RuledOut("unwritten_read", f"the slot was published at event {published}")],
            evidence=evidence,
            rests_on={"transfer": POSSIBLE},
        )


def is_leaving(reason: str) -> bool:
    """Whether a free, by its reason in small letters, is that of a request which gives up."""
    return "retract" in reason or "abort" in reason
