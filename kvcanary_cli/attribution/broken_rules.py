"""Broken ownership rules: what is reported of them, and what they go back to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvcanary_cli.attribution import result as what
from kvcanary_cli.attribution.ledger import FREE, NEVER, TREE, Names, Ownership
from kvcanary_cli.attribution.result import OwnershipFinding

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

BAD_WHATS = (
    "",
    what.DOUBLE_ALLOC,
    what.DOUBLE_FREE,
    what.FREE_BY_NON_OWNER,
    what.OWN_BY_NON_OWNER,
    what.PUBLISH_OF_FREE,
)


@dataclass(frozen=True, slots=True)
class Root:
    """What a broken rule goes back to.

    Attributes:
        what: The rule that was broken first; empty for a free by the owner.
        event: ``i`` of the event that did that.
        slots: Those slots of the finding that it holds for.
        follows: ``i`` of a free by the owner that the rule follows if somebody is found to have
            suffered from that one; None if there is none.
        by: Whose the free was that ``event`` or ``follows`` names; None if neither names one.
        suffers: Whether the owner of the slots is a request that had not ended. The finding does
            not tell: another request may have come by the same name.
        surely: Whether it is known to be that free.
    """

    what: str
    event: int
    slots: tuple[int, ...]
    follows: int | None
    by: str | None
    suffers: bool
    surely: bool = True


def in_order(root: Root) -> tuple[int, int, str, bool]:
    """Key of roots of one broken rule: by what happened, not by numbers of slots."""
    follows = NEVER if root.follows is None else root.follows
    return root.event, follows, root.what, root.surely


class BrokenRules:
    """Keeps what was found.

    Attributes:
        findings: In order of detection.
        roots: For each finding the events that it goes back to.
    """

    def __init__(self, state: Ownership, names: Names, ended: Mapping[int, int]) -> None:
        self.findings: list[OwnershipFinding] = []
        self.roots: list[tuple[Root, ...]] = []
        self._state, self._names, self._ended = state, names, ended
        # A rule that stays broken is reported once for each tenancy of the slot.
        self._said: set[tuple[str, int, int, int]] = set()

    def mark_bad(self, slot: int, name: str, code: int, event: int) -> None:
        self._state.bad_event[slot] = event
        self._state.bad_what[slot] = BAD_WHATS.index(name)
        self._state.custody.broke(slot, code, free=int(self._state.owner[slot]) == FREE)

    def report(self, name: str, slots: Ints, actor: int, event: int, step: int | None) -> None:
        if not len(slots):
            return
        owners = self._state.owner[slots]
        for owner in np.unique(owners).tolist():
            new = []
            for slot in np.unique(slots[owners == owner]).tolist():
                key = (name, slot, actor, int(self._state.since[slot]))
                if key not in self._said:
                    self._said.add(key)
                    new.append(slot)
            if new:
                self.findings.append(
                    OwnershipFinding(
                        event=event,
                        step=step,
                        what=name,
                        owner=self._names.name(owner),
                        actor=self._names.name(actor),
                        slots=tuple(new),
                    )
                )
                suffers = owner > TREE and owner not in self._ended
                self.roots.append(self._roots(name, new, actor, event, suffers=suffers))

    def _roots(
        self, name: str, slots: list[int], actor: int, event: int, *, suffers: bool
    ) -> tuple[Root, ...]:
        groups: dict[tuple[str, int, int | None, str | None], list[int]] = {}
        for slot in slots:
            root = self._root(name, slot, actor, event)
            freed = int(self._state.free_event[slot])
            by = self._names.name(int(self._state.free_by[slot])) if freed in root[1:] else None
            groups.setdefault((*root, by), []).append(slot)
        roots = (Root(*key[:2], tuple(mine), *key[2:], suffers) for key, mine in groups.items())
        return tuple(sorted(roots, key=in_order))

    def _root(self, name: str, slot: int, actor: int, event: int) -> tuple[str, int, int | None]:
        """What an earlier event broke already: see ``Root``.

        A read of a slot that is no longer the reader's goes back to the free that took it; a
        stranger's free by a request that gave the slot back before goes back to its first free.
        """
        state = self._state
        bad, freed = int(state.bad_event[slot]), int(state.free_event[slot])
        earlier = None if freed in (NEVER, event) else freed
        broken = BAD_WHATS[int(state.bad_what[slot])]
        claims = bad != NEVER and self._state.custody.holds(slot, actor)
        if name in what.READS or name in what.MATCHES:
            if bad != NEVER and (bad >= freed or claims):
                return broken, bad, earlier
            if freed != NEVER and name in what.READS:
                return "", freed, None
            return name, event, earlier
        if name == what.WRITE_BY_NON_OWNER:
            return (broken, bad, earlier) if claims else (name, event, earlier)
        mine = earlier if int(state.free_by[slot]) == actor else None
        if name == what.FREE_BY_NON_OWNER and mine is not None:
            return "", mine, bad
        return (name, event, mine) if bad == NEVER else (broken, bad, mine)
