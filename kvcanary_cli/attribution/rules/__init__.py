"""From a damaged entry to its cause: the rules of the taxonomy, in its order of precedence.

Ownership facts come before lifetime facts, those before index facts, those before input facts,
content facts come last: earlier groups usually cause the later symptoms. Each rule looks only at
what the trace recorded, and returns None where its facts are not there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcanary_cli.attribution.ledger import NEVER
from kvcanary_cli.attribution.result import CERTAIN, PROBABLE, Culprit
from kvcanary_cli.attribution.rules.beside_row import BesideRow
from kvcanary_cli.attribution.rules.content import ContentFacts
from kvcanary_cli.attribution.rules.index import CELLS_REWRITTEN, IndexFacts
from kvcanary_cli.attribution.rules.inputs import InputFacts
from kvcanary_cli.attribution.rules.lifetime import LifetimeFacts
from kvcanary_cli.attribution.rules.misdirected import MisdirectedCopies
from kvcanary_cli.attribution.rules.ownership_facts import OwnershipFacts
from kvcanary_cli.attribution.rules.recycled_rows import RecycledRows
from kvcanary_cli.attribution.rules.row_tenancies import RowTenancies
from kvcanary_cli.attribution.rules.stored_pages import StoredPages
from kvcanary_cli.attribution.rules.wrong_copies import WrongCopies

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kvcanary_cli.attribution.context import Context
    from kvcanary_cli.attribution.damage import Cause, Damage
    from kvcanary_cli.attribution.ledger import Names, Ownership
    from kvcanary_cli.attribution.under_way import UnderWay


class Classifier:
    """Applies the rules.

    Args:
        state: Owners as they are now.
        context: Rows, copies, launches and the rest.
        names: Interned names.
        records: Families that the trace recorded.
        cached_chain: Whether the prefix cache holds the chain that a freed slot held.
        now: The forward that is being judged.
    """

    def __init__(
        self,
        state: Ownership,
        context: Context,
        names: Names,
        records: frozenset[str],
        cached_chain: Callable[[int], bool],
        now: UnderWay,
    ) -> None:
        self._records, self._context, self._state = records, context, state
        facts = (state, context, names, cached_chain, now)
        self.inputs = InputFacts(*facts)
        self.may_be_read = self.inputs.may_be_read
        ownership, lifetime = OwnershipFacts(*facts), LifetimeFacts(*facts)
        index = IndexFacts(*facts)
        content, copies = ContentFacts(*facts), WrongCopies(*facts)
        tenancies = RowTenancies(*facts)
        beside = BesideRow(tenancies, *facts)
        given_twice, *others = ownership.rules
        ownership_rules = (given_twice, beside.overwritten, *others)
        self._last = content
        self.misdirected = MisdirectedCopies(*facts).misdirected
        self._copying = (copies.wrong_pages, *ownership_rules)
        self._taking = (*ownership_rules, lifetime.use_after_free)
        self._rules: tuple[Callable[[Damage], Cause | None], ...] = (
            index.unmapped_cell,
            self._moved,
            *self._copying,
            self.inputs.past_the_end,
            self._translated_for_another,
            # A table that leads elsewhere excuses the slot that it leads to.
            index.bad_translation,
            StoredPages(*facts).overwritten,
            self.misdirected,
            beside.missed,
            beside.anothers_row,
            # A row that moved names slots in any state, unwritten ones too.
            *RecycledRows(tenancies, *facts).rules,
            *lifetime.rules,
            index.anothers_slot,
            index.other_row_seen,
            index.cell_set_behind_copy,
            index.spec_commit,
            index.rejected_moved,
            *self.inputs.rules,
            content.transfer_mismatch,
            index.moved_cells,
            content.payload_mutation,
            # Whose the slot is says nothing further.
            lifetime.unwritten,
            content.foreign_content,
        )

    def cause(self, damage: Damage) -> Cause:
        """The first rule that applies."""
        for rule in self._rules:
            found = rule(damage)
            if found is not None:
                self._weigh(found)
                return found
        return self._last.unexplained(damage)

    def taken(self, damage: Damage) -> Cause | None:
        """What took the slot from its holder, if that is how it came to hold another's content."""
        return _first(self._taking, damage)

    def copied(self, damage: Damage) -> Cause | None:
        """Why a copy wrote a slot that was not its own."""
        return _first(self._copying, damage)

    def _translated_for_another(self, damage: Damage) -> Cause | None:
        """The reader's full slot was handed on, and is translated for its new owner since."""
        full, writes = damage.full_slot, damage.full_writes
        if damage.pool_kind != "SWA" or full <= 0 or writes is None:
            return None
        given = int(self._state.alloc_event[full])
        translated = self._context.lut_event.get(full, NEVER)
        there = replace(damage, pool_kind="FULL", slot=full, writes=writes)
        if given == NEVER or translated < given or self.inputs.held_since(there) > given:
            return None
        cause = self.taken(there)
        if cause is None:
            return None
        if int(writes.req[full]) == damage.victim:
            # Nobody wrote the full slot since: who was given it had it translated.
            owner = self.inputs.names.name(int(self._state.owner[full]))
            cause.culprit = Culprit(req=owner, step=None, event=given)
            cause.corrupting_event = translated
        cause.evidence.append(f"event {translated} translates full slot {full} for its new owner")
        return cause

    def _moved(self, damage: Damage) -> Cause | None:
        """The content was damaged already when a copy moved it here."""
        known = self._context.moved.get(damage.slot)
        if known is None or damage.pool_kind != "FULL" or known[0] != damage.came_event():
            return None
        return replace(known[1], evidence=list(known[1].evidence))

    def _weigh(self, cause: Cause) -> None:
        if "alloc" not in self._records and cause.confidence == CERTAIN:
            cause.confidence = PROBABLE
            cause.evidence.append("alloc events were not recorded: owners are not known")


def _first(rules: Iterable[Callable[[Damage], Cause | None]], damage: Damage) -> Cause | None:
    found = (rule(damage) for rule in rules)
    return next((cause for cause in found if cause is not None), None)


def lifetime_first(
    damage: Damage, others: Iterable[Damage], cause_of: Callable[[Damage], Cause]
) -> tuple[Cause, Damage]:
    """The cause that comes first, and its reader, where several read one damaged slot.

    Whose row was set to the slot when it was another's already tells less than whoever had named
    it from before it was given back: lifetime facts come before index facts.

    Args:
        damage: As it was met first.
        others: As other readers of the same forward met it; looked at only where it matters.
        cause_of: Applies the rules.
    """
    cause = cause_of(damage)
    if (cause.cls, cause.subtype) == ("stale_mapping", CELLS_REWRITTEN):
        for other in others:
            before = cause_of(other)
            if before.cls == "use_after_free":
                return before, other
    return cause, damage
