"""Follows a running vLLM engine core: what its calls mean as events of the trace.

Launches of the model are told by ``Forwards``. Here are their results, what requests are given, and
their ends.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from kvcanary_cli.record.vllm.forwards import Forwards
from kvcanary_cli.record.vllm.requests import was_aborted
from kvcanary_cli.trace.schema import TREE_OWNER

if TYPE_CHECKING:
    from kvcanary_cli.record.vllm.groups import Group

    Event = dict[str, Any]


class Follower(Forwards):
    """Turns the engine core's calls into events.

    Attributes:
        session: Takes them.
    """

    # Results.

    def enter_update(
        self, scheduler: Any, scheduler_output: Any, model_runner_output: Any, *_a: Any, **_k: Any
    ) -> None:
        """The scheduler is about to take a step's result: which drafts were accepted."""
        if scheduler is not self._pools.scheduler or self.session.tokens.mode == "absent":
            return
        sampled = model_runner_output.sampled_token_ids
        for req in scheduler_output.scheduled_spec_decode_tokens:
            at = model_runner_output.req_id_to_index.get(req)
            said = [] if at is None or not sampled else [int(token) for token in sampled[at]]
            for name in self._names(str(req)):
                self.session.defer(partial(self._accepted, name, said))

    def _accepted(self, req: str, said: list[int]) -> list[Event]:
        """``req`` goes on with ``said``: accepted drafts, and one token behind them."""
        drafted = self._drafted.pop(req, None)
        if drafted is None or not said:
            return []
        prefix, fed = drafted
        accepted = len(said) - 1
        tokens = np.array([*fed[: accepted + 1], said[-1]], dtype=np.int64)
        return [
            {
                "kind": "accept",
                "req": req,
                "nodes": list(range(accepted + 1)),
                "tokens": self.session.tokens.encode(tokens),
                "committed_len": prefix + accepted + 1,
            }
        ]

    def leave_update(self, *_args: Any, **_kwargs: Any) -> None:
        """The step is over."""
        self.session.commit(step=self._forwards_open > 0)
        self._forwards_open = 0

    def leave_finish(self, *_args: Any, **_kwargs: Any) -> None:
        """Requests were ended from outside; no step may follow."""
        self.session.commit()

    # Allocation on behalf of requests.

    def leave_allocate(
        self,
        entered: bool | None,
        result: Any,
        raised: bool,
        manager: Any,
        request: Any,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: Any = None,
        num_lookahead_tokens: int = 0,
        num_external_computed_tokens: int = 0,
        delay_cache_blocks: bool = False,
        *_args: Any,
        **_kwargs: Any,
    ) -> None:
        if not entered:
            return
        self.end_allocate(request)
        if raised or result is None or not self._pools.told:
            return
        if num_new_computed_tokens and new_computed_blocks is not None:
            for group in self._pools.told:
                self._match(request, group, new_computed_blocks.blocks[group.number])
        if num_external_computed_tokens:
            begin = int(request.num_computed_tokens) + int(num_new_computed_tokens)
            self._load(request, begin, int(num_external_computed_tokens), bool(delay_cache_blocks))

    def _match(self, request: Any, group: Group, blocks: Any) -> None:
        held = [int(block.block_id) for block in blocks if not block.is_null]
        if not held:
            return
        req, slots = group.name(str(request.request_id)), self._ledger.slots(held)
        self._hits[req] = set(slots.tolist())
        namespace = self._namespaces.of(request)

        def matched() -> list[Event]:
            entry = self._ledger.entry_of(held[-1])
            event = {"kind": "match", "req": req, "entry": entry, "slots": slots}
            return [{**event, "namespace": namespace} if namespace else event]

        self.session.defer(matched)

    def _namespace_of(self, request: Any) -> str:
        return self._namespaces.of(request)

    # Ends of requests.

    def enter_preempt(self, scheduler: Any, *_args: Any, **_kwargs: Any) -> bool:
        if scheduler is not self._pools.scheduler:
            return False
        self._retracting += 1
        return True

    def leave_preempt(
        self,
        entered: bool | None,
        _res: Any,
        raised: bool,
        _sched: Any,
        request: Any,
        *_a: Any,
        **_kw: Any,
    ) -> None:
        if not entered:
            return
        self._retracting -= 1
        if not raised:
            self._end("retract", request)

    def leave_free_request(
        self,
        _token: Any,
        _res: Any,
        raised: bool,
        scheduler: Any,
        request: Any,
        *_a: Any,
        **_kw: Any,
    ) -> None:
        if raised or scheduler is not self._pools.scheduler:
            return
        self._tell_history(request)
        self._end("abort" if was_aborted(request) else "finish", request)
        for name in self._names(str(request.request_id)):
            self._histories.forget(name)

    def _end(self, kind: str, request: Any) -> None:
        req = str(request.request_id)
        row = self._rows.release(req)
        for name in self._names(req):
            self.session.emit({"kind": kind, "req": name})
        for group in self._pools.told:
            name, its = group.name(req), None if row is None else row + group.rows_before
            if its is not None:
                self.session.emit({"kind": "row_release", "row": its, "req": name})
            self.session.defer(partial(self._ended, name, its))
            self._hits.pop(name, None)
            self._windows.forget(name)

    def _ended(self, req: str, row: int | None) -> list[Event]:
        if row is not None:
            self._table.forget(row)
        self._drafted.pop(req, None)
        return []

    # A recording that begins in a running engine.

    def adopt(self) -> None:
        """Tell who holds what now."""
        size = self._pools.block_size
        groups = {group.number: group for group in self._pools.told}
        held: set[int] = set()
        managers = self._pools.scheduler.kv_cache_manager.coordinator.single_type_managers
        for number, manager in enumerate(managers):
            group = groups.get(number)
            for req, blocks in manager.req_to_blocks.items():
                before, name = -1, str(req) if group is None else group.name(str(req))
                for k, block in enumerate(blocks):
                    at = int(block.block_id)
                    if not block.is_null and at not in held:
                        held.add(at)
                        self._ledger.adopt(at, name)
                        if group is not None and block.block_hash is not None:
                            self._ledger.publish(at, name, k * size, before)
                    before = 0 if group is None or group.slides else at * size + size - 1
        for block in self._pools.blocks.blocks:
            if block.block_hash is not None and int(block.block_id) not in held:
                self._ledger.adopt(int(block.block_id), TREE_OWNER)
        self.session.defer(lambda: self._ledger.retell(gap=False))
        self._adopt_sends()
