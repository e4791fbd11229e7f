"""Follows a model runner whose engine core is in another process: what it is fed, table and KV.

A worker is sent each step's output of the scheduler, and requests with it. It does not see who owns
blocks, nor how requests end; the engine core's own trace tells that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from kvcanary_cli.record.vllm.batches import computed_of
from kvcanary_cli.record.vllm.follow import Follower

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvcanary_cli.record.session import Session
    from kvcanary_cli.record.vllm.fingerprints import Fingerprints
    from kvcanary_cli.record.vllm.groups import Group
    from kvcanary_cli.record.vllm.pools import Pools

#: What stands in a runner's list of a request's output where a token is not known yet.
_UNKNOWN = -1


@dataclass(slots=True)
class WorkerRequest:
    """What a worker has been sent of a request, as an engine core's request has it.

    Attributes:
        request_id: Its name.
        prompt: Token ids; None where the prompt is embeddings.
        num_prompt_tokens: Length of the prompt.
        output: What it has said, the runner's own list; tokens on the way are -1.
        lora_request, cache_salt: A worker knows no namespaces.
    """

    request_id: str
    prompt: list[int] | None
    num_prompt_tokens: int
    output: list[int] = field(default_factory=list)
    lora_request: None = None
    cache_salt: None = None

    @property
    def all_token_ids(self) -> KnownTokens:
        """Prompt and output, as far as they are known."""
        return KnownTokens(self.prompt, self.output)


class KnownTokens(Sequence[int]):
    """Prompt and output of a request up to its first token that is not known yet.

    Nothing is copied but what is asked for: requests are long, and grow by a token a step.
    """

    def __init__(self, prompt: list[int] | None, output: list[int]) -> None:
        """Look which are known.

        Args:
            prompt: Token ids; None = embeddings, and nothing is known.
            output: The runner's list; only tokens at its end are on the way.
        """
        self._prompt, self._output = prompt or [], output
        known = 0 if prompt is None else len(output)
        while known and output[known - 1] == _UNKNOWN:
            known -= 1
        self._known = known

    def __len__(self) -> int:
        return len(self._prompt) + self._known

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> list[int]: ...
    def __getitem__(self, at: int | slice) -> int | list[int]:
        if isinstance(at, int):
            place = range(len(self))[at]
            said = place - len(self._prompt)
            return self._prompt[place] if said < 0 else self._output[said]
        start, stop, step = at.indices(len(self))
        begin, end = (max(0, edge - len(self._prompt)) for edge in (start, stop))
        return [*self._prompt[start:stop], *self._output[begin:end]][::step]


class Sent:
    """What the engine core has sent, in the place of its scheduler.

    Attributes:
        requests: By name, until their end.
    """

    def __init__(self) -> None:
        self.requests: dict[str, WorkerRequest] = {}

    def take(self, output: Any, runner: Any) -> list[str]:
        """A step's ``output`` has come; names of requests that have ended."""
        ended = [str(req) for req in output.finished_req_ids if str(req) in self.requests]
        for req in ended:
            del self.requests[req]
        for new in output.scheduled_new_reqs:
            prompt = new.prompt_token_ids
            req = str(new.req_id)
            self.requests[req] = WorkerRequest(req, prompt, _prompt_length(new))
        held = getattr(runner, "requests", {})
        for req, request in self.requests.items():
            said = getattr(held.get(req), "output_token_ids", None)
            if said is not None:
                request.output = said
        return ended

    def shown(self, output: Any, group: Group, block_size: int) -> Iterator[tuple[str, set[int]]]:
        """Slots of a group of layers that requests are served from without having computed them
        in this place.
        """
        computed = computed_of(output)
        given = [(new.req_id, new.block_ids) for new in output.scheduled_new_reqs]
        cached = output.scheduled_cached_reqs
        given += [
            (req, blocks)
            for req, blocks in zip(cached.req_ids, cached.new_block_ids, strict=True)
            if req in cached.resumed_req_ids and blocks is not None
        ]
        for req, blocks in given:
            begin, count = (
                group.unread(computed[req]) // block_size,
                -(-computed[req] // block_size),
            )
            if count:
                first = np.array(blocks[group.number][begin:count], dtype=np.int64) * block_size
                yield (
                    group.name(str(req)),
                    set((first[:, None] + np.arange(block_size)).ravel().tolist()),
                )


class WorkerFollower(Follower):
    """Turns a worker's steps into events."""

    def __init__(
        self, session: Session, pools: Pools, fingerprints: Fingerprints | None, sent: Sent
    ) -> None:
        """Nothing has been sent.

        Args:
            session: Takes the events.
            pools: The runner's; ``sent`` is their scheduler.
            fingerprints: Folds KV bytes, or None.
            sent: What the engine core sends.
        """
        super().__init__(session, pools, fingerprints, tokens_known=True)
        self._sent = sent

    def enter_execute(self, runner: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> bool:
        """The runner begins a step."""
        if not super().enter_execute(runner, scheduler_output, *args, **kwargs):
            return False
        for copy in scheduler_output.kv_cache_block_copies or ():
            self._copy_block(int(copy.src_block_id), int(copy.dst_block_id))
        for req in self._sent.take(scheduler_output, runner):
            for name in self._names(req):
                self._histories.forget(name)
            self._give_up_row(req)
        for group in self._pools.told:
            self._hits |= dict(self._sent.shown(scheduler_output, group, self._pools.block_size))
        self._make_room({str(req) for req in scheduler_output.num_scheduled_tokens})
        return True

    def leave_execute(
        self, entered: bool | None, _result: Any, raised: bool, *_args: Any, **_kwargs: Any
    ) -> None:
        """The step is over."""
        super().leave_execute(entered, _result, raised)
        if entered:
            self.leave_update()

    def _make_room(self, scheduled: set[str]) -> None:
        """Requests that are preempted keep no row, and a worker is not told of all of them."""
        for req in self._rows.crowding(scheduled):
            self._give_up_row(req)

    def _give_up_row(self, req: str) -> None:
        row = self._rows.release(req)
        for group in self._pools.told:
            its = None if row is None else row + group.rows_before
            self.session.defer(partial(self._ended, group.name(req), its))

    def _gone(self, group: Group, reqs: list[str]) -> tuple[int, ...]:
        """[bs] blocks that the requests' tables in ``group`` have lost: those that nothing reads,
        for a worker is not told of those that are given back.
        """
        if not group.slides:
            return ()
        computed = computed_of(self._output)
        return tuple(group.unread(computed[req]) // self._pools.block_size for req in reqs)


def _prompt_length(new: Any) -> int:
    if new.prompt_token_ids is not None:
        return len(new.prompt_token_ids)
    return 0 if new.prompt_embeds is None else len(new.prompt_embeds)
