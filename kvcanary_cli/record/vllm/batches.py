"""One launch of vLLM's model as the trace's ``forward``, on the host.

What a model runner is about to be fed is a ``Batch`` once its values are known (``inputs.py``).
Where the model runs in other processes, ``of_scheduler`` derives it from what the scheduler sends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from kvcanary_cli.record.tokens import TokenCoder
    from kvcanary_cli.record.vllm.groups import Group

    Ints = NDArray[np.int64]
    Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Batch:
    """Host copies of a batch.

    Attributes:
        reqs: [bs] request ids.
        counts: [bs] tokens that each row writes.
        prefix: [bs] positions that each row reads.
        blocks: [bs] each row's blocks, as far as this forward reads or writes them.
        block_size: Slots of a block of ``blocks``.
        input_ids: [tokens], or None where they are not known yet.
        positions, slots: [tokens].
        drafts: [bs] how many of a row's tokens are proposals.
        prompts: [bs] prompt lengths.
        gone: [bs] how many of each row's first blocks were given back, or empty: none.
    """

    reqs: list[str]
    counts: Ints
    prefix: Ints
    blocks: list[Ints]
    block_size: int
    input_ids: Ints | None
    positions: Ints
    slots: Ints
    drafts: Ints
    prompts: Ints
    gone: tuple[int, ...] = ()

    @property
    def starts(self) -> Ints:
        """[bs + 1] where each row's tokens begin."""
        out: Ints = np.concatenate([[0], np.cumsum(self.counts)])
        return out

    @property
    def mode(self) -> str:
        """TARGET_VERIFY where every row verifies equally many drafts; drafts of unequal number
        are written like a prefill, since what they say beyond the history is compared by nobody.
        """
        if (self.drafts > 0).all() and (self.drafts == self.drafts[0]).all():
            if (self.counts == self.drafts + 1).all():
                return "TARGET_VERIFY"
        elif (self.counts == 1).all():
            return "DECODE"
        return "MIXED" if (self.prefix >= self.prompts).any() else "EXTEND"

    def take(self, rows: Sequence[int]) -> Batch:
        """The part of the batch that is in ``rows``."""
        starts = self.starts
        tokens = np.concatenate([np.arange(starts[b], starts[b + 1]) for b in rows])
        index = np.asarray(rows, dtype=np.int64)
        return Batch(
            reqs=[self.reqs[b] for b in rows],
            counts=self.counts[index],
            prefix=self.prefix[index],
            blocks=[self.blocks[b] for b in rows],
            block_size=self.block_size,
            input_ids=None if self.input_ids is None else self.input_ids[tokens],
            positions=self.positions[tokens],
            slots=self.slots[tokens],
            drafts=self.drafts[index],
            prompts=self.prompts[index],
            gone=tuple(self.gone[b] for b in rows) if self.gone else (),
        )

    def in_order(self, hits: Mapping[str, set[int]]) -> list[Batch]:
        """The batch, cut where a request reads what another one writes in the same launch.

        vLLM shows a block to others when it is scheduled. The layers write it before they read,
        so that the reader sees it; the trace says so by two forwards.

        Args:
            hits: Slots that requests were served from since the last forward.
        """
        if len(self.reqs) == 1 or not any(hits.values()):
            return [self]
        level = self._levels(hits)
        if not any(level):
            return [self]
        return [
            self.take([b for b, at in enumerate(level) if at == each])
            for each in sorted(set(level))
        ]

    def _levels(self, hits: Mapping[str, set[int]]) -> list[int]:
        """[bs] how many rows must have written before each may read."""
        starts, count = self.starts, len(self.reqs)
        wrote = [set(self.slots[starts[b] : starts[b + 1]].tolist()) for b in range(count)]
        needs = {
            b: [other for other in range(count) if other != b and not mine.isdisjoint(wrote[other])]
            for b, req in enumerate(self.reqs)
            if (mine := hits.get(req))
        }
        level = [0] * count
        # Rows stand in any order. A ring, which no healthy engine makes, ends as well.
        for _ in range(count):
            for b, others in needs.items():
                level[b] = max((level[other] + 1 for other in others), default=0)
        return level

    def prefix_slots(self) -> Ints:
        """Slots that the rows read, row by row."""
        size = self.block_size
        gone = self.gone or (0,) * len(self.reqs)
        parts = [
            (blocks[:, None] * size + np.arange(size)).reshape(-1)[before * size : length]
            for blocks, length, before in zip(self.blocks, self.prefix.tolist(), gone, strict=True)
        ]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)

    def fed(self, b: int) -> list[int] | None:
        """Tokens of row ``b``."""
        if self.input_ids is None:
            return None
        starts = self.starts
        out: list[int] = self.input_ids[starts[b] : starts[b + 1]].tolist()
        return out

    def event(
        self, step: int, rows: list[int], tokens: TokenCoder, namespaces: list[str] | None
    ) -> Event:
        """The ``forward`` event.

        Args:
            step: Its number.
            rows: [bs] the requests' rows.
            tokens: What becomes of token ids.
            namespaces: [bs], or None if all are in the common one.
        """
        mode = self.mode
        event: Event = {
            "kind": "forward",
            "step": step,
            "forward_mode": mode,
            "reqs": list(self.reqs),
            "req_pool_indices": rows,
            "seq_lens": self.prefix if mode == "TARGET_VERIFY" else self.prefix + self.counts,
            "positions": self.positions,
            "out_cache_loc": self.slots,
        }
        if tokens.mode != "absent":
            ids = self.input_ids
            event["input_ids"] = tokens.encode(np.full_like(self.slots, -1) if ids is None else ids)
        if mode == "TARGET_VERIFY":
            event["draft_token_num"] = int(self.counts[0])
        elif mode != "DECODE":
            event |= {"extend_prefix_lens": self.prefix, "extend_seq_lens": self.counts}
        if namespaces is not None:
            event["namespaces"] = namespaces
        return event


def of_scheduler(
    scheduler: Any,
    output: Any,
    group: Group,
    block_size: int,
    gone: tuple[int, ...],
    *,
    tokens_known: bool,
) -> Batch:
    """What the workers will run, from the scheduler's ``output``.

    Args:
        scheduler: The scheduler, after ``schedule``.
        output: What it returned.
        group: The group of layers.
        block_size: Slots of a block.
        gone: [bs] blocks that each table has lost at its beginning, or empty.
        tokens_known: Whether the scheduler knows the tokens by now.
    """
    computed = computed_of(output)
    reqs = [str(req) for req in output.num_scheduled_tokens]
    counts = np.array([output.num_scheduled_tokens[req] for req in reqs], dtype=np.int64)
    prefix = np.array([computed[req] for req in reqs], dtype=np.int64)
    blocks, slots, positions, ids = [], [], [], []
    for req, before, count in zip(reqs, prefix.tolist(), counts.tolist(), strict=True):
        held = scheduler.kv_cache_manager.get_block_ids(req)[group.number]
        mine = np.array(held, dtype=np.int64)[: -(-(before + count) // block_size)]
        at = np.arange(before, before + count, dtype=np.int64)
        blocks.append(mine)
        positions.append(at)
        slots.append(mine[at // block_size] * block_size + at % block_size)
        known = list(scheduler.requests[req].all_token_ids[before : before + count])
        known += list(output.scheduled_spec_decode_tokens.get(req, ()))
        ids += [*known, *([-1] * count)][:count]
    return Batch(
        reqs=[group.name(req) for req in reqs],
        counts=counts,
        prefix=prefix,
        blocks=blocks,
        block_size=block_size,
        input_ids=np.array(ids, dtype=np.int64) if tokens_known else None,
        positions=np.concatenate(positions),
        slots=np.concatenate(slots),
        drafts=drafts_of(output, reqs),
        prompts=prompts_of(scheduler.requests, reqs),
        gone=gone,
    )


def computed_of(output: Any) -> dict[str, int]:
    """Tokens that each scheduled request had behind it, by the scheduler's ``output``."""
    computed = {new.req_id: int(new.num_computed_tokens) for new in output.scheduled_new_reqs}
    cached = output.scheduled_cached_reqs
    return computed | {
        req: int(count)
        for req, count in zip(cached.req_ids, cached.num_computed_tokens, strict=True)
    }


def drafts_of(output: Any, reqs: list[str]) -> Ints:
    """[bs] how many proposals each request verifies."""
    drafts = output.scheduled_spec_decode_tokens
    return np.array([len(drafts.get(req, ())) for req in reqs], dtype=np.int64)


def prompts_of(requests: Mapping[str, Any], reqs: list[str]) -> Ints:
    """[bs] prompt lengths."""
    return np.array([int(requests[req].num_prompt_tokens) for req in reqs], dtype=np.int64)
