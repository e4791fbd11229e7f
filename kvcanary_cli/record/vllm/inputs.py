"""What vLLM's model is about to be fed, by the two kinds of model runner that it has.

``Inputs`` leaves the tensors where they are; a ``Batch`` is made of them at once where they are on
the host, later where they must be copied.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kvcanary_cli.record.vllm.batches import Batch, drafts_of, prompts_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from kvcanary_cli.record.session import Session
    from kvcanary_cli.record.vllm.groups import Group

    Ints = NDArray[np.int64]
    Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a model runner is about to feed its model, as it has it: nobody has looked at values.

    Attributes:
        reqs: [bs] request ids.
        names: [bs] their names in the trace.
        counts: [bs] tokens that each row writes.
        seq_lens: [>= bs] tensor of lengths, this forward's tokens included.
        tables: [>= bs, blocks] tensor of block tables.
        block_size: Slots of a block of ``tables``.
        tokens: Tensors of at least as many input ids, positions and slots as there are tokens.
        drafts: [bs] how many of a row's tokens are proposals.
        prompts: [bs] prompt lengths.
        gone: [bs] how many of each table's first blocks were given back, or empty: none.
    """

    reqs: list[str]
    names: list[str]
    counts: Ints
    seq_lens: Any
    tables: Any
    block_size: int
    tokens: tuple[Any, Any, Any]
    drafts: Ints
    prompts: Ints
    gone: tuple[int, ...]

    @classmethod
    def of_runner(
        cls,
        runner: Any,
        output: Any,
        group: Group,
        input_ids: Any,
        requests: Mapping[str, Any],
        gone: tuple[int, ...] = (),
    ) -> Inputs:
        """What ``runner`` is about to run.

        Args:
            runner: The model runner, after it has prepared its inputs.
            output: The scheduler's output that it works on.
            group: The group of layers.
            input_ids: [padded tokens] tensor that the model gets.
            requests: The scheduler's requests by id.
            gone: See ``gone`` of the class.
        """
        held = runner.input_batch
        count = int(held.num_reqs)
        table = held.block_table[group.number]
        return cls._of(
            held.req_ids[:count],
            group,
            output,
            requests,
            seq_lens=runner.seq_lens,
            gone=gone,
            tables=table.get_device_tensor(count),
            block_size=int(table.block_size),
            tokens=(input_ids, runner.positions, table.slot_mapping.gpu),
        )

    @classmethod
    def of_input_batch(
        cls,
        held: Any,
        tables: Any,
        slots: Any,
        group: Group,
        output: Any,
        block_size: int,
        requests: Mapping[str, Any],
        gone: tuple[int, ...] = (),
    ) -> Inputs:
        """What the second kind of model runner is about to run.

        Args:
            held: Its input batch.
            tables: [bs, blocks] block tables of the group of layers.
            slots: [tokens] its slot mapping.
            group: The group.
            output: The scheduler's output that it works on.
            block_size: Slots of a block of ``tables``.
            requests: The scheduler's requests by id.
            gone: See ``gone`` of the class.
        """
        return cls._of(
            held.req_ids[: int(held.num_reqs)],
            group,
            output,
            requests,
            seq_lens=held.seq_lens,
            gone=gone,
            tables=tables,
            block_size=block_size,
            tokens=(held.input_ids, held.positions, slots),
        )

    @classmethod
    def _of(
        cls,
        reqs: Sequence[Any],
        group: Group,
        output: Any,
        requests: Mapping[str, Any],
        **tensors: Any,
    ) -> Inputs:
        reqs = [str(req) for req in reqs]
        names = [group.name(req) for req in reqs]
        counts = np.array([output.num_scheduled_tokens[req] for req in reqs], dtype=np.int64)
        drafts, prompts = drafts_of(output, reqs), prompts_of(requests, reqs)
        return cls(reqs=reqs, names=names, counts=counts, drafts=drafts, prompts=prompts, **tensors)

    @property
    def slots(self) -> Any:
        """[tokens] tensor of the slots that are written."""
        return self.tokens[2][: int(self.counts.sum())]

    def tables_of(self, longest: int) -> Any:
        """[bs, blocks] tensor of the block tables, as far as ``longest`` tokens need them."""
        return self.tables[: len(self.reqs), : max(1, -(-longest // self.block_size))]

    def defer(self, session: Session, longest: int, make: Callable[[Batch], list[Event]]) -> None:
        """Emit what ``make`` gives for the batch's values, once they are on the host.

        Args:
            session: Takes the events.
            longest: Tokens of a request at most, by what the scheduler knows.
            make: Gives the events.
        """
        total, lengths = int(self.counts.sum()), self.seq_lens[: len(self.reqs)]
        tokens = (values[:total] for values in self.tokens)
        session.defer(
            lambda *values: make(self._batch(*values)), lengths, self.tables_of(longest), *tokens
        )

    def _batch(
        self, lengths: Ints, tables: Ints, input_ids: Ints, positions: Ints, slots: Ints
    ) -> Batch:
        cells = tables.reshape(len(self.reqs), -1)
        used = -(-lengths // self.block_size)
        return Batch(
            reqs=self.names,
            counts=self.counts,
            prefix=lengths - self.counts,
            blocks=[cells[b, :count] for b, count in enumerate(used.tolist())],
            block_size=self.block_size,
            input_ids=input_ids,
            positions=positions,
            slots=slots,
            drafts=self.drafts,
            prompts=self.prompts,
            gone=self.gone,
        )
