"""Who takes slots and who gives them back, by what calls the allocators are called within."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kvcanary_cli.record.ledger import FREE, TREE
from kvcanary_cli.record.shadows import to_host
from kvcanary_cli.trace.schema import TREE_OWNER

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from kvcanary_cli.record.sglang.scene import Scene

    Ints = NDArray[np.int64]
    Event = dict[str, Any]

#: The engine's own layers above an allocator.
_ALLOCATING = ("alloc_token_slots", "alloc_paged", "alloc_extend", "free")
#: Allocations in these functions are the prefix cache's own.
_CACHE_CALLERS = ("load", "load_back", "_alloc_prefetch_aux_staging")


@dataclass(slots=True)
class _Actor:
    """On whose behalf slots are given back within a call.

    Attributes:
        name: Request id, or ``tree``.
        reason: The ``free`` event's reason.
        row: Where a request's slots are known; what the cache frees beside them is the tree's.
            None = all that is given back is the actor's.
    """

    name: str
    reason: str
    row: _Checkpoint | None = None


@dataclass(slots=True)
class _Checkpoint:
    """A request's row before its prefix goes into the cache.

    Attributes:
        name: The request.
        row: Its row.
        protected: How much of the row is the cache's already.
        stop: How much of it goes into the cache.
        cells: [stop] its slots, once they are on the host.
    """

    name: str
    row: int
    protected: int
    stop: int
    cells: Ints

    def keep(self, cells: Ints) -> list[Event]:
        self.cells = cells
        return []


class Allocations:
    """Turns calls of allocators and of the prefix cache into events.

    ``enter...`` come before a call, ``leave...`` and ``on_...`` after it. Slots are the values of
    tensors, so that what they mean is worked out where they are known: in deferred functions, which
    alone touch the ledger.
    """

    def __init__(self, scene: Scene) -> None:
        self.session = scene.session
        self._pools, self._ledger, self._table = scene.pools, scene.ledger, scene.table
        self._requests = scene.requests
        self._depth = 0
        self._taker: list[tuple[str, int]] = []
        self._actors: list[_Actor] = []

    # Allocation.

    def enter(self, allocator: Any, *_args: Any, **_kwargs: Any) -> bool:
        """An allocator's call begins; whether it is one of the pool's, and not within another."""
        if allocator is not self._pools.allocator:
            return False
        self._depth += 1
        return self._depth == 1

    def leave(self, _outer: Any, _result: Any, _raised: bool, allocator: Any, *_a: Any) -> None:
        """What is given back at the end of a free group was told when it was queued."""
        if allocator is self._pools.allocator:
            self._depth -= 1

    def on_alloc(
        self, outer: Any, result: Any, raised: bool, allocator: Any, *_args: Any, **_kwargs: Any
    ) -> None:
        self.leave(outer, result, raised, allocator)
        if not outer or raised or result is None:
            return
        taker = self._taker
        if sum(count for _, count in taker) != len(result):
            taker = []
        caller = "" if taker else _caller()
        self.session.defer(lambda slots: self._taken(slots, taker, caller), result)

    def _taken(self, slots: Ints, taker: list[tuple[str, int]], caller: str) -> list[Event]:
        if taker:
            stops = np.cumsum([count for _, count in taker])
            parts = np.split(slots, stops[:-1])
            return [
                event
                for (name, _), part in zip(taker, parts, strict=True)
                for event in self._ledger.alloc(name, part)
            ]
        if caller in _CACHE_CALLERS:
            return self._ledger.alloc(TREE_OWNER, slots) + self._ledger.own(TREE_OWNER, slots)
        return self._ledger.alloc(f"engine:{caller}", slots)

    def on_free(
        self, outer: Any, _result: Any, raised: bool, allocator: Any, slots: Any, **_kwargs: Any
    ) -> None:
        self.leave(outer, _result, raised, allocator)
        if outer and not raised and len(slots):
            size = self._pools.page_size
            self._free(lambda given: self._ledger.with_pages(given, size), slots)

    def on_free_pages(
        self, outer: Any, _result: Any, raised: bool, allocator: Any, pages: Any, **_kwargs: Any
    ) -> None:
        self.leave(outer, _result, raised, allocator)
        if outer and not raised and len(pages):
            self._free(self._of_pages, pages)

    def _of_pages(self, pages: Ints) -> Ints:
        size = self._pools.page_size
        every = (pages[:, None] * size + np.arange(size)).reshape(-1)
        owned = every[self._ledger.owners(every) > FREE]
        return owned if len(owned) else every

    def on_clear(self, outer: Any, _result: Any, raised: bool, allocator: Any, *_a: Any) -> None:
        self.leave(outer, _result, raised, allocator)
        if outer and not raised:
            self.session.defer(self._cleared)

    def _cleared(self) -> list[Event]:
        return self._ledger.free(None, np.flatnonzero(self._ledger.owner > FREE), "clear")

    def _free(self, slots_of: Callable[[Ints], Ints], given: Any) -> None:
        """Tell that ``slots_of(given)`` come back, on behalf of whoever acts now."""
        actor = self._actors[-1] if self._actors else _Actor("", _caller())
        self.session.defer(lambda values: self._freed(slots_of(values), actor), given)

    def _freed(self, slots: Ints, actor: _Actor) -> list[Event]:
        if actor.row is None:
            return self._ledger.free(actor.name or None, slots, actor.reason)
        mine = np.isin(slots, actor.row.cells)
        return self._ledger.free(actor.name, slots[mine], actor.reason) + self._ledger.free(
            TREE_OWNER, slots[~mine], "replaced"
        )

    def enter_alloc_extend(self, batch: Any, *_args: Any, **_kwargs: Any) -> list[Any]:
        """A prefill takes slots; requests that get a row now, with their prefix from the cache."""
        fresh = [req for req in batch.reqs if not req.kv.holds_kv]
        self._taker = [
            (str(req.rid), int(count))
            for req, count in zip(batch.reqs, batch.extend_lens, strict=True)
        ]
        return fresh

    def leave_alloc_extend(
        self, fresh: list[Any] | None, _result: Any, raised: bool, batch: Any, *_a: Any, **_k: Any
    ) -> None:
        self._taker = []
        if raised:
            return
        for req in batch.reqs:
            self._requests.enter(req)
        for req in fresh or ():
            self._match(req)

    def _match(self, req: Any) -> None:
        length = int(req.prefix_len)
        if length <= 0 or req.kv.req_pool_idx is None:
            return
        name, namespace = str(req.rid), self._requests.namespace(req)

        def matched(slots: Ints) -> list[Event]:
            entry = self._ledger.entry_of(int(slots[-1]))
            event = {"kind": "match", "req": name, "entry": entry, "slots": slots}
            return [{**event, "namespace": namespace} if namespace else event]

        self.session.defer(matched, self._table.cells(int(req.kv.req_pool_idx), 0, length))

    def enter_alloc_decode(self, batch: Any, token_per_req: int, *_a: Any, **_k: Any) -> None:
        names = [self._requests.enter(req) for req in batch.reqs]
        if getattr(batch, "beam_tail", None) is not None:
            rows = to_host(batch.req_pool_indices_cpu)[len(names) :]
            names += [self._requests.of_row.get(row, "unknown") for row in rows.tolist()]
        self._taker = [(name, int(token_per_req)) for name in names]

    def enter_alloc_spec(self, *_args: Any, **kwargs: Any) -> None:
        counts = to_host(kwargs["nxt_kv_lens_cpu"]) - to_host(kwargs["cur_kv_lens_cpu"])
        self._taker = [
            (self._requests.enter(req), int(count))
            for req, count in zip(kwargs["reqs"], counts.tolist(), strict=True)
        ]

    def enter_alloc_received(
        self, _allocator: Any, *, req: Any, delta_len: int, **_kwargs: Any
    ) -> None:
        """Slots for a prompt that another server prefills."""
        self._taker = [(self._requests.enter(req), int(delta_len))]

    def leave_alloc(self, *_args: Any, **_kwargs: Any) -> None:
        self._taker = []

    # The prefix cache.

    def enter_checkpoint(self, _cache: Any, req: Any, *, up_to: int, **_kw: Any) -> _Checkpoint:
        name, row = self._requests.enter(req), int(req.kv.req_pool_idx)
        protected = int(req.kv.cache_protected_len)
        begun = _Checkpoint(name, row, protected, up_to, np.zeros(0, dtype=np.int64))
        self.session.defer(begun.keep, self._table.cells(row, 0, up_to))
        # Positions of the prefix are those of the row, so the trace must know the row by now.
        self._table.tell(self.session, [row], [up_to])
        self._actors.append(_Actor(name, "duplicate", begun))
        return begun

    def leave_checkpoint(
        self, begun: _Checkpoint | None, _res: Any, raised: bool, _c: Any, req: Any, **_kw: Any
    ) -> None:
        if begun is None:
            return
        self._actors.pop()
        stop = min(int(req.kv.cache_protected_len), begun.stop)
        if raised or stop <= begun.protected:
            return
        self._table.tell(self.session, [begun.row], [begun.stop])
        now = self._table.cells(begun.row, 0, stop)
        self.session.defer(lambda cells: self._cached(begun, cells), now)

    def _cached(self, begun: _Checkpoint, now: Ints) -> list[Event]:
        """The prefix is in the cache: what the request's row has kept of its own is the tree's."""
        kept = now == begun.cells[: len(now)]
        kept[: begun.protected] = False
        kept &= self._ledger.owners(now) != TREE
        positions = np.flatnonzero(kept)
        return [
            event
            for run in np.split(positions, np.flatnonzero(np.diff(positions) != 1) + 1)
            for event in self._ledger.own(begun.name, now[run])
        ]

    def enter_evict(self, *_args: Any, **_kwargs: Any) -> bool:
        self._actors.append(_Actor(TREE_OWNER, "evict"))
        return True

    def enter_free_row(self, _cache: Any, kv: Any, _ranges: Any = None, **_kwargs: Any) -> bool:
        row = kv.req_pool_idx
        name = None if row is None else self._requests.of_row.get(int(row))
        if name is None:
            return False
        self._actors.append(_Actor(name, "release"))
        return True

    def leave_actor(self, entered: bool | None, *_args: Any, **_kwargs: Any) -> None:
        if entered:
            self._actors.pop()


def _caller() -> str:
    """Name of the engine's function that called the allocator."""
    frame = sys._getframe(1).f_back
    while frame is not None:
        name = frame.f_code.co_name
        inside = frame.f_globals.get("__name__", "").startswith("sglang.")
        if inside and not name.startswith(_ALLOCATING):
            return name
        frame = frame.f_back
    return "unknown"
