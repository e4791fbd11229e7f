"""The ownership rules, checked when an event happens (docs/attribution.md).

They need no hash. An owner that the trace has not shown yet gives no finding.
"""

from __future__ import annotations

from collections import deque
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from kvcanary_cli.attribution import result as what
from kvcanary_cli.attribution.broken_rules import BAD_WHATS, BrokenRules, Root
from kvcanary_cli.attribution.by_code import ByCode
from kvcanary_cli.attribution.ledger import FREE, NEVER, NOBODY, TREE, UNKNOWN, Names, Ownership

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

__all__ = ["BAD_WHATS", "OwnershipRules", "Root"]

# Forks that a request is remembered to have come from, newest last.
_FORKS = 16


class OwnershipRules:
    """Keeps owners and reports who broke a rule.

    Attributes:
        state: Owners.
        names: Interned owners.
        broken: Which rules were broken.
        findings: In order of detection.
        roots: For each finding the events that it goes back to, see ``BrokenRules``.
    """

    def __init__(
        self, num_slots: int, names: Names, ended: Mapping[int, int] = MappingProxyType({})
    ) -> None:
        self.state = Ownership(num_slots)
        self.names, self.ended = names, ended
        self.broken = BrokenRules(self.state, names, ended)
        self.findings, self.roots = self.broken.findings, self.broken.roots
        self.custody = self.state.custody
        # By child: the event of each fork, and what it shared.
        self._forks: dict[int, deque[tuple[int, Ints]]] = {}
        # [slots] scratch of _all_different.
        self._place: NDArray[np.int32] = np.zeros(num_slots, dtype=np.int32)
        # The last alloc of each owner.
        self.last_alloc = ByCode()

    def alloc(self, owner: str, slots: Ints, event: int) -> None:
        state, code = self.state, self.names.code(owner)
        if self.alloc_free(code, slots, event):
            self.last_alloc[code] = event
            return
        held = (state.owner[slots] != UNKNOWN) & (state.owner[slots] != FREE)
        unique, counts = np.unique(slots, return_counts=True)
        repeated = unique[counts > 1]
        broken = np.union1d(slots[held], repeated)
        for slot in self._watched(unique, broken):
            # Where it was freed twice, that free is the cause: the free list held it twice.
            times = int((slots == slot).sum())
            listed = [self.custody.hand_out(slot, code, self.ended) for _ in range(times)]
            if slot in broken and not all(listed):
                self.broken.mark_bad(slot, what.DOUBLE_ALLOC, code, event)
        self.last_alloc[code] = event
        self.broken.report(what.DOUBLE_ALLOC, slots[held], code, event, None)
        self.broken.report(what.DOUBLE_ALLOC, repeated, code, event, None)
        state.give(slots, code, event)
        self.state.forked[slots] = False
        state.alloc_event[slots] = event
        state.shared[slots] = False
        state.published_event[slots] = NEVER

    def alloc_free(self, codes: NDArray[np.int32] | int, slots: Ints, events: Ints | int) -> bool:
        """Hand out ``slots`` [n], if they are all different and free, and never broke a rule.

        Args:
            codes, events: [n], or one for all: who gets each, and by which event.

        Returns:
            Whether that was so; if not, nothing was done.
        """
        if not self.are_free(slots):
            return False
        state = self.state
        state.last_owner[slots] = state.owner[slots]
        state.owner[slots] = codes
        state.since[slots] = events
        state.alloc_event[slots] = events
        state.published_event[slots] = NEVER
        state.shared[slots] = False
        self.state.forked[slots] = False
        return True

    def are_free(self, slots: Ints) -> bool:
        """Whether ``slots`` [n] are all different and free, and never broke a rule."""
        state = self.state
        return not (
            (state.owner[slots] > FREE).any()
            or (state.bad_event[slots] != NEVER).any()
            or not self._all_different(slots)
        )

    def free(self, owner: str, slots: Ints, event: int, reason: str | None) -> None:
        for code, mine in self._by_life(owner, slots):
            self._free(code, mine, event, reason)

    def _by_life(self, owner: str, slots: Ints) -> list[tuple[int, Ints]]:
        """``slots`` that ``owner`` gives away: what a former request of that name has, it gives."""
        code, former = self.names.code(owner), self.names.former(owner)
        if not former:
            return [(code, slots)]
        owners = self.state.owner[slots]
        its = [(one, slots[owners == one]) for one in former]
        rest = slots[~np.isin(owners, former)]
        return [(one, mine) for one, mine in [*its, (code, rest)] if len(mine)]

    def _free(self, code: int, slots: Ints, event: int, reason: str | None) -> None:
        state = self.state
        if (
            (state.owner[slots] != code).any()
            or (state.bad_event[slots] != NEVER).any()
            or not self._all_different(slots)
        ):
            self._check_free(code, slots, event)
        state.give(slots, FREE, event)
        # The reader of a slot that its own request gave back is not the victim of a stranger.
        state.last_owner[slots] = code
        state.free_event[slots], state.free_by[slots] = event, code
        state.free_reason[slots] = state.reason_code(reason)
        self.state.forked[slots] = False
        state.shared[slots] = False

    def _check_free(self, code: int, slots: Ints, event: int) -> None:
        state = self.state
        twice = state.owner[slots] == FREE
        foreign = self._not_of(slots, code) & ~twice
        unique, counts = np.unique(slots, return_counts=True)
        again = np.union1d(slots[twice], unique[counts > 1])
        foreign &= ~np.isin(slots, again)
        for name, bad in ((what.DOUBLE_FREE, again), (what.FREE_BY_NON_OWNER, slots[foreign])):
            for slot in self._watched(bad, bad):
                times = int((slots == slot).sum())
                held = [self.custody.give_back(slot, code) for _ in range(times)]
                if not all(held):
                    self.broken.mark_bad(slot, name, code, event)
            self.broken.report(name, bad, code, event, None)
        right = ~foreign & ~twice
        for slot in self._watched(slots[right & ~np.isin(slots, again)]):
            # Where another owns it and this is right, it is done for the owner.
            self.custody.give_back(slot, int(state.owner[slot]) or code)
            if self.custody.over(slot, self.ended):
                self.custody.forget(slot)
                state.bad_event[slot], state.bad_what[slot] = NEVER, 0

    def own(self, giver: str, owner: str, slots: Ints, event: int, *, visible: bool) -> None:
        lives, taker = self._by_life(giver, slots), self.names.code(owner)
        for code, mine in lives:
            self._own(code, taker, mine, event, visible=visible)

    def _own(self, code: int, taker: int, slots: Ints, event: int, *, visible: bool) -> None:
        state = self.state
        # What the taker has already is only named again.
        theirs = state.owner[slots] == taker
        free = state.owner[slots] == FREE
        foreign = self._not_of(slots, code) & ~theirs & ~free
        listed = what.PUBLISH_OF_FREE if taker == TREE else what.OWN_BY_NON_OWNER
        for name, mask in ((listed, free), (what.OWN_BY_NON_OWNER, foreign)):
            for slot in self._watched(slots[mask], slots[mask]):
                if not self.custody.hand_over(slot, code, taker):
                    self.broken.mark_bad(slot, name, code, event)
            self.broken.report(name, slots[mask], code, event, None)
        for slot in self._watched(slots[~free & ~foreign & ~theirs]):
            self.custody.hand_over(slot, int(state.owner[slot]) or code, taker)
        if code != taker:
            for slot in self._watched(slots[theirs]):
                self.custody.hand_on(slot, code)
        if visible:
            state.shared[slots] = True
            state.published_event[slots] = event
            state.published_by[slots] = code
        state.give(slots, taker, event)

    def publish(self, req: str | None, slots: Ints, event: int) -> None:
        state = self.state
        code = TREE if req is None else self.names.code(req)
        self.broken.report(
            what.PUBLISH_OF_FREE, slots[state.owner[slots] == FREE], code, event, None
        )
        state.shared[slots] = True
        state.published_event[slots] = event
        state.published_by[slots] = code

    def share(self, slots: Ints) -> None:
        """Others may read ``slots``."""
        self.state.shared[slots] = True

    def fork(self, slots: Ints, child: str | None = None, event: int = NEVER) -> None:
        """``child`` may read ``slots``, holds them beside their owner, and keeps them after it."""
        self.share(slots)
        self.state.forked[slots] = True
        if child is not None:
            forks = self._forks.setdefault(self.names.code(child), deque(maxlen=_FORKS))
            forks.append((event, slots))

    def match(self, req: str, slots: Ints, event: int) -> Ints:
        """``req`` is served ``slots``; [n] those that were free, or another request's."""
        state, code = self.state, self.names.code(req)
        owners = state.owner[slots]
        self.broken.report(what.MATCH_OF_FREE, slots[owners == FREE], code, event, None)
        foreign = (owners > TREE) & (owners != code) & ~state.shared[slots]
        self.broken.report(what.MATCH_OF_FOREIGN, slots[foreign], code, event, None)
        lost: Ints = slots[foreign | (owners == FREE)]
        return lost

    def read(
        self,
        slots: Ints,
        readers: NDArray[np.int32],
        written_event: Ints,
        event: int,
        step: int,
    ) -> NDArray[np.bool_]:
        """A forward reads prefix ``slots`` [n] on behalf of ``readers`` [n].

        Args:
            slots, readers: What is read, and for whom.
            written_event: [n] when the content came into each.
            event, step: Of the forward.

        Returns:
            [n] which entries broke a rule.
        """
        state = self.state
        owners = state.owner[slots]
        foreign = (owners > TREE) & (owners != readers) & ~state.shared[slots]
        free = (owners == FREE) & (state.last_owner[slots] != readers)
        unwritten = (
            (state.alloc_event[slots] != NEVER)
            & (written_event < state.alloc_event[slots])
            & (owners != UNKNOWN)
            & ~foreign
            & ~free
            & (owners != FREE)
        )
        bad: NDArray[np.bool_] = (foreign | free | unwritten) & (slots != 0)
        if not bad.any():
            return bad
        for name, mask in (
            (what.READ_OF_FOREIGN, foreign),
            (what.READ_OF_FREE, free),
            (what.READ_BEFORE_WRITE, unwritten),
        ):
            hit = mask & bad
            for reader in np.unique(readers[hit]).tolist():
                self.broken.report(name, slots[hit & (readers == reader)], reader, event, step)
        return bad

    def write(
        self, slots: Ints, writers: NDArray[np.int32], event: int, step: int | None
    ) -> NDArray[np.bool_]:
        """``writers`` [n] (``NOBODY`` = a padding row) write ``slots`` [n].

        Returns:
            [n] which of them did not own what they wrote.
        """
        state = self.state
        owners = state.owner[slots]
        foreign = (owners > FREE) & (owners != writers)
        given_back = (owners == FREE) & (state.last_owner[slots] != writers) & (writers != NOBODY)
        bad: NDArray[np.bool_] = (foreign | given_back) & (slots > 0)
        if bad.any():
            for writer in np.unique(writers[bad]).tolist():
                mine = slots[bad & (writers == writer)]
                self.broken.report(what.WRITE_BY_NON_OWNER, mine, writer, event, step)
                for slot in mine[state.bad_event[mine] != NEVER].tolist():
                    self.custody.strayed(slot, event, writer)
        return bad

    def has_slots(self, code: int) -> bool:
        """Whether ``code`` owns any slot."""
        return bool((self.state.owner == code).any())

    def leaks(self, ended: dict[int, int], in_transfer: Ints) -> int:
        """Slots that ended requests still own.

        Args:
            ended: Request code to the event of its end, for requests that ended long enough ago.
            in_transfer: Slots of transfers under way, which their requests keep until these end.

        Returns:
            How many slots are no leak only because of that.
        """
        held = np.flatnonzero((self.state.owner > TREE) & ~self.state.forked)
        owners, kept = self.state.owner[held], np.isin(held, in_transfer)
        owning, spared = set(np.unique(owners).tolist()), 0
        for code, event in ended.items():
            if code not in owning:
                continue
            mine = owners == code
            spared += int((mine & kept).sum())
            leaked = held[mine & ~kept]
            if len(leaked):
                self.broken.report(what.LEAK, leaked, code, event, None)
        return spared

    def _all_different(self, slots: Ints) -> bool:
        """Whether no slot is named twice: else one of its places overwrites the other's number."""
        if len(slots) < 2:
            return True
        places = np.arange(len(slots), dtype=np.int32)
        self._place[slots] = places
        return bool((self._place[slots] == places).all())

    def _not_of(self, slots: Ints, code: int) -> NDArray[np.bool_]:
        """[n] which ``slots`` are known to be another's than ``code``'s, the free list's included.

        Whoever a fork gave a slot to holds it as well as its owner does: one of them frees it or
        gives it away, for all of them.
        """
        owners = self.state.owner[slots]
        foreign: NDArray[np.bool_] = (owners != UNKNOWN) & (owners != code)
        if foreign.any():
            forked = self.state.forked[slots]
            if forked.any():
                foreign &= ~(forked & (np.isin(owners, list(self.ended)) | self._got(slots, code)))
        return foreign

    def _got(self, slots: Ints, code: int) -> NDArray[np.bool_]:
        """[n] which of ``slots`` a fork gave to ``code`` since their last alloc."""
        got = np.zeros(len(slots), dtype=np.bool_)
        for event, shared in self._forks.get(code, ()):
            got |= np.isin(slots, shared) & (self.state.alloc_event[slots] <= event)
        return got

    def _watched(self, slots: Ints, broken: Ints | None = None) -> list[int]:
        """Those of ``slots`` that broke a rule before, or do so now."""
        state = self.state
        before = state.bad_event[slots] != NEVER
        new = slots[:0] if broken is None else broken
        if not len(new) and not before.any():
            return []
        found: list[int] = np.union1d(slots[before], new).tolist()
        for slot in found:
            owner = int(state.owner[slot])
            self.custody.watch(slot, None if owner in (FREE, UNKNOWN) else owner)
        return found
