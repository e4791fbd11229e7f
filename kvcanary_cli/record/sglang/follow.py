"""Follows a running SGLang scheduler: what its calls mean as events of the trace.

All methods run on the scheduler's thread. ``enter...`` come before a call, ``leave...`` and
``on_...`` after it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kvcanary_cli.record.ledger import FREE, TREE
from kvcanary_cli.record.sglang.beams import Beams
from kvcanary_cli.record.sglang.forwards import Batch
from kvcanary_cli.record.sglang.graphs import Padding
from kvcanary_cli.record.sglang.handoffs import Handoffs
from kvcanary_cli.record.sglang.scene import Scene
from kvcanary_cli.record.sglang.speculation import Speculation
from kvcanary_cli.record.sglang.tiers import Tiers
from kvcanary_cli.record.shadows import to_host
from kvcanary_cli.trace.schema import TREE_OWNER

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvcanary_cli.record.session import Session
    from kvcanary_cli.record.sglang.fingerprints import Fingerprints
    from kvcanary_cli.record.sglang.pools import Pools

    Ints = NDArray[np.int64]

#: How long an engine that ends itself waits for the disk.
_LAST_WORDS_S = 2.0
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
        row: The request's slots; what the cache frees beside them is the tree's. None = any.
    """

    name: str
    reason: str
    row: Ints | None = None


@dataclass(slots=True)
class _Forward:
    """A forward that is under way."""

    step: int
    event: dict[str, Any]
    is_draft: bool


@dataclass(slots=True)
class _Checkpoint:
    """A request's row before its prefix goes into the cache."""

    name: str
    row: int
    protected: int
    cells: Ints


class Follower:
    """Turns the scheduler's calls into events.

    Attributes:
        session: Takes them.
        speculation, padding, tiers, handoffs, beams: Parts, each with calls of its own.
        canary_said: What the engine's canary has reported in the forward under way, or empty.
    """

    def __init__(
        self,
        session: Session,
        pools: Pools,
        fingerprints: Fingerprints | None,
        *,
        is_overlapped: bool = False,
    ) -> None:
        """Nothing has been told.

        Args:
            session: Takes the events.
            pools: The engine's live pools.
            fingerprints: Folds KV bytes, or None.
            is_overlapped: Whether forwards are queued before the last one's results are known.
        """
        self.session = session
        self._pools = pools
        self._fingerprints = fingerprints
        self._is_overlapped = is_overlapped
        scene = Scene(session, pools)
        self._scene = scene
        self._ledger, self._table, self._lut = scene.ledger, scene.table, scene.lut
        self._histories, self._requests = scene.histories, scene.requests
        self._tell_history = scene.tell_history
        self.speculation, self.tiers = Speculation(scene), Tiers(scene)
        self.handoffs, self.beams = Handoffs(scene), Beams(scene)
        self.padding = Padding(session.tokens)
        self.canary_said = ""
        self._depth = 0
        self._taker: list[tuple[str, int]] = []
        self._actors: list[_Actor] = []
        self._retracting = 0
        self._step = 0
        self._draft_step = 0
        self._forwards_open = 0

    # Forwards.

    def before_forward(self, runner: Any, forward_batch: Any) -> _Forward | None:
        """A forward of the target or a draft model begins."""
        if getattr(forward_batch, "req_pool_indices", None) is None:
            return None
        session, draft = self.session, bool(runner.is_draft_worker)
        if not draft and self._forwards_open > 1:
            # Nothing else ends steps here: SGLang's own end of a step was not seen.
            self.on_step_end()
        batch = Batch(forward_batch, self._requests.of_row)
        if not len(batch.rows) or batch.has_siblings:
            return None
        step = self._step
        if not draft:
            self._tell_histories(batch)
        self._tell_lut()
        session.emit_all(self._table.show(batch.rows.tolist(), batch.row_lengths.tolist()))
        if self._is_overlapped and not draft:
            session.emit_all(batch.launches(step))
        if self._fingerprints is not None and not draft:
            lut = self._host_lut()
            session.emit_all(self._fingerprints.before(step, self._prefix_slots(batch), lut))
        event = batch.event(step, session.tokens, self._requests.namespaces(batch.reqs))
        if draft:
            event |= {"worker": "draft", "draft_step": self._draft_step}
            self._draft_step += 1
        session.emit(event)
        self.padding.opens(event)
        return _Forward(step, event, draft)

    def after_forward(
        self, forward: _Forward | None, _result: Any, raised: bool, *_args: Any, **_kw: Any
    ) -> None:
        """It has run, or on a GPU: everything queued from here on runs behind it."""
        self.padding.closes()
        self._heed_canary(raised)
        if forward is None or forward.is_draft:
            return
        if self._fingerprints is not None and not raised:
            slots = forward.event["out_cache_loc"]
            self.session.emit_all(self._fingerprints.after(forward.step, slots, self._host_lut()))
        self._step += 1
        self._draft_step = 0
        self._forwards_open += 1

    def _heed_canary(self, raised: bool) -> None:
        """Keep the recording if the engine's own canary has something to say."""
        error = sys.exc_info()[1] if raised else None
        if error is not None and "canary" in str(error):
            # The engine ends itself now.
            text = self.canary_said or str(error)
            self.session.trigger("canary", _first_line(text), wait_s=_LAST_WORDS_S)
        elif self.canary_said:
            self.session.trigger("canary", _first_line(self.canary_said))
        self.canary_said = ""

    def before_draft_graph(self, graph: Any, forward_batch: Any, *_a: Any, **_k: Any) -> Any:
        """A draft model's captured graph runs, which is no forward of its runner."""
        return self.before_forward(graph.model_runner, forward_batch)

    def on_step_end(self, *_args: Any, **_kwargs: Any) -> None:
        """The scheduler has dealt with a batch's result."""
        self.session.commit(step=self._forwards_open > 0)
        self._forwards_open = 0

    def _tell_histories(self, batch: Batch) -> None:
        for name in batch.reqs:
            req = None if name is None else self._requests.by_id.get(name)
            if req is not None:
                self._tell_history(req)

    def _tell_lut(self) -> None:
        if self._lut is not None:
            self.session.emit_all(self._lut.show(self._pools.lut))

    def _host_lut(self) -> Ints | None:
        return None if self._pools.lut is None else to_host(self._pools.lut)

    def _prefix_slots(self, batch: Batch) -> Ints:
        parts = [
            self._table.row(row, length)
            for row, length in zip(batch.rows.tolist(), batch.prefix_lens.tolist(), strict=True)
            if row and length > 0
        ]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)

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
        slots = to_host(result)
        if sum(count for _, count in self._taker) == len(slots):
            start = 0
            for name, count in self._taker:
                self.session.emit_all(self._ledger.alloc(name, slots[start : start + count]))
                start += count
            return
        caller = _caller()
        if caller in _CACHE_CALLERS:
            self.session.emit_all(self._ledger.alloc(TREE_OWNER, slots))
            self.session.emit_all(self._ledger.own(TREE_OWNER, slots))
        else:
            self.session.emit_all(self._ledger.alloc(f"engine:{caller}", slots))

    def on_free(
        self, outer: Any, _result: Any, raised: bool, allocator: Any, slots: Any, **_kwargs: Any
    ) -> None:
        self.leave(outer, _result, raised, allocator)
        if outer and not raised and len(slots):
            self._free(self._ledger.with_pages(to_host(slots), self._pools.page_size))

    def on_free_pages(
        self, outer: Any, _result: Any, raised: bool, allocator: Any, pages: Any, **_kwargs: Any
    ) -> None:
        self.leave(outer, _result, raised, allocator)
        if outer and not raised and len(pages):
            size = self._pools.page_size
            every = (to_host(pages)[:, None] * size + np.arange(size)).reshape(-1)
            owned = every[self._ledger.owner[every] > FREE]
            self._free(owned if len(owned) else every)

    def on_clear(self, outer: Any, _result: Any, raised: bool, allocator: Any, *_a: Any) -> None:
        self.leave(outer, _result, raised, allocator)
        if outer and not raised:
            owned = np.flatnonzero(self._ledger.owner > FREE)
            self.session.emit_all(self._ledger.free(None, owned, "clear"))

    def _free(self, slots: Ints) -> None:
        actor = self._actors[-1] if self._actors else None
        if actor is None:
            self.session.emit_all(self._ledger.free(None, slots, _caller()))
        elif actor.row is None:
            self.session.emit_all(self._ledger.free(actor.name, slots, actor.reason))
        else:
            mine = np.isin(slots, actor.row)
            self.session.emit_all(self._ledger.free(actor.name, slots[mine], actor.reason))
            self.session.emit_all(self._ledger.free(TREE_OWNER, slots[~mine], "replaced"))

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
        slots = self._table.row(int(req.kv.req_pool_idx), length)
        event = {
            "kind": "match",
            "req": str(req.rid),
            "entry": self._ledger.entry_of(int(slots[-1])),
            "slots": slots,
        }
        namespace = self._requests.namespace(req)
        self.session.emit({**event, "namespace": namespace} if namespace else event)

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

    def enter_alloc_received(self, *args: Any, **kwargs: Any) -> None:
        self._taker = [self.handoffs.enter_prealloc(*args, **kwargs)]

    def leave_alloc(self, *_args: Any, **_kwargs: Any) -> None:
        self._taker = []

    # The prefix cache.

    def enter_checkpoint(self, _cache: Any, req: Any, *, up_to: int, **_kw: Any) -> _Checkpoint:
        name, row = self._requests.enter(req), int(req.kv.req_pool_idx)
        cells = self._table.row(row, up_to)
        # Positions of the prefix are those of the row, so the trace must know the row by now.
        self.session.emit_all(self._table.show([row], [up_to]))
        self._actors.append(_Actor(name, "duplicate", cells))
        return _Checkpoint(name, row, int(req.kv.cache_protected_len), cells)

    def leave_checkpoint(
        self, begun: _Checkpoint | None, _res: Any, raised: bool, _c: Any, req: Any, **_kw: Any
    ) -> None:
        if begun is None:
            return
        self._actors.pop()
        stop = min(int(req.kv.cache_protected_len), len(begun.cells))
        if raised or stop <= begun.protected:
            return
        self.session.emit_all(self._table.show([begun.row], [len(begun.cells)]))
        now = self._table.row(begun.row, stop)
        kept = now == begun.cells[:stop]
        kept[: begun.protected] = False
        kept &= self._ledger.owner[now] != TREE
        positions = np.flatnonzero(kept)
        for run in np.split(positions, np.flatnonzero(np.diff(positions) != 1) + 1):
            self.session.emit_all(self._ledger.own(begun.name, now[run]))

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

    # Ends of requests.

    def enter_retract(self, *_args: Any, **_kwargs: Any) -> bool:
        self._retracting += 1
        return True

    def leave_retract(self, entered: bool | None, *_args: Any, **_kwargs: Any) -> None:
        if entered:
            self._retracting -= 1

    def on_row_free(self, _pool: Any, req: Any, *_args: Any, **_kwargs: Any) -> None:
        """A request's slots are given back, its row comes next."""
        name, row = str(req.rid), int(req.kv.req_pool_idx)
        kind = self._end_of(req)
        if kind != "retract":
            self._tell_history(req)
        self.session.emit({"kind": kind, "req": name})
        self.session.emit({"kind": "row_release", "row": row, "req": name})
        self._requests.leave(name, row)
        if kind != "retract":
            self._histories.forget(name)
            self._ledger.forget(name)

    def _end_of(self, req: Any) -> str:
        reason = getattr(req, "finished_reason", None) or getattr(req, "to_finish", None)
        if reason is None and self._retracting:
            return "retract"
        return "abort" if reason is None or "ABORT" in type(reason).__name__ else "finish"


def _first_line(text: str) -> str:
    return text.partition("\n")[0]


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
