"""Who believes to hold a slot that a broken rule left with more holders than one.

One broken rule makes others: of a slot that was handed out twice, either holder's free breaks a
rule in its turn. These are consequences, not faults of their own. What an outsider does to the
same slot is one.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class _Claims:
    """Claims on one slot.

    Attributes:
        holders: Owner code to how often it was given the slot and has not given it back.
        listed: How often the free list holds it.
    """

    holders: dict[int, int] = field(default_factory=dict)
    listed: int = 0

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

    def hand_out(self, slot: int, taker: int) -> bool:
        """``taker`` gets the slot from the free list; whether the list held it."""
        claims = self._claims[slot]
        listed = claims.listed > 0
        claims.listed -= listed
        claims.add(taker)
        return listed

    def give_back(self, slot: int, giver: int) -> bool:
        """``giver`` frees the slot; whether it held it."""
        claims = self._claims[slot]
        claims.listed += 1
        return claims.drop(giver)

    def hand_over(self, slot: int, giver: int, taker: int) -> bool:
        """``giver`` makes ``taker`` the owner; whether it held the slot."""
        claims = self._claims[slot]
        held = claims.drop(giver)
        claims.add(taker)
        return held

    def holds(self, slot: int, code: int) -> bool:
        """Whether ``code`` has a claim on the slot."""
        claims = self._claims.get(slot)
        return claims is not None and code in claims.holders

    def contested(self, slot: int, by: int) -> bool:
        """Whether anybody has a claim on the slot besides one of ``by``."""
        claims = self._claims.get(slot)
        if claims is None:
            return False
        return sum(claims.holders.values()) > (by in claims.holders)
