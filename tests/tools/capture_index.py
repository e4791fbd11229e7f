"""The prefix index, rebuilt from what the engine's own sweeps walked.

A sweep lists (slot, position, slot before) of every resident tree node's tokens, in no fixed
order. Linking each to (slot before, position - 1) gives the forest back; every leaf's path from
the root is one entry. Position belongs to the link because a corrupt tree names a slot twice.

Between sweeps the index is known only where the tree gives slots back: entries that name such a
slot are withdrawn before it is freed, and what is left of them returns with the next sweep.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcanary_cli.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tests.tools.capture_rows import Event

ROOT = -1
Path = tuple[int, ...]


def leaf_paths(slots: Sequence[int], positions: Sequence[int], before: Sequence[int]) -> list[Path]:
    """Root-to-leaf slot paths of a sweep, sorted.

    Args:
        slots, positions, before: Parallel; ``before`` is the predecessor slot, -1 at a root.

    Raises:
        InputError: The links do not form a forest that starts at position 0.
    """
    parents: dict[tuple[int, int], int] = {}
    for slot, position, previous in zip(slots, positions, before, strict=True):
        if parents.setdefault((slot, position), previous) != previous:
            raise InputError(
                f"sweep: slot {slot} at position {position} has two predecessors, "
                f"{parents[slot, position]} and {previous}"
            )
        if (position == 0) != (previous == ROOT):
            raise InputError(
                f"sweep: slot {slot} at position {position} has predecessor {previous}; "
                f"-1 belongs to position 0 and to it alone"
            )
    inner = {(previous, position - 1) for (_, position), previous in parents.items()}
    paths = []
    for leaf in sorted(parents.keys() - inner):
        path, node = [], leaf
        while node[0] != ROOT:
            if node not in parents:
                raise InputError(
                    f"sweep: no token at slot {node[0]}, position {node[1]}, which another names "
                    f"as its predecessor"
                )
            path.append(node[0])
            node = (parents[node], node[1] - 1)
        paths.append(tuple(reversed(path)))
    return sorted(paths)


def path_tokens(paths: Iterable[Path]) -> set[tuple[int, int, int]]:
    """Every (slot, position, slot before) of ``paths``."""
    return {
        (slot, position, path[position - 1] if position else ROOT)
        for path in paths
        for position, slot in enumerate(path)
    }


class PrefixIndex:
    """Which entries the trace shows as published; an entry's id goes with its path."""

    def __init__(self) -> None:
        self._ids: dict[Path, str] = {}
        self._published: set[Path] = set()

    def sweep(
        self, slots: Sequence[int], positions: Sequence[int], before: Sequence[int]
    ) -> list[Event]:
        """The events after which the index holds exactly what this sweep walked."""
        paths = leaf_paths(slots, positions, before)
        if path_tokens(paths) != set(zip(slots, positions, before, strict=True)):
            raise InputError("sweep: the rebuilt paths do not name the tokens that it walked")
        events = self._withdraw(self._published - set(paths))
        for path in paths:
            if path in self._published:
                continue
            entry = self._ids.setdefault(path, f"path-{len(self._ids):04d}")
            events.append({"kind": "publish", "entry": entry, "slots": list(path)})
            self._published.add(path)
        return events

    def evict(self, slots: Iterable[int]) -> list[Event]:
        """The events that withdraw every entry that names one of ``slots``."""
        gone = set(slots)
        return self._withdraw({path for path in self._published if not gone.isdisjoint(path)})

    def _withdraw(self, paths: set[Path]) -> list[Event]:
        self._published -= paths
        return [{"kind": "unpublish", "entry": entry} for entry in sorted(map(self._id, paths))]

    def _id(self, path: Path) -> str:
        return self._ids[path]
