"""What a launch of vLLM's model means: forwards of the trace, one for each group of its layers.

``enter...`` come before a call, ``leave...`` and ``on_...`` after it, all on the engine core's
thread. What a launch means is worked out in deferred functions, where the values of its tensors are
known: these alone touch ledger, table shadow, drafts and the number of the step.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from kvcanary_cli.record.shadows import HistoryShadow
from kvcanary_cli.record.vllm.batches import computed_of, of_scheduler
from kvcanary_cli.record.vllm.blocks import BlockLedger
from kvcanary_cli.record.vllm.connector_calls import ConnectorCalls
from kvcanary_cli.record.vllm.groups import Windows
from kvcanary_cli.record.vllm.inputs import Inputs
from kvcanary_cli.record.vllm.launches import Launch
from kvcanary_cli.record.vllm.requests import Namespaces, Rows
from kvcanary_cli.record.vllm.tables import BlockTableShadow

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcanary_cli.record.session import Session
    from kvcanary_cli.record.vllm.batches import Batch
    from kvcanary_cli.record.vllm.fingerprints import Fingerprints
    from kvcanary_cli.record.vllm.groups import Group
    from kvcanary_cli.record.vllm.pools import Pools

    Event = dict[str, Any]


class Forwards(ConnectorCalls):
    """Turns launches of the model into forwards, besides what the block pool does.

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
        rows = pools.rows * max(1, len(pools.told)) + 1
        self._table = BlockTableShadow(rows, pools.blocks_per_row, pools.table_block_size)
        self._histories = HistoryShadow(session.tokens)
        self._rows = Rows(pools.rows + 1)
        self._windows = Windows()
        self._namespaces = Namespaces()
        for state in (self._table, self._histories):
            session.add_state(state)
        self._output: Any = None
        self._prepared: list[Launch] = []
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
            launches, self._prepared = self._prepared, []
            self.after_forward(launches, None, raised)

    def before_forward(
        self, runner: Any, input_ids: Any = None, *_args: Any, **_kwargs: Any
    ) -> list[Launch]:
        """The model is about to run; ``input_ids`` is what it is fed."""
        output, held = self._output, getattr(runner, "input_batch", None)
        if runner is not self._pools.runner or output is None or held is None:
            return []
        if input_ids is None:
            input_ids = runner.input_ids.gpu

        def inputs_of(group: Group, gone: tuple[int, ...]) -> Inputs:
            return Inputs.of_runner(runner, output, group, input_ids, self._requests, gone)

        return self._begin(held, inputs_of)

    def on_prepared(
        self, _token: Any, result: Any, raised: bool, runner: Any, input_batch: Any
    ) -> None:
        """The second kind of model runner has prepared a batch; ``result`` are its block tables
        and slots by group. It runs the model before its step ends.
        """
        output = self._output
        if raised or runner is not self._pools.runner or output is None:
            return
        tables, slots = result
        size = self._pools.table_block_size

        def inputs_of(group: Group, gone: tuple[int, ...]) -> Inputs:
            its = tables[group.number], slots[group.number]
            return Inputs.of_input_batch(
                input_batch, *its, group, output, size, self._requests, gone
            )

        self._prepared = self._begin(input_batch, inputs_of)

    def _begin(
        self, held: Any, inputs_of: Callable[[Group, tuple[int, ...]], Inputs]
    ) -> list[Launch]:
        """The model is about to run; the first part of the launch of each group is told.

        Args:
            held: The runner's batch.
            inputs_of: What a group of layers is fed, where the blocks of its tables that were
                given back are known.
        """
        reqs = [str(req) for req in held.req_ids[: int(held.num_reqs)]]
        launches = self._launches(reqs)
        computed, counts = computed_of(self._output), self._output.num_scheduled_tokens
        longest = max((computed[req] + counts[req] for req in reqs), default=0)
        # Blocks of the runner's table may be smaller than those of the pool.
        finer = self._pools.block_size // self._pools.table_block_size
        for launch in launches:
            group, gone = launch.group, tuple(count * finer for count in launch.gone)
            inputs = launch.inputs = inputs_of(group, gone)
            if self._fingerprints is not None:
                launch.read = self._fingerprints.before(self.session, group, inputs, longest)
            inputs.defer(self.session, longest, partial(self._begun, launch))
        return launches

    def _launches(self, reqs: list[str]) -> list[Launch]:
        """What the engine core knows of a launch of ``reqs``; tells what they have said."""
        for req in reqs:
            self._tell_history(self._requests[req])
        rows = {req: self._rows.of(req) for req in reqs}
        namespaces = {req: self._namespaces.of(self._requests[req]) for req in reqs}
        namespaces = {req: namespace for req, namespace in namespaces.items() if namespace}
        hits, self._hits = self._hits, {}
        self._forwards_open += 1
        return [
            Launch(
                group,
                {group.name(req): row + group.rows_before for req, row in rows.items()},
                {group.name(req): namespace for req, namespace in namespaces.items()},
                hits,
                self._gone(group, reqs),
            )
            for group in self._pools.told
        ]

    def _gone(self, group: Group, reqs: list[str]) -> tuple[int, ...]:
        """[bs] blocks that the requests' tables in ``group`` have lost, or empty."""
        if not group.slides:
            return ()
        managers = self._pools.scheduler.kv_cache_manager.coordinator.single_type_managers
        tables = managers[group.number].req_to_blocks
        return tuple(self._windows.gone(group.name(req), tables.get(req) or ()) for req in reqs)

    def _begun(self, launch: Launch, batch: Batch) -> list[Event]:
        launch.parts = batch.in_order(launch.hits)
        launch.first = self._step
        self._step += len(launch.parts)
        return self._told(launch, 0)

    def after_forward(
        self, launches: list[Launch] | None, _res: Any, raised: bool, *_args: Any, **_kwargs: Any
    ) -> None:
        if raised:
            return
        for launch in launches or ():
            if self._fingerprints is not None and launch.inputs is not None:
                launch.wrote = self._fingerprints.after(self.session, launch.group, launch.inputs)
            self.session.defer(partial(self._done, launch))

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
        if self._pools.runner is not None or not output.num_scheduled_tokens:
            return
        for launch in self._launches([str(req) for req in output.num_scheduled_tokens]):
            batch = of_scheduler(
                scheduler,
                output,
                launch.group,
                self._pools.block_size,
                launch.gone,
                tokens_known=self._tokens_known,
            )
            self.session.defer(partial(self._begun, launch, batch))
            self.session.defer(partial(self._done, launch))

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
            gone = batch.gone[b] if batch.gone else 0
            events += self._table.show(rows[b], batch.blocks[b], gone)
            fed = batch.fed(b) if batch.drafts[b] else None
            if fed is not None:
                self._drafted[req] = (int(batch.prefix[b]), fed)
        events += launch.hashes_before(k)
        namespaces = [launch.namespaces.get(req, "") for req in batch.reqs]
        tokens = self.session.tokens
        event = batch.event(step, rows, tokens, namespaces if any(namespaces) else None)
        return [*events, event]

    def _tell_history(self, request: Any) -> None:
        for name in self._names(str(request.request_id)):
            self.session.emit_all(self._histories.show(name, request.all_token_ids, []))

    def _names(self, req: str) -> list[str]:
        """Names of ``req`` in the trace."""
        return [group.name(req) for group in self._pools.told] or [req]
