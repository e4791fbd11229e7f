"""What all parts of the SGLang adapter share: the session and what the trace has said so far."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvcanary_cli.record.ledger import Ledger
from kvcanary_cli.record.sglang.requests import Requests
from kvcanary_cli.record.shadows import HistoryShadow, LutShadow, TableShadow

if TYPE_CHECKING:
    from kvcanary_cli.record.session import Session
    from kvcanary_cli.record.sglang.pools import Pools


class Scene:
    """Session, pools, and the shadows of what the trace has said.

    Attributes:
        session: Takes the events.
        pools: The engine's live pools.
        ledger: Owners of slots.
        table: The request table.
        histories: True tokens.
        lut: The full-to-SWA table, or None.
        requests: Requests that hold a row.
    """

    def __init__(self, session: Session, pools: Pools) -> None:
        self.session = session
        self.pools = pools
        self.ledger = Ledger(pools.max_slot + 1)
        self.table = TableShadow(pools.table)
        self.histories = HistoryShadow(session.tokens)
        self.lut = None if pools.lut is None else LutShadow(pools.max_slot + 1)
        if self.lut is not None and session.asynchronous:
            self.lut.watch(pools.lut)
        self.requests = Requests()
        for state in (self.ledger, self.table, self.histories, self.lut):
            if state is not None:
                session.add_state(state)

    def tell_history(self, req: Any) -> None:
        """What ``req`` is known to have said and heard, if there is something new."""
        # Beams of a search share the prompt; which of them is the answer shows at the end.
        output = () if getattr(req, "beam_group", None) is not None else req.output_ids
        self.session.emit_all(self.histories.show(str(req.rid), req.origin_input_ids, output))
