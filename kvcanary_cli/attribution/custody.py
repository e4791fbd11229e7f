"""Who believes to hold a slot that a broken rule left with more holders than one.

One broken rule makes others: of a slot that was handed out twice, either holder's free breaks a
rule in its turn. These are consequences, not faults of their own. What an outsider does to the
same slot is one. Once the slot is back, and nobody that runs believes to hold it, what comes next
owes the broken rule nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvcanary_cli.backends.cpu.event_records import TREE

if TYPE_CHECKING:
    from collections.abc import Container


@dataclass(slots=True)
class _Claims:
    """Claims on one slot.

    Attributes:
        holders: Owner code to how often it was given the slot and has not given it back.
        listed: How often the free list holds it.
        clean: Whether the last taker got it from the free list while nobody else that runs had it.
        free_then: Whether the slot was free when the rule broke.
        broken_by: Name code of who broke it.
        stray: Event and name code of the last write by somebody without a claim.
        sharers: Owner code that gave its claim to another, to that other one: it goes on to read.
    """

    holders: dict[int, int] = field(default_factory=dict)
    listed: int = 0
    clean: bool = False
    free_then: bool = False
    broken_by: int = -1
    stray: tuple[int, int] | None = None
    sharers: dict[int, int] = field(default_factory=dict)

    def add(self, code: int) -> None:
        self.holders[code] = self.holders.get(code, 0) + 1

    def drop(self, code: int) -> bool:
        """Take one claim of ``code`` away; whether it had one."""
        left = self.holders.pop(code, 0) - 1
        if left > 0:
            self.holders[code] = left
        return left >= 0


class Custody:
    """Claims on the slots that broke a rule; all others have the one owner of the ledger."""

    def __init__(self) -> None:
        self._claims: dict[int, _Claims] = {}

    def watch(self, slot: int, owner: int | None) -> None:
        """Follow ``slot`` from now on; ``owner`` holds it, None = the free list does."""
        if slot not in self._claims:
            claims = self._claims[slot] = _Claims()
            if owner is None:
                claims.listed = 1
            else:
                claims.add(owner)

    def hand_out(self, slot: int, taker: int, ended: Container[int] = ()) -> bool:
        """``taker`` gets the slot from the free list; whether the list held it.

        Requests that ``ended`` do not use the slot any more, whatever they still hold.
        """
        claims = self._claims[slot]
        listed = claims.listed > 0
        claims.clean = listed and all(code in ended for code in claims.holders)
        claims.listed -= listed
        claims.add(taker)
        return listed

    def give_back(self, slot: int, giver: int) -> bool:
        """``giver`` frees the slot; whether it held it."""
        claims = self._claims[slot]
        claims.listed += 1
        held = claims.drop(giver)
        claims.clean = claims.clean and held
        return held

    def hand_on(self, slot: int, giver: int) -> None:
        """``giver`` gives the slot to who has it already: it does not hold it any more."""
        self._claims[slot].drop(giver)

    def over(self, slot: int, ended: Container[int]) -> bool:
        """Whether the slot is back, and what the broken rule did to it has come to its end.

        Nobody that runs holds it, and the free list holds it once. A slot that was listed twice
        is done with once it went out to one holder and came back from it.
        """
        claims = self._claims[slot]
        if claims.listed < 1 or any(code not in ended for code in claims.holders):
            return False
        return claims.listed == 1 or claims.clean

    def forget(self, slot: int) -> None:
        """What comes is a tenancy that owes the broken rule nothing."""
        del self._claims[slot]

    def broke(self, slot: int, by: int, *, free: bool) -> None:
        """``by`` broke a rule for the slot, which was ``free`` then."""
        self._claims[slot].free_then, self._claims[slot].broken_by = free, by

    def broken_by(self, slot: int) -> int:
        """Who broke the last rule; -1 = not known."""
        claims = self._claims.get(slot)
        return -1 if claims is None else claims.broken_by

    def free_then(self, slot: int) -> bool:
        """Whether the slot was free when the last rule broke."""
        claims = self._claims.get(slot)
        return claims is not None and claims.free_then

    def strayed(self, slot: int, event: int, writer: int) -> None:
        """``writer`` wrote the slot, which is not its own."""
        claims = self._claims.get(slot)
        if claims is not None and writer not in claims.holders:
            claims.stray = (event, writer)

    def is_stray(self, slot: int, event: int, writer: int) -> bool:
        """Whether that write was by somebody without a claim."""
        claims = self._claims.get(slot)
        return claims is not None and claims.stray == (event, writer)

    def hand_over(self, slot: int, giver: int, taker: int) -> bool:
        """``giver`` makes ``taker`` the owner; whether it held the slot."""
        claims = self._claims[slot]
        held = claims.drop(giver)
        claims.add(taker)
        if held:
            claims.sharers[giver] = taker
        return held

    def cache_lost(self, slot: int, owner: int) -> bool:
        """Whether the cache was given the slot before ``owner``, and has not given it back.

        It goes on to serve the slot, so that rows which are set to it name what is theirs.
        """
        claims = self._claims.get(slot)
        return claims is not None and claims.holders.get(TREE, 0) > (owner == TREE)

    def holds(self, slot: int, code: int) -> bool:
        """Whether ``code`` has a claim on the slot, or shares that of who has it from ``code``."""
        claims = self._claims.get(slot)
        if claims is None:
            return False
        return code in claims.holders or claims.sharers.get(code) in claims.holders

    def contested(
        self, slot: int, by: int, ended: Container[int] = (), reader: int | None = None
    ) -> bool:
        """Whether anybody has a claim on the slot besides one of ``by``.

        Claims of requests that ``ended`` do not count, but for those of ``reader`` and ``by``.
        """
        claims = self._claims.get(slot)
        if claims is None:
            return False
        asked = (by, reader)
        live = sum(n for code, n in claims.holders.items() if code in asked or code not in ended)
        return live > (by in claims.holders)

    def listed_often(self) -> list[int]:
        """Slots that the free list holds more than once."""
        return sorted(slot for slot, claims in self._claims.items() if claims.listed > 1)
