"""What a prefix cache holds, as slots with positions and predecessors (specification 5.7)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable


@dataclass(slots=True, kw_only=True)
class PrefixNode:
    """A node of a prefix tree.

    Attributes:
        slots: Full-pool slots of the node's tokens; empty if evicted from the device.
        key_len: Tokens of the node's key; None = as many as slots.
        children: In the order in which they are walked.
        lock_count: Running requests that hold the node's FULL slots.
        swa_lock_count: The same for its sliding-window slots.
        has_swa: Whether the node still has sliding-window values.
    """

    slots: list[int] = field(default_factory=list)
    key_len: int | None = None
    children: list[PrefixNode] = field(default_factory=list)
    lock_count: int = 0
    swa_lock_count: int = 0
    has_swa: bool = True


@runtime_checkable
class PrefixIndex(Protocol):
    """Anything with a root node; the root itself holds no cached token."""

    @property
    def prefix_root(self) -> PrefixNode: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepEntries:
    """Parallel lists, in walk order.

    Attributes:
        slots: Full-pool slots.
        positions: Sequence positions.
        prev_slots: Predecessors, -1 = chain head.
    """

    slots: list[int]
    positions: list[int]
    prev_slots: list[int]


def walk_prefix_cache(
    index: object, *, unlocked_only: bool = False, swa_resident_only: bool = False
) -> SweepEntries:
    """Walk the tree depth-first and list every cached slot.

    Nodes that are left out still advance depth and chain. A node without device slots leaves the
    chain at its nearest resident ancestor.

    Args:
        index: A ``PrefixIndex``.
        unlocked_only: Leave out nodes that a running request holds: the FULL lock counts, or with
            ``swa_resident_only`` the sliding-window lock.
        swa_resident_only: Leave out nodes without sliding-window values.

    Raises:
        NotImplementedError: KVC-R06 for anything that is no ``PrefixIndex``.
    """
    if not isinstance(index, PrefixIndex):
        raise NotImplementedError(
            f"walk_radix_cache_for_canary does not support {type(index).__name__}"
        )
    slots: list[int] = []
    positions: list[int] = []
    prev_slots: list[int] = []
    root = index.prefix_root
    stack = [(root, 0, -1)]
    while stack:
        node, depth, last = stack.pop()
        locks = node.swa_lock_count if swa_resident_only else node.lock_count
        if (
            node is not root
            and not (unlocked_only and locks)
            and not (swa_resident_only and not node.has_swa)
            and node.slots
        ):
            slots.extend(node.slots)
            positions.extend(range(depth, depth + len(node.slots)))
            prev_slots.append(last)
            prev_slots.extend(node.slots[:-1])
        if node.slots:
            last = node.slots[-1]
        depth += len(node.slots) if node is root or node.key_len is None else node.key_len
        stack.extend((child, depth, last) for child in reversed(node.children))
    return SweepEntries(slots=slots, positions=positions, prev_slots=prev_slots)
