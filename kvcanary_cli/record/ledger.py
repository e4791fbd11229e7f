"""Who owns which slot, as the recorder has told it: gives freed slots their owners' names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvcanary_cli.trace.schema import GAP_OWNER, TREE_OWNER

__all__ = ["FREE", "GAP_OWNER", "TREE", "UNKNOWN", "UNKNOWN_OWNER", "Ledger"]

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Event = dict[str, Any]

UNKNOWN, FREE, TREE = 0, 1, 2
UNKNOWN_OWNER = "unknown"


class Ledger:
    """Owners of slots, prefix entries, and the events that tell their changes."""

    def __init__(self, num_slots: int) -> None:
        """Nobody is known to own anything.

        Args:
            num_slots: Largest slot number plus one.
        """
        self.owner = np.zeros(num_slots, dtype=np.int64)
        self._names = {UNKNOWN: UNKNOWN_OWNER, TREE: TREE_OWNER}
        self._codes = {TREE_OWNER: TREE}
        self._next = TREE + 1
        self._entry = np.zeros(num_slots, dtype=np.int64)
        self._entry_live: dict[int, int] = {}
        self._next_entry = 1

    def code(self, owner: str) -> int:
        code = self._codes.get(owner)
        if code is None:
            code = self._codes[owner] = self._next
            self._names[code] = owner
            self._next += 1
        return code

    def forget(self, owner: str) -> list[Event]:
        """``owner`` has ended: its name is dropped unless it still owns slots. No events."""
        code = self._codes.get(owner)
        if code is not None and not (self.owner == code).any():
            del self._codes[owner], self._names[code]
        return []

    def alloc(self, owner: str, slots: Ints) -> list[Event]:
        if not len(slots):
            return []
        self.owner[self._inside(slots)] = self.code(owner)
        return [{"kind": "alloc", "owner": owner, "slots": slots}]

    def free(self, actor: str | None, slots: Ints, reason: str) -> list[Event]:
        """``actor`` gives ``slots`` back; None = nothing says who, so each slot's own owner."""
        if not len(slots):
            return []
        groups = self._by_owner(slots) if actor is None else [(actor, slots)]
        events: list[Event] = [
            {"kind": "free", "owner": owner, "slots": given, "reason": reason}
            for owner, given in groups
        ]
        mine = self._inside(slots)
        self.owner[mine] = FREE
        return events + self._withdraw(mine)

    def own(self, giver: str, slots: Ints) -> list[Event]:
        """``giver``'s ``slots`` pass to the prefix cache and become visible."""
        if not len(slots):
            return []
        number = self._next_entry
        self._next_entry += 1
        mine = self._inside(slots)
        events = self._withdraw(mine)
        self.owner[mine] = TREE
        self._entry[mine] = number
        self._entry_live[number] = len(np.unique(mine))
        events.append(
            {
                "kind": "own",
                "from": giver,
                "owner": TREE_OWNER,
                "slots": slots,
                "entry": _entry_name(number),
            }
        )
        return events

    def entry_of(self, slot: int) -> str:
        """Name of the prefix entry that ``slot`` belongs to."""
        known = 0 <= slot < len(self._entry)
        return _entry_name(int(self._entry[slot]) if known else 0)

    def owners(self, slots: Ints) -> Ints:
        """[n] codes of owners; UNKNOWN for what is no slot of the pool."""
        inside = (slots >= 0) & (slots < len(self.owner))
        out: Ints = np.where(inside, self.owner[np.where(inside, slots, 0)], UNKNOWN)
        return out

    def _inside(self, slots: Ints) -> Ints:
        """Those of ``slots`` that the pool has: a corrupt engine may name others."""
        out: Ints = slots[(slots >= 0) & (slots < len(self.owner))]
        return out

    def with_pages(self, slots: Ints, page_size: int) -> Ints:
        """``slots`` and the owned rest of their pages, which is what a paged free gives back."""
        if page_size == 1 or not len(slots):
            return slots
        pages = np.unique(slots // page_size)
        every = (pages[:, None] * page_size + np.arange(page_size)).reshape(-1)
        rest = every[(self.owners(every) > FREE) & ~np.isin(every, slots)]
        return np.concatenate([slots, rest])

    def lost(self) -> None:
        """See ``State``: whoever owned what by now was not seen."""
        self.owner[:] = UNKNOWN
        self._entry[:] = 0
        self._entry_live.clear()

    def retell(self, *, gap: bool) -> list[Event]:
        """See ``State``. Ownership moves without a free, so that nothing looks broken."""
        events: list[Event] = []
        if gap:
            free = np.flatnonzero(self.owner == FREE)
            if len(free):
                events = [
                    {"kind": "own", "from": GAP_OWNER, "owner": GAP_OWNER, "slots": free},
                    {"kind": "free", "owner": GAP_OWNER, "slots": free, "reason": "gap"},
                ]
        owned = np.flatnonzero(self.owner > FREE)
        for owner, slots in self._by_owner(owned):
            events.append({"kind": "own", "from": owner, "owner": owner, "slots": slots})
        return events

    def _by_owner(self, slots: Ints) -> list[tuple[str, Ints]]:
        owners = self.owners(slots)
        return [
            (self._names.get(code, UNKNOWN_OWNER), slots[owners == code])
            for code in dict.fromkeys(owners.tolist())
        ]

    def _withdraw(self, slots: Ints) -> list[Event]:
        """Entries all of whose slots are gone stop being visible."""
        numbers, counts = np.unique(self._entry[np.unique(slots)], return_counts=True)
        self._entry[slots] = 0
        events: list[Event] = []
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            if number not in self._entry_live:
                continue
            self._entry_live[number] -= count
            if self._entry_live[number] <= 0:
                del self._entry_live[number]
                events.append({"kind": "unpublish", "entry": _entry_name(number)})
        return events


def _entry_name(number: int) -> str:
    return f"entry-{number}"
