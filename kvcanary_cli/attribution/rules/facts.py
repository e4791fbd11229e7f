"""What every rule may ask: owners, writers, rows and the rest, as they are when damage is met."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcanary_cli.abi.constants import PoolKind
from kvcanary_cli.attribution.damage import Damage, event_or_none
from kvcanary_cli.attribution.ledger import BY_VERIFY, FREE, NEVER, NOBODY, TREE, UNKNOWN
from kvcanary_cli.attribution.result import Culprit

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcanary_cli.attribution.context import Context
    from kvcanary_cli.attribution.ledger import Names, Ownership, Writes
    from kvcanary_cli.attribution.under_way import UnderWay


class Facts:
    """Base of the groups of rules.

    Args:
        state: Owners as they are now.
        context: Rows, copies, launches and the rest.
        names: Interned names.
        cached_chain: Whether the prefix cache holds the chain that a freed slot held.
        now: The forward that is being judged: the request table, and what requests have where.
    """

    def __init__(
        self,
        state: Ownership,
        context: Context,
        names: Names,
        cached_chain: Callable[[int], bool],
        now: UnderWay,
    ) -> None:
        self.state, self.context, self.names = state, context, names
        self.cached_chain, self.now = cached_chain, now
        self.frees = now.follower.frees

    def writer(self, damage: Damage, **details: int | str) -> Culprit:
        """The last writer of the damaged slot."""
        return self.writer_of(damage.writes, damage.slot, **details)

    def writer_of(self, writes: Writes, slot: int, **details: int | str) -> Culprit:
        """The last writer of ``slot`` in a lane."""
        step = int(writes.step[slot])
        return Culprit(
            req=self.names.name(int(writes.req[slot])),
            step=None if step == NOBODY else step,
            event=event_or_none(writes.event[slot]),
            details=dict(details),
        )

    def who(self, code: int) -> str:
        """An owner in words."""
        return "the prefix cache" if code == TREE else self.names.name(code) or "another"

    def held_since(self, damage: Damage) -> int:
        """Event since which the victim names the slot."""
        slot = damage.slot
        if damage.row < 0:
            return int(self.state.published_event[slot])
        if damage.forward is not None and damage.row in damage.forward.row_as_read:
            return NEVER
        return self.context.row(damage.row).mapped_at(damage.position)

    def is_anothers(self, damage: Damage) -> bool:
        """Whether the slot belongs to a request that does not share it with the reader."""
        owner = int(self.state.owner[damage.slot])
        return owner > TREE and owner != damage.victim and not self.state.shared[damage.slot]

    def may_be_read(self, damage: Damage) -> bool:
        """Whether the slot is the reader's or shared with it, as far as its owner is known."""
        if int(self.state.owner[damage.slot]) == UNKNOWN:
            return True
        return self.state.owner[damage.slot] != FREE and not self.is_anothers(damage)

    def published_draft(self, damage: Damage) -> bool:
        """Whether a match served a draft of its publisher's where that one has another token."""
        slot, writes = damage.slot, damage.writes
        writer = int(writes.req[slot])
        if writes.kind[slot] != BY_VERIFY or int(self.state.published_by[slot]) != writer:
            return False
        if damage.worker != "target" or self.context.matched(damage.victim, slot) is None:
            return False
        token = self.now.token(writer, damage.position)
        sound = token == damage.stored_token and damage.stored_position == damage.position
        return token is not None and not sound and damage.position < self.committed(damage)

    def committed(self, damage: Damage) -> int:
        """How long the text of the slot's writer is, as far as its KV may count; 0 = not known.

        Of what verification wrote, what the accept behind it committed.
        """
        slot, writes = damage.slot, damage.writes
        writer = int(writes.req[slot])
        length, accept = self.now.length(writer), self.context.accepts.get(writer)
        if writes.kind[slot] != BY_VERIFY or accept is None or accept.committed_len is None:
            return length
        return min(length, accept.committed_len) if accept.event > writes.event[slot] else length

    def read_sound_since_it_came(self, damage: Damage) -> bool:
        """Whether a forward read the slot's content and found nothing."""
        return damage.writes.sound_read(damage.slot) > damage.came_event()

    def window(self, damage: Damage) -> tuple[int, int]:
        """Events between which the bytes changed: last good look, first bad one.

        Where only the bytes are wrong, a good look is one that had a fingerprint of them.
        """
        slot = damage.slot
        if damage.kv_only:
            # A copy within the pool moves what is wrong already: it is no look at the bytes.
            last_good = max(damage.writer_event(), self.bytes_agreed(damage))
        else:
            last_good = max(damage.came_event(), damage.writes.sound_read(slot))
        return (damage.event if last_good == NEVER else last_good, damage.event)

    def bytes_agreed(self, damage: Damage) -> int:
        """Last event at which the recorded fingerprints of the slot were the right ones."""
        replay = self.now.replay
        kind = PoolKind[damage.pool_kind]
        lane = None if replay is None else replay.pool.lanes.get((damage.worker, kind))
        if lane is None or not lane.kv:
            return NEVER
        return min(int(kv.agreed[damage.slot]) for kv in lane.kv.values())


def is_window(reason: str) -> bool:
    """Whether the reason of a free is that the sliding window moved on."""
    small = reason.lower()
    return "window" in small or "swa" in small
