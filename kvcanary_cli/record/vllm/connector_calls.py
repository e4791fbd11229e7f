"""What a KV connector brings into the pool, and what it keeps blocks of ended requests for."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from kvcanary_cli.record.vllm.loads import Loads
from kvcanary_cli.record.vllm.pool_calls import PoolCalls
from kvcanary_cli.record.vllm.requests import was_aborted
from kvcanary_cli.record.vllm.sends import Sends

if TYPE_CHECKING:
    from kvcanary_cli.record.session import Session
    from kvcanary_cli.record.vllm.blocks import BlockLedger
    from kvcanary_cli.record.vllm.pools import Pools


class ConnectorCalls(PoolCalls):
    """Follows the connector as the scheduler sees it, besides the block pool.

    What is sent is told from the moment that a request has ended and the connector asks for its
    blocks to be kept (``request_finished`` returned True) until it names the request as sent.
    """

    def __init__(self, session: Session, pools: Pools, ledger: BlockLedger) -> None:
        super().__init__(session, pools, ledger)
        self._loads = Loads()
        self._sends = Sends()
        # Ledger first: a window that is told again is compared with the owners of that moment.
        for state in (ledger, self._sends):
            session.add_state(state)

    def _tell_history(self, request: Any) -> None:
        raise NotImplementedError

    def _load(self, request: Any, begin: int, count: int, later: bool) -> None:
        """``count`` tokens from position ``begin`` on are being loaded for ``request``."""
        req, size = str(request.request_id), self._pools.block_size
        held = self._pools.scheduler.kv_cache_manager.get_block_ids(req)[self._pools.group or 0]
        positions = np.arange(begin, begin + count, dtype=np.int64)
        blocks = np.array(held, dtype=np.int64)
        slots = blocks[positions // size] * size + positions % size
        self._tell_history(request)
        self.session.emit_all(self._loads.begin(req, positions, slots))
        if not later:
            self.session.emit_all(self._loads.end(req))

    def leave_connector_finished(
        self, _token: Any, result: Any, raised: bool, scheduler: Any, request: Any
    ) -> None:
        """A request has ended; ``result`` says whether its blocks are kept for the connector."""
        if not raised and scheduler is self._pools.scheduler and result[0]:
            self._send(str(request.request_id))

    def _send(self, req: str) -> None:
        blocks = self._pools.scheduler.kv_cache_manager.coordinator.get_blocks(req)
        # Of all groups of layers: their blocks are kept alike.
        held = dict.fromkeys(int(b.block_id) for group in blocks for b in group if not b.is_null)
        if held:
            self.session.defer(partial(self._sends.begin, req, self._ledger.slots(held)))

    def enter_transferred(self, scheduler: Any, kv_connector_output: Any) -> None:
        """Asynchronous loads and sends have ended; blocks that were sent are freed next."""
        if scheduler is not self._pools.scheduler:
            return
        for req in kv_connector_output.finished_recving or ():
            self.session.emit_all(self._loads.end(str(req)))
        for req in kv_connector_output.finished_sending or ():
            self.session.defer(partial(self._sends.end, str(req)))

    def enter_failed(self, _scheduler: Any, failed_req_ids: Any) -> None:
        """Asynchronous loads have failed."""
        for req in failed_req_ids or ():
            self.session.emit_all(self._loads.fail(str(req)))

    def _adopt_sends(self) -> None:
        """Tell of sends that were under way before the recording: from here on."""
        scheduler = self._pools.scheduler
        if getattr(scheduler, "connector", None) is None:
            return
        for req, request in scheduler.requests.items():
            # An aborted request may be kept for what is still being loaded into its blocks.
            if _has_ended(request) and not was_aborted(request):
                self._send(str(req))


def _has_ended(request: Any) -> bool:
    return str(getattr(request.status, "name", "")).startswith("FINISHED")
