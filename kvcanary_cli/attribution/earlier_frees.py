"""Which free took a slot from somebody: the first one since that one named it, not the last one.

A slot that is freed while a row, or an entry of the prefix index, still names it may go through
many hands before it is read there. The ledger keeps the last free of each slot, which is then the
blameless end of a later tenancy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvcanary_cli.attribution.ledger import NEVER
from kvcanary_cli.attribution.past_frees import Free

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcanary_cli.attribution.context import MatchFact
    from kvcanary_cli.attribution.ledger import Names, Ownership
    from kvcanary_cli.replay.prefixes import PrefixIndex


class Taken(NamedTuple):
    """The free that took a slot away, and whether it is surely the one."""

    free: Free
    surely: bool


class EarlierFrees:
    """Asked while the damage is met: what is kept of the past is bounded.

    Args:
        state: Owners as they are now.
        names: Interned names.
        index: What the prefix cache shows; None while it is not known.
    """

    def __init__(
        self,
        state: Ownership,
        names: Names,
        index: Callable[[], PrefixIndex | None],
    ) -> None:
        self._state, self._names, self._index = state, names, index

    def last(self, slot: int) -> Free:
        """The last free of ``slot``; its event is ``NEVER`` if there is none."""
        state = self._state
        return Free(
            int(state.free_event[slot]),
            self._names.name(int(state.free_by[slot])) or "",
            state.reasons[int(state.free_reason[slot])],
        )

    def since(self, slot: int, held: int, before: int) -> Taken:
        """What took ``slot`` from who names it since event ``held``, and reads it at ``before``.

        The slot was freed in between.
        """
        last = self.last(slot)
        if int(self._state.alloc_event[slot]) <= held:
            # Nobody was given the slot in between.
            return Taken(last, surely=True)
        first = self._state.past_frees.first(slot, held, before)
        return Taken(last, surely=False) if first is None else Taken(first, surely=True)

    def of_match(self, match: MatchFact, slot: int) -> Taken | None:
        """What took ``slot`` from the entry that ``match`` was served from, before the match.

        Returns:
            None if nothing did: the slot was not freed since the index began to name it.
        """
        last, past = self.last(slot), self._state.past_frees
        if last.event == NEVER:
            return None
        shown, index = NEVER, self._index()
        if index is not None:
            shown = index.shown_at(match.entry, slot, match.position(slot), match.event)
        first = past.first(slot, shown, match.event)
        if not (slot in match.lost or (index is not None and index.knows(match.entry))):
            # The cache had it: what an entry shows that nobody published may be new.
            return None
        if shown != NEVER and first is not None:
            return Taken(first, surely=True)
        if not shown < last.event < match.event:
            return None
        # Of an entry that is as old as the trace, or older, any free may be the one.
        return Taken(last, surely=first is not None and first.event == last.event)
