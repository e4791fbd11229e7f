"""Follows a running vLLM engine core: what its calls mean as events of the trace.

``enter...`` come before a call, ``leave...`` and ``on_...`` after it, all on the engine core's
thread. What a launch means is worked out in deferred functions, where the values of its tensors are
known: these alone touch ledger, table shadow, drafts and the number of the step.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from kvcanary_cli.record.shadows import HistoryShadow
from kvcanary_cli.record.vllm.batches import Inputs, computed_of, of_scheduler
from kvcanary_cli.record.vllm.blocks import BlockLedger
from kvcanary_cli.record.vllm.connector_calls import ConnectorCalls
from kvcanary_cli.record.vllm.launches import Launch
from kvcanary_cli.record.vllm.requests import Namespaces, Rows, was_aborted
from kvcanary_cli.record.vllm.tables import BlockTableShadow
from kvcanary_cli.trace.schema import TREE_OWNER

if TYPE_CHECKING:
    from kvcanary_cli.record.session import Session
    from kvcanary_cli.record.vllm.batches import Batch
    from kvcanary_cli.record.vllm.fingerprints import Fingerprints
    from kvcanary_cli.record.vllm.pools import Pools

    Event = dict[str, Any]


class Follower(ConnectorCalls):
    """Turns the engine core's calls into events.

    Attributes:
        session: Takes them.
    """

    def __init__(
        self,
        session: Session,
        pools: Pools,
        fingerprints: Fingerprints | None,
        *,
        tokens_known: bool,
    ) -> None:
        """Prepare.

        Args:
            session: Takes the events.
            pools: What to follow.
            fingerprints: Folds KV bytes, or None.
            tokens_known: Whether the scheduler knows a batch's tokens when it sends it.
        """
        ledger = BlockLedger(pools.num_blocks, pools.block_size)
        super().__init__(session, pools, ledger)
        self._fingerprints = fingerprints
        self._tokens_known = tokens_known
        self._table = BlockTableShadow(pools.rows, pools.blocks_per_row, pools.table_block_size)
        self._histories = HistoryShadow(session.tokens)
        self._rows = Rows(pools.rows)
        self._namespaces = Namespaces()
        for state in (self._table, self._histories):
            session.add_state(state)
        self._output: Any = None
        self._prepared: Launch | None = None
        self._hits: dict[str, set[int]] = {}
        self._drafted: dict[str, tuple[int, list[int]]] = {}
        self._step = 0
        self._forwards_open = 0

    @property
    def _requests(self) -> Any:
        return self._pools.scheduler.requests

    # Forwards.

    def enter_execute(self, runner: Any, scheduler_output: Any, *_args: Any, **_kw: Any) -> bool:
        """The runner begins a step; what it runs outside of one is warm-up."""
        if runner is not self._pools.runner:
            return False
        self._output = scheduler_output
        return True

    def leave_execute(
        self, entered: bool | None, _result: Any, raised: bool, *_args: Any, **_kwargs: Any
    ) -> None:
        if entered:
            self._output = None
            launch, self._prepared = self._prepared, None
            self.after_forward(launch, None, raised)

    def before_forward(
        self, runner: Any, input_ids: Any = None, *_args: Any, **_kwargs: Any
    ) -> Launch | None:
        """The model is about to run; ``input_ids`` is what it is fed."""
        group, output = self._pools.group, self._output
        if runner is not self._pools.runner or group is None or output is None:
            return None
        if input_ids is None:
            input_ids = runner.input_ids.gpu
        return self._begin(Inputs.of_runner(runner, output, group, input_ids, self._requests))

    def on_prepared(
        self, _token: Any, result: Any, raised: bool, runner: Any, input_batch: Any
    ) -> None:
        """The second kind of model runner has prepared a batch; ``result`` are its block tables
        and slots by group. It runs the model before its step ends.
        """
        group, output = self._pools.group, self._output
        if raised or runner is not self._pools.runner or group is None or output is None:
            return
        tables, slots = result
        size = self._pools.table_block_size
        self._prepared = self._begin(
            Inputs.of_input_batch(
                input_batch, tables[group], slots[group], output, size, self._requests
            )
        )

    def _begin(self, inputs: Inputs) -> Launch:
        """The model is about to run; the first part of the launch is told."""
        launch = self._launch(inputs.reqs)
        computed = computed_of(self._output)
        ends = (
            computed[req] + count
            for req, count in zip(inputs.reqs, inputs.counts.tolist(), strict=True)
        )
        longest = max(ends, default=0)
        launch.inputs = inputs
        if self._fingerprints is not None:
            launch.read = self._fingerprints.before(self.session, inputs, longest)
        inputs.defer(self.session, longest, lambda batch: self._begun(launch, batch))
        return launch

    def _launch(self, reqs: list[str]) -> Launch:
        """What the engine core knows of a launch of ``reqs``; tells what they have said."""
        for req in reqs:
            self._tell_history(self._requests[req])
        rows = {req: self._rows.of(req) for req in reqs}
        namespaces = {req: self._namespaces.of(self._requests[req]) for req in reqs}
        namespaces = {req: namespace for req, namespace in namespaces.items() if namespace}
        hits, self._hits = self._hits, {}
        self._forwards_open += 1
        return Launch(rows, namespaces, hits)

    def _begun(self, launch: Launch, batch: Batch) -> list[Event]:
        launch.parts = batch.in_order(launch.hits)
        launch.first = self._step
        self._step += len(launch.parts)
        return self._told(launch, 0)

    def after_forward(
        self, launch: Launch | None, _result: Any, raised: bool, *_args: Any, **_kwargs: Any
    ) -> None:
        if launch is not None and not raised:
            if self._fingerprints is not None and launch.inputs is not None:
                launch.wrote = self._fingerprints.after(self.session, launch.inputs)
            self.session.defer(lambda: self._done(launch))

    def _done(self, launch: Launch) -> list[Event]:
        events: list[Event] = []
        for k in range(len(launch.parts)):
            if k:
                # What it reads has been written by now, in the same launch.
                events += self._told(launch, k)
            events += launch.hashes_after(k)
        return events

    def leave_schedule(
        self, _token: Any, output: Any, raised: bool, scheduler: Any, *_args: Any, **_kwargs: Any
    ) -> None:
        """A step has been scheduled; where the model runs elsewhere, it is the forward, too."""
        if raised or scheduler is not self._pools.scheduler:
            return
        for copy in output.kv_cache_block_copies or ():
            self._copy_block(int(copy.src_block_id), int(copy.dst_block_id))
        group = self._pools.group
        if self._pools.runner is not None or group is None or not output.num_scheduled_tokens:
            return
        batch = of_scheduler(
            scheduler, output, group, self._pools.block_size, tokens_known=self._tokens_known
        )
        launch = self._launch(batch.reqs)
        self.session.defer(lambda: self._begun(launch, batch))
        self.session.defer(lambda: self._done(launch))

    def _copy_block(self, src: int, dst: int) -> None:
        self.session.emit(
            {
                "kind": "copy",
                "src": self._ledger.slots([src]).tolist(),
                "dst": self._ledger.slots([dst]),
                "via": "cow",
            }
        )

    def _told(self, launch: Launch, k: int) -> list[Event]:
        """One forward of a launch and what the trace must know before it."""
        batch, step = launch.parts[k], launch.first + k
        rows = [launch.rows[req] for req in batch.reqs]
        events: list[Event] = []
        for b, req in enumerate(batch.reqs):
            events += self._table.show(rows[b], batch.blocks[b])
            fed = batch.fed(b) if batch.drafts[b] else None
            if fed is not None:
                self._drafted[req] = (int(batch.prefix[b]), fed)
        events += launch.hashes_before(k)
        namespaces = [launch.namespaces.get(req, "") for req in batch.reqs]
        tokens = self.session.tokens
        event = batch.event(step, rows, tokens, namespaces if any(namespaces) else None)
        return [*events, event]

    def _tell_history(self, request: Any) -> None:
        self.session.emit_all(
            self._histories.show(str(request.request_id), request.all_token_ids, [])
        )

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
            self.session.defer(partial(self._accepted, str(req), said))

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
        self._actors.pop()
        if raised or result is None or self._pools.group is None:
            return
        if num_new_computed_tokens and new_computed_blocks is not None:
            self._match(request, new_computed_blocks.blocks[self._pools.group])
        if num_external_computed_tokens:
            begin = int(request.num_computed_tokens) + int(num_new_computed_tokens)
            self._load(request, begin, int(num_external_computed_tokens), bool(delay_cache_blocks))

    def _match(self, request: Any, blocks: Any) -> None:
        held = [int(block.block_id) for block in blocks if not block.is_null]
        if not held:
            return
        req, slots = str(request.request_id), self._ledger.slots(held)
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
        self._histories.forget(str(request.request_id))

    def _end(self, kind: str, request: Any) -> None:
        req = str(request.request_id)
        self.session.emit({"kind": kind, "req": req})
        row = self._rows.release(req)
        if row is not None:
            self.session.emit({"kind": "row_release", "row": row, "req": req})
        self.session.defer(lambda: self._ended(req, row))
        self._hits.pop(req, None)

    def _ended(self, req: str, row: int | None) -> list[Event]:
        if row is not None:
            self._table.forget(row)
        self._drafted.pop(req, None)
        return []

    # A recording that begins in a running engine.

    def adopt(self) -> None:
        """Tell who holds what now."""
        size, group = self._pools.block_size, self._pools.group
        held: set[int] = set()
        managers = self._pools.scheduler.kv_cache_manager.coordinator.single_type_managers
        for number, manager in enumerate(managers):
            for req, blocks in manager.req_to_blocks.items():
                before = -1
                for k, block in enumerate(blocks):
                    at = int(block.block_id)
                    if not block.is_null and at not in held:
                        held.add(at)
                        self._ledger.adopt(at, str(req))
                        if number == group and block.block_hash is not None:
                            self._ledger.publish(at, str(req), k * size, before)
                    before = at * size + size - 1
        for block in self._pools.blocks.blocks:
            if block.block_hash is not None and int(block.block_id) not in held:
                self._ledger.adopt(int(block.block_id), TREE_OWNER)
        self.session.defer(lambda: self._ledger.retell(gap=False))
        self._adopt_sends()
