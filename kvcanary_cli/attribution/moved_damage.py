"""Content that was damaged before a copy moved it: the copy was right, what it moved was not."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from kvcanary_cli.attribution.damage import Damage
from kvcanary_cli.attribution.ledger import NEVER, NOBODY, TREE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from kvcanary_cli.attribution.damage import Cause
    from kvcanary_cli.attribution.follow import Follower
    from kvcanary_cli.attribution.ledger import Writes
    from kvcanary_cli.trace.segment import Segment

    Ints = NDArray[np.int64]


class MovedDamage:
    """Judges the sources of copies out of the full pool when they are made.

    A holder whose row named a slot since before another request wrote it lost its content there;
    its copy carries the loss to the new slot. The ledger moves on, so the cause is kept with the
    destination (``Context.moved``) until somebody reads it.

    Args:
        follower: The ledger, before the copy is entered.
        taken: Why the content of a slot is not its holder's, None if no rule says so.
    """

    def __init__(self, follower: Follower, taken: Callable[[Damage], Cause | None]) -> None:
        self._follower, self._taken = follower, taken
        # Slots of other pools that damaged content was moved to.
        self._off: dict[tuple[str, int], Cause] = {}

    def copy(self, segment: Segment, row: int, event: int, raced: Mapping[int, Cause]) -> None:
        """A ``copy`` event is about to be followed; ``raced`` are sources that a race hit."""
        table, follower = segment.tables["copy"], self._follower

        def text(name: str) -> str | None:
            return segment.text("copy", name, row) if name in table.columns else None

        source, dst = segment.json("copy", "src", row), table.get_ints("dst", row)
        src_pool, dst_pool = text("src_pool") or "full", text("dst_pool") or "full"
        if dst is None or table.get_bool("canary", row) is False:
            return
        to = [(dst_pool, slot) for slot in dst.tolist()]
        causes: dict[tuple[str, int], Cause] = {}
        if isinstance(source, list):
            if src_pool == "full":
                src = np.array(source, dtype=np.int64)
                by = text("by")
                code = NOBODY if by is None else follower.names.code(by)
                found = dict(raced) or self._damaged(src, dst, code, dst_pool, event)
            else:
                found = {
                    slot: self._off[src_pool, slot]
                    for slot in source
                    if (src_pool, slot) in self._off
                }
            for slot, place in zip(source, to, strict=True):
                if slot in found:
                    causes[place] = _moved(found[slot], (src_pool, slot), place, event)
        for place in to:
            if place[0] == "full":
                follower.context.moved.pop(place[1], None)
                if place in causes:
                    follower.context.moved[place[1]] = (event, causes[place])
            elif place in causes:
                self._off[place] = causes[place]
            else:
                self._off.pop(place, None)

    def _damaged(
        self, src: Ints, dst: Ints, by: int, dst_pool: str, event: int
    ) -> dict[int, Cause]:
        """Sources in the full pool that others wrote while the mover held them."""
        follower = self._follower
        writes, state = follower.lane("target", "FULL"), follower.rules.state
        movers = np.full(len(src), by, dtype=np.int32)
        if by == NOBODY and dst_pool == "full":
            movers = state.owner[dst]
        alien = (movers > TREE) & (writes.req[src] >= TREE) & (writes.req[src] != movers)
        if follower.context.moved:
            alien |= np.isin(src, list(follower.context.moved))
        found = {}
        for k in np.flatnonzero(alien).tolist():
            cause = self._cause(writes, int(src[k]), int(movers[k]), event)
            if cause is not None:
                found[int(src[k])] = cause
        return found

    def _cause(self, writes: Writes, slot: int, mover: int, event: int) -> Cause | None:
        earlier = self._follower.context.moved.get(slot)
        came = int(writes.came(np.array([slot]))[0])
        if earlier is not None and earlier[0] == came:
            return earlier[1]
        if int(writes.req[slot]) == mover:
            return None
        position = self._held(slot, mover, came)
        if position is None:
            return None
        row, at = position
        return self._taken(
            Damage(
                worker="target",
                pool_kind="FULL",
                victim=mover,
                row=row,
                position=at,
                slot=slot,
                stored_position=int(writes.position[slot]),
                stored_token=NOBODY,
                expected_token=None,
                kv_only=False,
                step=self._follower.steps_seen()[0],
                event=event,
                forward=None,
                true_position=None,
                row_offset=0,
                writes=writes,
            )
        )

    def _held(self, slot: int, mover: int, came: int) -> tuple[int, int] | None:
        """Row and position through which ``mover`` named the slot before its content came."""
        pool, context = self._follower.pool, self._follower.context
        if pool is None:
            return None
        for row in np.flatnonzero(context.table.tenants == mover).tolist():
            facts = context.row(row)
            # Cells that the tenant before left behind are not the mover's.
            since = NEVER if facts.released_by == mover else facts.released_event
            for at in np.flatnonzero(np.asarray(pool.table[row]) == slot).tolist():
                if since < facts.mapped_at(at) < came:
                    return row, at
        return None


def _moved(cause: Cause, src: tuple[str, int], dst: tuple[str, int], event: int) -> Cause:
    """The cause of damage that the copy at ``event`` moved on."""
    where = [
        f"slot {slot}" if pool == "full" else f"{pool} slot {slot}" for pool, slot in (src, dst)
    ]
    moved = f"the copy at event {event} moved it from {where[0]} to {where[1]}"
    sources = (*cause.sources, src[1]) if src[0] == "full" else cause.sources
    return replace(cause, evidence=[*cause.evidence, moved], sources=sources)
