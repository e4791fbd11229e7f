"""The ownership rules, checked when an event happens (docs/attribution.md).

They need no hash. An owner that the trace has not shown yet gives no finding.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvcanary_cli.attribution import result as what
from kvcanary_cli.attribution.by_code import ByCode
from kvcanary_cli.attribution.ledger import FREE, NEVER, NOBODY, TREE, UNKNOWN, Names, Ownership
from kvcanary_cli.attribution.result import OwnershipFinding

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

# Forks that a request is remembered to have come from, newest last.
_FORKS = 16

BAD_WHATS = (
    "",
    what.DOUBLE_ALLOC,
    what.DOUBLE_FREE,
    what.FREE_BY_NON_OWNER,
    what.OWN_BY_NON_OWNER,
    what.PUBLISH_OF_FREE,
)
_READS = frozenset({what.READ_OF_FOREIGN, what.READ_OF_FREE})
_MATCHES = frozenset({what.MATCH_OF_FOREIGN, what.MATCH_OF_FREE})


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
    """

    what: str
    event: int
    slots: tuple[int, ...]
    follows: int | None = None
    by: str | None = None


class OwnershipRules:
    """Keeps owners and reports who broke a rule.

    Attributes:
        state: Owners.
        names: Interned owners.
        findings: In order of detection.
        roots: For each finding the events that it goes back to, see ``_root``.
    """

    def __init__(self, num_slots: int, names: Names) -> None:
        self.state = Ownership(num_slots)
        self.names = names
        self.findings: list[OwnershipFinding] = []
        self.roots: list[tuple[Root, ...]] = []
        self.custody = self.state.custody
        # Requests that ended, by code; whoever follows the trace fills it.
        self.ended: Mapping[int, int] = {}
        # By child: the event of each fork, and what it shared.
        self._forks: dict[int, deque[tuple[int, Ints]]] = {}
        # [slots] scratch of _all_different.
        self._place: NDArray[np.int32] = np.zeros(num_slots, dtype=np.int32)
        # Code of a name that came back after its request's end, to the event of its first alloc.
        self.born: dict[int, int] = {}
        # The last alloc of each owner.
        self.last_alloc = ByCode()
        # A rule that stays broken is reported once for each tenancy of the slot.
        self._said: set[tuple[str, int, int, int]] = set()

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
                self._mark_bad(slot, what.DOUBLE_ALLOC, code, event)
        self.last_alloc[code] = event
        self._report(what.DOUBLE_ALLOC, slots[held], code, event, None)
        self._report(what.DOUBLE_ALLOC, repeated, code, event, None)
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
        state = self.state
        before = state.owner[slots]
        if (
            (before > FREE).any()
            or (state.bad_event[slots] != NEVER).any()
            or not self._all_different(slots)
        ):
            return False
        state.last_owner[slots] = before
        state.owner[slots] = codes
        state.since[slots] = events
        state.alloc_event[slots] = events
        state.published_event[slots] = NEVER
        state.shared[slots] = False
        self.state.forked[slots] = False
        return True

    def free(self, owner: str, slots: Ints, event: int, reason: str | None) -> None:
        state, code = self.state, self.names.code(owner)
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
                    self._mark_bad(slot, name, code, event)
            self._report(name, bad, code, event, None)
        right = ~foreign & ~twice
        for slot in self._watched(slots[right & ~np.isin(slots, again)]):
            # Where another owns it and this is right, it is done for the owner.
            self.custody.give_back(slot, int(state.owner[slot]) or code)
            if self.custody.over(slot, self.ended):
                self.custody.forget(slot)
                state.bad_event[slot], state.bad_what[slot] = NEVER, 0

    def own(self, giver: str, owner: str, slots: Ints, event: int, *, visible: bool) -> None:
        state, code, taker = self.state, self.names.code(giver), self.names.code(owner)
        # What the taker has already is only named again.
        theirs = state.owner[slots] == taker
        free = state.owner[slots] == FREE
        foreign = self._not_of(slots, code) & ~theirs & ~free
        listed = what.PUBLISH_OF_FREE if taker == TREE else what.OWN_BY_NON_OWNER
        for name, mask in ((listed, free), (what.OWN_BY_NON_OWNER, foreign)):
            for slot in self._watched(slots[mask], slots[mask]):
                if not self.custody.hand_over(slot, code, taker):
                    self._mark_bad(slot, name, code, event)
            self._report(name, slots[mask], code, event, None)
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
        self._report(what.PUBLISH_OF_FREE, slots[state.owner[slots] == FREE], code, event, None)
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

    def match(self, req: str, slots: Ints, event: int) -> None:
        state, code = self.state, self.names.code(req)
        owners = state.owner[slots]
        self._report(what.MATCH_OF_FREE, slots[owners == FREE], code, event, None)
        foreign = (owners > TREE) & (owners != code) & ~state.shared[slots]
        self._report(what.MATCH_OF_FOREIGN, slots[foreign], code, event, None)

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
        free = (owners == FREE) & ((state.last_owner[slots] != readers) | self.of_former(slots))
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
                self._report(name, slots[hit & (readers == reader)], reader, event, step)
        return bad

    def of_former(self, slots: Ints) -> NDArray[np.bool_]:
        """[n] which ``slots`` were last freed by a request whose name another one has by now."""
        state = self.state
        if not self.born:
            return np.zeros(len(slots), dtype=np.bool_)
        codes = state.free_by[slots].tolist()
        born = np.array([self.born.get(code, NEVER) for code in codes], dtype=np.int64)
        former: NDArray[np.bool_] = state.free_event[slots] < born
        return former

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
                self._report(what.WRITE_BY_NON_OWNER, mine, writer, event, step)
                for slot in mine[state.bad_event[mine] != NEVER].tolist():
                    self.custody.strayed(slot, event, writer)
        return bad

    def leaks(self, ended: dict[int, int]) -> None:
        """Slots that ended requests still own.

        Args:
            ended: Request code to the event of its end, for requests that ended long enough ago.
        """
        held = np.flatnonzero((self.state.owner > TREE) & ~self.state.forked)
        owners = self.state.owner[held]
        owning = set(np.unique(owners).tolist())
        for code, event in ended.items():
            if code in owning:
                self._report(what.LEAK, held[owners == code], code, event, None)

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

    def _mark_bad(self, slot: int, name: str, code: int, event: int) -> None:
        self.state.bad_event[slot] = event
        self.state.bad_what[slot] = BAD_WHATS.index(name)
        self.custody.broke(slot, code, free=int(self.state.owner[slot]) == FREE)

    def _report(self, name: str, slots: Ints, actor: int, event: int, step: int | None) -> None:
        if not len(slots):
            return
        owners = self.state.owner[slots]
        for owner in np.unique(owners).tolist():
            new = []
            for slot in np.unique(slots[owners == owner]).tolist():
                key = (name, slot, actor, int(self.state.since[slot]))
                if key not in self._said:
                    self._said.add(key)
                    new.append(slot)
            if new:
                self.findings.append(
                    OwnershipFinding(
                        event=event,
                        step=step,
                        what=name,
                        owner=self.names.name(owner),
                        actor=self.names.name(actor),
                        slots=tuple(new),
                    )
                )
                self.roots.append(self._roots(name, new, actor, event))

    def _roots(self, name: str, slots: list[int], actor: int, event: int) -> tuple[Root, ...]:
        groups: dict[tuple[str, int, int | None, str | None], list[int]] = {}
        for slot in slots:
            root = self._root(name, slot, actor, event)
            freed = int(self.state.free_event[slot])
            by = self.names.name(int(self.state.free_by[slot])) if freed in root[1:] else None
            groups.setdefault((*root, by), []).append(slot)
        return tuple(Root(*key[:2], tuple(mine), *key[2:]) for key, mine in groups.items())

    def _root(self, name: str, slot: int, actor: int, event: int) -> tuple[str, int, int | None]:
        """What an earlier event broke already: see ``Root``.

        A read of a slot that is no longer the reader's goes back to the free that took it; a
        stranger's free by a request that gave the slot back before goes back to its first free.
        """
        state = self.state
        bad, freed = int(state.bad_event[slot]), int(state.free_event[slot])
        earlier = None if freed in (NEVER, event) else freed
        broken = BAD_WHATS[int(state.bad_what[slot])]
        claims = bad != NEVER and self.custody.holds(slot, actor)
        if name in _READS or name in _MATCHES:
            if bad != NEVER and (bad >= freed or claims):
                return broken, bad, earlier
            if freed != NEVER and name in _READS:
                return "", freed, None
            return name, event, earlier
        if name == what.WRITE_BY_NON_OWNER:
            return (broken, bad, earlier) if claims else (name, event, earlier)
        mine = earlier if int(state.free_by[slot]) == actor else None
        if name == what.FREE_BY_NON_OWNER and mine is not None:
            return "", mine, bad
        return (name, event, mine) if bad == NEVER else (broken, bad, mine)
