"""Who owns which block of the KV pool, and which blocks the prefix cache can serve.

A block is one request's from the moment it is handed out. When it is full it becomes visible to
others (``publish``) and stays its request's; when that request gives it up it passes to the prefix
cache, which keeps it until it is evicted. All events are told in slots.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kvcanary_cli.record.ledger import GAP_OWNER, UNKNOWN_OWNER
from kvcanary_cli.record.vllm.groups import belongs_to
from kvcanary_cli.trace.schema import TREE_OWNER

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Event = dict[str, Any]

_FREE = object()


@dataclass(frozen=True, slots=True)
class _Entry:
    """A block that the prefix cache can serve."""

    name: str
    publisher: str | None
    start: int
    prev_slot: int
    namespace: str


class BlockLedger:
    """Owners of blocks and visible blocks, and the events that tell their changes."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        """Nobody is known to own anything.

        Args:
            num_blocks: Blocks of the pool, the null block included.
            block_size: Slots of a block.
        """
        self._size = block_size
        # A request's id, the prefix cache, _FREE, or None where nothing is known.
        self._owner: list[Any] = [None] * num_blocks
        self._entries: dict[int, _Entry] = {}
        self._next_entry = 1

    def slots(self, blocks: Iterable[int]) -> Ints:
        """Slots of ``blocks``, in order."""
        index = np.fromiter(blocks, dtype=np.int64)
        out: Ints = (index[:, None] * self._size + np.arange(self._size)).reshape(-1)
        return out

    def owner(self, block: int) -> str | None:
        """Who holds ``block``; None if nobody does, or nobody knows."""
        owner = self._owner[block]
        return None if owner is _FREE else owner

    def alloc(self, owner: str, blocks: Sequence[int]) -> list[Event]:
        """``blocks`` leave the free list for ``owner``."""
        if not blocks:
            return []
        for block in blocks:
            self._owner[block] = owner
        return [{"kind": "alloc", "owner": owner, "slots": self.slots(blocks)}]

    def give_back(
        self, actor: str | None, blocks: Sequence[tuple[int, bool]], reason: str
    ) -> list[Event]:
        """Blocks come to the free list; those that the cache can serve pass to it.

        Args:
            actor: Who gives them back, blocks of further groups of layers included; None =
                nothing says who, so each block's own owner.
            blocks: Block and whether the cache can serve it.
            reason: The ``free`` event's reason.
        """
        freed: dict[str, list[int]] = {}
        kept: dict[str, list[int]] = {}
        for block, cached in blocks:
            owner = self._owner[block]
            known = owner if isinstance(owner, str) else None
            if cached and known == TREE_OWNER:
                continue
            own = actor is None or known == TREE_OWNER or belongs_to(known, actor)
            giver = (known if own else actor) or UNKNOWN_OWNER
            if cached and (known is None or known == giver) and owner is not _FREE:
                kept.setdefault(giver, []).append(block)
            else:
                freed.setdefault(giver, []).append(block)
        events = [event for giver, mine in kept.items() for event in self.to_cache(giver, mine)]
        for giver, mine in freed.items():
            events.append(
                {"kind": "free", "owner": giver, "slots": self.slots(mine), "reason": reason}
            )
            for block in mine:
                self._owner[block] = _FREE
        return events

    def to_cache(self, giver: str, blocks: Sequence[int]) -> list[Event]:
        """``giver``'s ``blocks`` pass to the prefix cache."""
        if not blocks:
            return []
        for block in blocks:
            self._owner[block] = TREE_OWNER
        slots = self.slots(blocks)
        return [{"kind": "own", "from": giver, "owner": TREE_OWNER, "slots": slots}]

    def publish(
        self, block: int, publisher: str | None, start: int, prev_slot: int, namespace: str = ""
    ) -> list[Event]:
        """``block``, at positions ``start`` on behind ``prev_slot`` (-1 = none, 0 = not known),
        is visible.
        """
        events = self.withdraw(block)
        entry = _Entry(f"entry-{self._next_entry}", publisher, start, prev_slot, namespace)
        self._next_entry += 1
        self._entries[block] = entry
        return [*events, self._publish(block, entry)]

    def _publish(self, block: int, entry: _Entry) -> Event:
        event: Event = {
            "kind": "publish",
            "entry": entry.name,
            "slots": self.slots([block]),
            "start": entry.start,
            "prev_slot": entry.prev_slot,
        }
        if entry.publisher is not None:
            event["req"] = entry.publisher
        if entry.namespace:
            event["namespace"] = entry.namespace
        return event

    def is_published(self, block: int) -> bool:
        return block in self._entries

    def entry_of(self, block: int) -> str:
        """Name of the entry that serves ``block``."""
        entry = self._entries.get(block)
        return "unknown" if entry is None else entry.name

    def withdraw(self, block: int) -> list[Event]:
        """``block`` is not visible any more."""
        entry = self._entries.pop(block, None)
        return [] if entry is None else [{"kind": "unpublish", "entry": entry.name}]

    def evict(self, block: int, *, in_use: bool) -> list[Event]:
        """The cache drops ``block``; unless somebody uses it, it is free then."""
        events = self.withdraw(block)
        if in_use or self._owner[block] != TREE_OWNER:
            return events
        self._owner[block] = _FREE
        slots = self.slots([block])
        return [*events, {"kind": "free", "owner": TREE_OWNER, "slots": slots, "reason": "evict"}]

    def clear_cache(self) -> list[Event]:
        """The cache drops everything."""
        events = [event for block in list(self._entries) for event in self.withdraw(block)]
        held = [block for block, owner in enumerate(self._owner) if owner == TREE_OWNER]
        if held:
            slots = self.slots(held)
            events.append({"kind": "free", "owner": TREE_OWNER, "slots": slots, "reason": "reset"})
            for block in held:
                self._owner[block] = _FREE
        return events

    def adopt(self, block: int, owner: str) -> None:
        """``owner`` holds ``block`` from before the recording; ``retell`` says so."""
        self._owner[block] = owner

    def lost(self) -> None:
        """See ``State``: whoever owned what by now was not seen."""
        self._owner = [None] * len(self._owner)
        self._entries.clear()

    def retell(self, *, gap: bool) -> list[Event]:
        """See ``State``. Ownership moves without a free, so that nothing looks broken."""
        events: list[Event] = []
        owners: dict[str, list[int]] = {}
        free = []
        for block, owner in enumerate(self._owner):
            if isinstance(owner, str):
                owners.setdefault(owner, []).append(block)
            elif owner is _FREE:
                free.append(block)
        if gap and free:
            slots = self.slots(free)
            events += [
                {"kind": "own", "from": GAP_OWNER, "owner": GAP_OWNER, "slots": slots},
                {"kind": "free", "owner": GAP_OWNER, "slots": slots, "reason": "gap"},
            ]
        for owner, blocks in owners.items():
            slots = self.slots(blocks)
            events.append({"kind": "own", "from": owner, "owner": owner, "slots": slots})
        events += [self._publish(block, entry) for block, entry in self._entries.items()]
        return events
