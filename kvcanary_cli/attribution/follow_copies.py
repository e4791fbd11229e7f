"""Transfers and copies as the ledger follows them: content that no forward wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvcanary_cli.attribution.context import CopyFact, Window, transfer_key
from kvcanary_cli.attribution.ledger import (
    BY_COPY,
    BY_FORWARD,
    BY_VERIFY,
    FREE,
    NEVER,
    NOBODY,
    TREE,
    UNKNOWN,
    Names,
    Writes,
)
from kvcanary_cli.trace.schema import DEVICE_POOLS

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from kvcanary_cli.attribution.context import Context
    from kvcanary_cli.attribution.ownership import OwnershipRules
    from kvcanary_cli.trace.segment import Segment

    Ints = NDArray[np.int64]

#: Lane of each pool on the device.
POOL_LANE = {
    "full": ("target", "FULL"),
    "swa": ("target", "SWA"),
    "draft": ("draft", "FULL"),
}


class CopyEvents:
    """Enters transfers and copies.

    Args:
        names: Interned names.
        rules: Owners.
        context: Takes copies and the windows of transfers.
        lane: Writers of a lane, by worker and pool.
    """

    def __init__(
        self,
        names: Names,
        rules: OwnershipRules,
        context: Context,
        lane: Callable[[str, str], Writes],
    ) -> None:
        self._names, self._rules, self._context, self._lane = names, rules, context, lane

    def transfer_begin(self, segment: Segment, row: int, event: int) -> None:
        table = segment.tables["transfer_begin"]
        key = transfer_key(segment.json("transfer_begin", "id", row))
        if key is None:
            return
        self._context.transfers[key] = event
        slots = table.get_ints("slots", row)

        def text(name: str) -> str | None:
            return segment.text("transfer_begin", name, row) if name in table.columns else None

        req = text("req")
        served = NOBODY if req is None else self._names.code(req)
        name = segment.json("transfer_begin", "key", row) if "key" in table.columns else None
        self._context.served[key] = served, transfer_key(name)
        leaves = text("via") in ("store", "d2h") or text("direction") == "out"
        if slots is not None and len(slots) and not leaves:
            # The event's own array would keep its whole segment.
            self._context.windows.append(Window(key, event, slots.copy()))

    def transfer_end(self, segment: Segment, row: int, event: int) -> None:
        key = transfer_key(segment.json("transfer_end", "id", row))
        window = None if key is None else self._context.window(key)
        if window is not None:
            window.ended = event

    def transfer_fail(self, segment: Segment, row: int, event: int) -> None:
        key = transfer_key(segment.json("transfer_fail", "id", row))
        window = None if key is None else self._context.window(key)
        if window is not None:
            window.failed = event

    def copy(self, segment: Segment, row: int, event: int) -> None:
        table = segment.tables["copy"]
        dst = table.get_ints("dst", row)
        assert dst is not None

        def text(name: str) -> str | None:
            return segment.text("copy", name, row) if name in table.columns else None

        pool = text("dst_pool") or "full"
        if pool not in DEVICE_POOLS:
            return
        source: Any = segment.json("copy", "src", row)
        from_request = source["req"] if isinstance(source, dict) else None
        key = transfer_key(segment.json("copy", "id", row) if "id" in table.columns else None)
        by = text("by") or from_request
        served = self._context.serves(key)
        writer = served if by is None else self._names.code(by)
        begun = self._context.transfers.get(key, NEVER) if key is not None else NEVER
        canary = table.get_bool("canary", row) is not False
        via_row = table.get_int("via_row", row) if "via_row" in table.columns else None
        via = text("via") or ""
        self._context.copy(CopyFact(event, writer, via, key, begun, canary, via_row))
        window = None if key is None else self._context.window(key)
        if window is not None:
            window.brought.update(dict.fromkeys(dst.tolist(), event))
        foreign: NDArray[np.bool_] | bool = False
        if pool == "full" and by is not None:
            foreign = self._rules.write(dst, self.for_whom(dst, writer, served), event, None)
        writes = self._lane(*POOL_LANE[pool])
        src_pool = text("src_pool") or "full"
        if pool == "full" and by is None and isinstance(source, list):
            src = np.array(source, dtype=np.int64)
            kept = ~self._overwrites(writes, src, dst, src_pool == pool, served, event)
            source, dst = src[kept].tolist(), dst[kept]
        if isinstance(source, list) and canary and by is None:
            # Content that moved within the pool keeps its writer.
            self._move(writes, np.array(source, dtype=np.int64), dst, src_pool, pool, event)
            return
        writes.put(dst, req=writer, step=NOBODY, event=event, kind=BY_COPY, foreign=foreign)

    def for_whom(self, dst: Ints, writer: int, served: int) -> NDArray[np.int32]:
        """[n] name codes: on whose behalf ``writer`` copies into each slot of ``dst`` [n].

        Who copies need not be who holds the slot. A transfer works for the request it names
        (``served``); a request that matched an entry has it loaded into slots of the prefix cache,
        and the cache loads into slots of a request that matched; what a fork meant a copy for may
        be filled by its parent. What has content already is
        nobody's to load but for who holds it, or matched it.
        """
        state, matches = self._rules.state, self._context.matches
        owners = state.owner[dst]
        holders = np.where(owners == FREE, state.last_owner[dst], owners)
        out = np.full(len(dst), writer, dtype=np.int32)
        mine: NDArray[np.bool_] = (holders == served) & (served != NOBODY)
        came, allocated = self._lane(*POOL_LANE["full"]).came(dst), state.alloc_event[dst]
        fresh = (allocated != NEVER) & (came < allocated)
        forks = self._context.cow_event
        if forks:
            meant = np.array([slot in forks for slot in dst.tolist()], dtype=np.bool_)
            mine |= fresh & meant
        if writer == TREE and served == NOBODY:
            mine |= (owners > TREE) & fresh & np.isin(owners, list(matches))
        elif writer != TREE and (owners == TREE).any():
            mine |= (owners == TREE) & (fresh | self._matched(dst, writer))
        out[mine] = holders[mine]
        return out

    def _matched(self, slots: Ints, req: int) -> NDArray[np.bool_]:
        """[n] which of ``slots`` a match of ``req`` served."""
        matched = np.zeros(len(slots), dtype=np.bool_)
        for fact in self._context.matches.get(req, ()):
            matched |= np.isin(slots, fact.slots)
        return matched

    def _overwrites(
        self, writes: Writes, src: Ints, dst: Ints, in_pool: bool, served: int, event: int
    ) -> NDArray[np.bool_]:
        """Enter where a copy that names nobody hit what is not for whom it works.

        Within the pool it works for who has its source, else for ``served``. A slot of another
        request that is empty may be that one's to be filled; one that is free, or that the cache
        has content in, is not, unless it was, or was matched by, whom the copy works for. From
        another tier it may bring the cache's own content anew, layer by layer.

        Returns:
            [n] which slots of ``dst`` [n] are dealt with.
        """
        state = self._rules.state
        owners = state.owner[dst]
        written = np.isin(writes.kind[dst], (BY_FORWARD, BY_VERIFY))
        filled = writes.came(dst) >= state.alloc_event[dst]
        live: NDArray[np.bool_] = (owners > TREE) & written & filled & (owners != served)
        writers = np.full(len(dst), served, dtype=np.int32)
        if in_pool:
            writers[:] = state.owner[src]
            live &= (writers != UNKNOWN) & (writers != owners)
            live |= self._not_for(dst, writers, filled=filled)
            writers[writers == FREE] = served
        else:
            live |= self._not_for(dst, writers, filled=filled & written)
        if live.any():
            self._rules.write(dst[live], writers[live], event, None)
            writes.put(
                dst[live], req=writers[live], step=NOBODY, event=event, kind=BY_COPY, foreign=True
            )
        return live

    def _not_for(
        self, dst: Ints, writers: NDArray[np.int32], *, filled: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        """[n] which of ``dst`` [n] are free, or filled and the cache's, and not the writers'."""
        state = self._rules.state
        owners = state.owner[dst]
        stray: NDArray[np.bool_] = (owners == FREE) | ((owners == TREE) & filled)
        stray &= (writers > TREE) & (state.last_owner[dst] != writers)
        for writer in np.unique(writers[stray]).tolist():
            stray &= (writers != writer) | ~self._matched(dst, writer)
        return stray

    def _move(
        self, writes: Writes, src: Ints, dst: Ints, src_pool: str, pool: str, event: int
    ) -> None:
        if src_pool != pool:
            # The bytes came from another tier, whose writers are not followed: the copy wrote them.
            writes.put(dst, req=NOBODY, step=NOBODY, event=event, kind=BY_COPY)
            return
        events, steps, kinds = writes.event[src], writes.step[src], writes.kind[src]
        writes.put(
            dst,
            req=writes.req[src],
            step=0,
            event=0,
            kind=BY_FORWARD,
            position=writes.position[src].astype(np.int64),
            true_position=writes.true_position[src].astype(np.int64),
            namespace=writes.namespace[src],
        )
        writes.event[dst], writes.step[dst], writes.kind[dst] = events, steps, kinds
        writes.moved_event[dst] = np.where(events == NEVER, NEVER, event)
