"""Follows a running SGLang scheduler: what its calls mean as events of the trace.

All methods run on the scheduler's thread. ``enter...`` come before a call, ``leave...`` and
``on_...`` after it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvcanary_cli.record.sglang.allocations import Allocations
from kvcanary_cli.record.sglang.beams import Beams
from kvcanary_cli.record.sglang.forwards import Batch, Inputs
from kvcanary_cli.record.sglang.graphs import Padding
from kvcanary_cli.record.sglang.handoffs import Handoffs
from kvcanary_cli.record.sglang.scene import Scene
from kvcanary_cli.record.sglang.speculation import Speculation
from kvcanary_cli.record.sglang.tiers import Tiers

if TYPE_CHECKING:
    from kvcanary_cli.record.session import Session
    from kvcanary_cli.record.sglang.fingerprints import Fingerprints
    from kvcanary_cli.record.sglang.pools import Pools

#: How long an engine that ends itself waits for the disk.
_LAST_WORDS_S = 2.0


@dataclass(slots=True)
class _Forward:
    """A forward that is under way.

    Attributes:
        step: Its number.
        inputs: What it is fed.
        is_draft: Whether it is a draft model's.
        event: Its event, once it has been made.
    """

    step: int
    inputs: Inputs
    is_draft: bool
    event: dict[str, Any] = field(default_factory=dict)


class Follower:
    """Turns the scheduler's calls into events.

    Attributes:
        session: Takes them.
        allocations, speculation, padding, tiers, handoffs, beams: Parts, each with calls of its
            own.
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
        self.allocations = Allocations(scene)
        self.speculation, self.tiers = Speculation(scene), Tiers(scene)
        self.handoffs, self.beams = Handoffs(scene), Beams(scene)
        self.padding = Padding(session)
        self.canary_said = ""
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
        on_host = not session.asynchronous
        inputs = Inputs(forward_batch, self._requests.of_row, on_host=on_host)
        if not inputs.count or inputs.has_siblings:
            return None
        told = _Forward(self._step, inputs, draft)
        if not draft:
            self._tell_histories(inputs.names)
        self._tell_lut()
        self._table.tell(session, inputs.rows, inputs.row_lengths(), inputs.longest)
        if self._fingerprints is not None and not draft:
            self._fingerprints.before(session, told.step, inputs)
        namespaces = self._requests.namespaces(inputs.names)
        draft_step = self._draft_step
        self._draft_step += draft

        def made(batch: Batch) -> list[dict[str, Any]]:
            event = told.event = batch.event(told.step, session.tokens, namespaces)
            if draft:
                event |= {"worker": "draft", "draft_step": draft_step}
            launches = self._is_overlapped and not draft
            return [*(batch.launches(told.step) if launches else ()), event]

        inputs.defer(session, made)
        self.padding.opens(told)
        return told

    def after_forward(
        self, forward: _Forward | None, _result: Any, raised: bool, *_args: Any, **_kw: Any
    ) -> None:
        """It has run, or on a GPU: everything queued from here on runs behind it."""
        padding = self.padding.closes()
        self._heed_canary(raised)
        if forward is None or forward.is_draft:
            return
        if self._fingerprints is not None and not raised:
            written = [forward.inputs.out_cache_loc, *padding]
            self._fingerprints.after(self.session, forward.step, written)
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

    def _tell_histories(self, names: list[str | None]) -> None:
        for name in names:
            req = None if name is None else self._requests.by_id.get(name)
            if req is not None:
                self._tell_history(req)

    def _tell_lut(self) -> None:
        if self._lut is not None:
            self._lut.tell(self.session, self._pools.lut)

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
            self.session.defer(lambda: self._ledger.forget(name))

    def _end_of(self, req: Any) -> str:
        reason = getattr(req, "finished_reason", None) or getattr(req, "to_finish", None)
        if reason is None and self._retracting:
            return "retract"
        return "abort" if reason is None or "ABORT" in type(reason).__name__ else "finish"

    def on_adapter(
        self,
        _token: Any,
        result: Any,
        raised: bool,
        _manager: Any,
        lora_ref: Any,
        *_a: Any,
        **_k: Any,
    ) -> None:
        """A LoRA adapter was loaded, for the first time or anew."""
        if not raised and getattr(result, "success", True):
            self.session.emit(self._requests.adapter_loaded(lora_ref))


def _first_line(text: str) -> str:
    return text.partition("\n")[0]
