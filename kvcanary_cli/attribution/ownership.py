"""The ownership rules, checked when an event happens (docs/attribution.md).

They need no hash. An owner that the trace has not shown yet gives no finding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvcanary_cli.attribution import result as what
from kvcanary_cli.attribution.ledger import FREE, NEVER, NOBODY, TREE, UNKNOWN, Names, Ownership
from kvcanary_cli.attribution.result import OwnershipFinding
from kvcanary_cli.trace.schema import TREE_OWNER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

BAD_WHATS = ("", what.DOUBLE_ALLOC, what.DOUBLE_FREE, what.FREE_BY_NON_OWNER)


class OwnershipRules:
    """Keeps owners and reports who broke a rule.

    Attributes:
        state: Owners.
        names: Interned owners.
        findings: In order of detection.
    """

    def __init__(self, num_slots: int, names: Names) -> None:
        self.state = Ownership(num_slots)
        self.names = names
        self.findings: list[OwnershipFinding] = []
        # For each finding the event that it goes back to, see ``_root``.
        self.roots: list[tuple[str, int]] = []
        # Requests that ended, by code; whoever follows the trace fills it.
        self.ended: Mapping[int, int] = {}
        # [slots] shared by a fork: when the owner ends, the others keep them.
        self._forked = np.zeros(num_slots, dtype=np.bool_)
        # A rule that stays broken is reported once for each tenancy of the slot.
        self._said: set[tuple[str, int, int, int]] = set()

    def alloc(self, owner: str, slots: Ints, event: int) -> None:
        state, code = self.state, self.names.code(owner)
        held = (state.owner[slots] != UNKNOWN) & (state.owner[slots] != FREE)
        twice = slots[held]
        if len(twice):
            # Where it was freed twice, that free is the cause: the free list held it twice.
            listed = state.spare_frees[twice] > 0
            self._mark_bad(twice[~listed], what.DOUBLE_ALLOC, event)
            state.spare_frees[twice[listed]] -= 1
            self._report(what.DOUBLE_ALLOC, twice, code, event, None)
        unique, counts = np.unique(slots, return_counts=True)
        if len(unique) < len(slots):
            repeated = unique[counts > 1]
            self._report(what.DOUBLE_ALLOC, repeated, code, event, None)
            self._mark_bad(repeated, what.DOUBLE_ALLOC, event)
        state.give(slots, code, event)
        self._forked[slots] = False
        state.alloc_event[slots] = event
        state.shared[slots] = False
        state.published_event[slots] = NEVER

    def free(self, owner: str, slots: Ints, event: int, reason: str | None) -> None:
        state, code = self.state, self.names.code(owner)
        owners = state.owner[slots]
        twice = owners == FREE
        foreign = (owners != UNKNOWN) & ~twice & (owners != code)
        if foreign.any():
            # The last holder of a forked slot gives it back for an owner that ended before.
            foreign &= ~(self._forked[slots] & np.isin(owners, list(self.ended)))
        unique, counts = np.unique(slots, return_counts=True)
        repeated = unique[counts > 1]
        for name, bad in (
            (what.DOUBLE_FREE, np.union1d(slots[twice], repeated)),
            (what.FREE_BY_NON_OWNER, slots[foreign]),
        ):
            self._mark_bad(bad, name, event)
            self._report(name, bad, code, event, None)
        again = np.union1d(slots[twice], repeated)
        state.spare_frees[again] = np.minimum(state.spare_frees[again], 100) + 1
        state.give(slots, FREE, event)
        # The reader of a slot that its own request gave back is not the victim of a stranger.
        state.last_owner[slots] = code
        state.free_event[slots], state.free_by[slots] = event, code
        state.free_reason[slots] = state.reason_code(reason)
        self._forked[slots] = False
        state.shared[slots] = False

    def own(self, giver: str, owner: str, slots: Ints, event: int, *, visible: bool) -> None:
        state = self.state
        if owner == TREE_OWNER:
            free = slots[state.owner[slots] == FREE]
            self._report(what.PUBLISH_OF_FREE, free, self.names.code(giver), event, None)
        if visible:
            state.shared[slots] = True
            state.published_event[slots] = event
            state.published_by[slots] = self.names.code(giver)
        state.give(slots, self.names.code(owner), event)

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

    def fork(self, slots: Ints) -> None:
        """Another request may read ``slots``, and keeps them when their owner ends."""
        self.share(slots)
        self._forked[slots] = True

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

        Returns:
            [n] which entries broke a rule.
        """
        state = self.state
        owners = state.owner[slots]
        foreign = (owners > TREE) & (owners != readers) & ~state.shared[slots]
        free = (owners == FREE) & (state.last_owner[slots] != readers)
        unwritten = (
            (state.alloc_event[slots] != NEVER)
            & (written_event[slots] < state.alloc_event[slots])
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
        return bad

    def leaks(self, ended: dict[int, int]) -> None:
        """Slots that ended requests still own.

        Args:
            ended: Request code to the event of its end, for requests that ended long enough ago.
        """
        for code, event in ended.items():
            slots = np.flatnonzero((self.state.owner == code) & ~self._forked)
            self._report(what.LEAK, slots, code, event, None)

    def _mark_bad(self, slots: Ints, name: str, event: int) -> None:
        self.state.bad_event[slots] = event
        self.state.bad_what[slots] = BAD_WHATS.index(name)

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
                self.roots.append(self._root(name, new[0], actor, event))

    def _root(self, name: str, slot: int, actor: int, event: int) -> tuple[str, int]:
        """What an earlier event broke already: its rule (empty for a free by the owner), its ``i``.

        A read of a slot that is no longer the reader's goes back to the free that took it; a
        stranger's free by a request that gave the slot back before goes back to its first free.
        """
        state = self.state
        bad, freed = int(state.bad_event[slot]), int(state.free_event[slot])
        if name in (what.READ_OF_FOREIGN, what.READ_OF_FREE, what.WRITE_BY_NON_OWNER):
            if bad != NEVER and bad >= freed:
                return BAD_WHATS[int(state.bad_what[slot])], bad
            if freed != NEVER and name != what.WRITE_BY_NON_OWNER:
                return "", freed
        again = freed != NEVER and freed < event and int(state.free_by[slot]) == actor
        if name == what.FREE_BY_NON_OWNER and again:
            return "", freed
        return name, event
