"""What vLLM's block pool does, as changes of owners: alloc, free, cache, evict, reset."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvcanary_cli.record.session import Session
    from kvcanary_cli.record.vllm.blocks import BlockLedger
    from kvcanary_cli.record.vllm.pools import Pools

    Event = dict[str, Any]

#: Functions on the way from whoever gives back to the free list.
_PASSED = ("append", "append_n", "prepend_n", "free_blocks", "get_new_blocks", "run", "wrapper")


@dataclass(frozen=True, slots=True)
class _Actor:
    """On whose behalf the pool is called.

    Attributes:
        name: Request id.
        reason: The ``free`` event's reason.
    """

    name: str
    reason: str


class PoolCalls:
    """Follows the block pool and who calls it.

    The ledger belongs to deferred functions, so that it is as old as the step that they are of.
    """

    def __init__(self, session: Session, pools: Pools, ledger: BlockLedger) -> None:
        self.session = session
        self._pools = pools
        self._ledger = ledger
        self._actors: list[_Actor] = []
        self._retracting = 0
        # Blocks taken for the request that is being served, not told yet: which group of layers
        # they are for is known when they stand in its table.
        self._taken: list[int] | None = None

    def _namespace_of(self, request: Any) -> str:
        raise NotImplementedError

    # The pool's own calls.

    def on_new_blocks(
        self, _token: Any, result: Any, raised: bool, pool: Any, *_args: Any, **_kwargs: Any
    ) -> None:
        """Blocks were handed out."""
        if raised or pool is not self._pools.blocks:
            return
        owner = self._actors[-1].name if self._actors else f"engine:{_caller()}"
        blocks = [int(block.block_id) for block in result]
        if self._taken is None:
            self.session.defer(lambda: self._ledger.alloc(owner, blocks))
        else:
            self._taken += blocks

    def _tell_taken(self, req: str) -> None:
        """Blocks that were taken for ``req``, by group of layers."""
        if not self._taken:
            return
        taken, self._taken = self._taken, []
        tables = self._pools.scheduler.kv_cache_manager.coordinator.get_blocks(req)
        for group in self._pools.told[1:]:
            held = {int(block.block_id) for block in tables[group.number]}
            mine = [block for block in taken if block in held]
            taken = [block for block in taken if block not in held]
            self.session.defer(partial(self._ledger.alloc, group.name(req), mine))
        self.session.defer(partial(self._ledger.alloc, req, taken))

    def on_queued(self, _token: Any, _result: Any, raised: bool, queue: Any, blocks: Any) -> None:
        """Blocks that nobody refers to any more came to the free list."""
        if raised or queue is not self._pools.blocks.free_block_queue:
            return
        blocks = blocks if isinstance(blocks, list | tuple) else [blocks]
        given = [(int(b.block_id), b.block_hash is not None) for b in blocks]
        if not given:
            return
        actor = self._actors[-1] if self._actors else None
        reason = _caller() if actor is None else actor.reason
        name = None if actor is None else actor.name
        self.session.defer(lambda: self._ledger.give_back(name, given, reason))

    def on_freed(self, _token: Any, _res: Any, raised: bool, pool: Any, blocks: Any) -> None:
        """A request gave up blocks, of which others may still use some; behind a window, say.

        Of all that a request holds, ``leave_free`` knows.
        """
        if not raised and pool is self._pools.blocks and self._actors and isinstance(blocks, list):
            self._leave_to_others(self._actors[-1].name, blocks)

    def on_cached(
        self,
        _token: Any,
        _result: Any,
        raised: bool,
        pool: Any,
        request: Any,
        blocks: Any,
        num_cached_blocks: int,
        num_full_blocks: int,
        block_size: int,
        kv_cache_group_id: int,
        *_args: Any,
        **_kwargs: Any,
    ) -> None:
        """Full blocks of a request became visible to others."""
        told = (one for one in self._pools.told if one.number == kv_cache_group_id)
        group = next(told, None)
        if raised or pool is not self._pools.blocks or group is None:
            return
        self._tell_taken(str(request.request_id))
        req, namespace = group.name(str(request.request_id)), self._namespace_of(request)
        for k in range(num_cached_blocks, num_full_blocks):
            block = blocks[k]
            if block.is_null or block.block_hash is None:
                continue
            before = -1 if k == 0 else int(blocks[k - 1].block_id) * block_size + block_size - 1
            if k and group.slides:
                # It may have been given back by now, and is given back first.
                before = 0
            at, start = int(block.block_id), k * block_size
            self.session.defer(partial(self._ledger.publish, at, req, start, before, namespace))

    def on_evicted(self, _token: Any, result: Any, raised: bool, pool: Any, block: Any) -> None:
        """The prefix cache dropped a block."""
        if not raised and result and pool is self._pools.blocks:
            at, in_use = int(block.block_id), int(block.ref_cnt) > 0
            self.session.defer(lambda: self._ledger.evict(at, in_use=in_use))

    def on_reset(self, _token: Any, result: Any, raised: bool, pool: Any) -> None:
        """The prefix cache dropped everything."""
        if not raised and result and pool is self._pools.blocks:
            self.session.defer(self._ledger.clear_cache)

    # Who calls it.

    def enter_allocate(self, manager: Any, request: Any, *_args: Any, **_kwargs: Any) -> bool:
        entered = self._act(manager, str(request.request_id), "window")
        if entered and len(self._pools.told) > 1:
            self._taken = []
        return entered

    def end_allocate(self, request: Any) -> None:
        """Undo ``enter_allocate``; tells what was taken meanwhile."""
        self._tell_taken(str(request.request_id))
        self._taken = None
        self._actors.pop()

    def enter_skipped(self, manager: Any, request_id: str, *_args: Any, **_kwargs: Any) -> bool:
        """Blocks behind a request's window are given back."""
        return self._act(manager, str(request_id), "window")

    def leave_actor(self, entered: bool | None, *_args: Any, **_kwargs: Any) -> None:
        if entered:
            self._actors.pop()

    def enter_free(self, manager: Any, request: Any) -> list[Any] | None:
        """A request gives up all its blocks; which they are."""
        name = str(request.request_id)
        if not self._act(manager, name, "retract" if self._retracting else "release"):
            return None
        return [block for group in manager.coordinator.get_blocks(name) for block in group]

    def leave_free(
        self, held: list[Any] | None, _res: Any, _raised: bool, _manager: Any, request: Any
    ) -> None:
        if held is not None:
            self._actors.pop()
            self._leave_to_others(str(request.request_id), held)

    def leave_pop(self, _token: Any, result: Any, raised: bool, manager: Any, request: Any) -> None:
        """A request gives up all its blocks, which come to the free list later."""
        if not raised and manager is self._pools.scheduler.kv_cache_manager:
            shared = [block for block in result if int(block.ref_cnt) > 1]
            self._leave_to_others(str(request.request_id), shared)

    def _act(self, manager: Any, name: str, reason: str) -> bool:
        if manager is not self._pools.scheduler.kv_cache_manager:
            return False
        self._actors.append(_Actor(name, reason))
        return True

    def _leave_to_others(self, name: str, blocks: list[Any]) -> None:
        """Blocks that ``name`` gave up while others still use them are the cache's."""
        used = [int(b.block_id) for b in blocks if int(b.ref_cnt) > 0 and not b.is_null]
        if not used:
            return

        def left() -> list[Event]:
            events: list[Event] = []
            for giver in [group.name(name) for group in self._pools.told] or [name]:
                mine = [block for block in used if self._ledger.owner(block) == giver]
                events += self._ledger.to_cache(giver, mine)
            return events

        self.session.defer(left)


def _caller() -> str:
    """Name of the engine's function that called the pool."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        module = frame.f_globals.get("__name__", "")
        if not module.startswith("kvcanary_cli.") and frame.f_code.co_name not in _PASSED:
            return frame.f_code.co_name
        frame = frame.f_back
    return frame.f_code.co_name
