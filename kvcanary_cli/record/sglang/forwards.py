"""A SGLang ``ForwardBatch`` as the trace's ``forward``.

``Inputs`` is what the engine's thread sees of a batch, ``Batch`` the same on the host: at once
where the tensors are there, later where they must be copied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvcanary_cli.record.sglang.speculation import tree_links, tree_parents

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from kvcanary_cli.record.session import Session
    from kvcanary_cli.record.tokens import TokenCoder

    Ints = NDArray[np.int64]
    Event = dict[str, Any]

#: Cells behind the longest row of a batch that are compared, too.
_SLACK = 64
_TENSORS = (
    "rows",
    "seq_lens",
    "out_cache_loc",
    "input_ids",
    "positions",
    "extend_prefix_lens",
    "extend_seq_lens",
)
EXTEND_MODES = frozenset({"EXTEND", "MIXED", "SPLIT_PREFILL", "DLLM_EXTEND", "DRAFT_EXTEND_V2"})


class Inputs:
    """What a batch feeds the model, as the engine has it: nobody has looked at a tensor's values.

    Attributes:
        mode: Name of the forward mode.
        names: [bs] request of each row, None where the batch does not say.
        drafts: ``draft_token_num``, 0 without.
        count: Rows.
        rows, seq_lens: [bs] tensors.
        out_cache_loc, input_ids, positions: [tokens] tensors, or None.
        extend_prefix_lens, extend_seq_lens: [bs] tensors in extend modes, else None.
        links: First child and next sibling of each draft node, or ().
    """

    def __init__(self, batch: Any, row_owner: Mapping[int, str], *, on_host: bool = False) -> None:
        """Take them.

        Args:
            batch: SGLang's.
            row_owner: Names rows that the batch does not name.
            on_host: Whether the tensors are there; they are arrays then, which are lighter.
        """

        def light(values: Any) -> Any:
            return values.numpy() if on_host and hasattr(values, "detach") else values

        self.mode = str(batch.forward_mode.name)
        self.rows, self.seq_lens = light(batch.req_pool_indices), light(batch.seq_lens)
        self.count = len(self.rows)
        self.out_cache_loc, self.input_ids = batch.out_cache_loc, batch.input_ids
        self.positions = light(batch.positions)
        self.drafts = int(getattr(batch.spec_info, "draft_token_num", 0) or 0)
        self.links: tuple[Any, ...] = ()
        if self.mode == "TARGET_VERIFY":
            self.links = tree_links(batch.spec_info, self.count * self.drafts)
        self.extend_prefix_lens = self.extend_seq_lens = None
        if self.mode in EXTEND_MODES and batch.extend_seq_lens is not None:
            self.extend_seq_lens = light(batch.extend_seq_lens)
            self.extend_prefix_lens = light(batch.extend_prefix_lens)
        names = list(getattr(batch, "rids", None) or [])[: self.count]
        names += [None] * (self.count - len(names))
        self.names = [None if name is None else str(name) for name in names]
        self._row_owner = dict(row_owner) if None in self.names else {}
        self._on_host = getattr(batch, "seq_lens_cpu", None)

    @property
    def has_siblings(self) -> bool:
        """Whether a draft's step proposes several tokens for a row.

        What such a step writes is read within the same draft only, and rows do not name it.
        """
        positions = () if self.positions is None else self.positions
        return self.mode == "DECODE" and len(positions) > self.count

    @property
    def _written(self) -> int:
        return self.drafts if self.mode == "TARGET_VERIFY" else 1

    def prefix_lens(self) -> Any:
        """[bs] what each row reads, by the mode's rule (specification 1.8), where the rows are."""
        if self.extend_seq_lens is not None:
            if self.extend_prefix_lens is not None:
                return self.extend_prefix_lens
            return self.seq_lens - self.extend_seq_lens
        if self.mode == "TARGET_VERIFY":
            return self.seq_lens
        positions = self.seq_lens[:0] if self.positions is None else self.positions
        if len(positions) >= self.count:
            return positions[: self.count]
        short = self.seq_lens * 0
        short[: len(positions)] = positions
        return short

    def row_lengths(self) -> Any:
        """[bs] cells of each row that this forward reads or writes, where the rows are."""
        prefix = self.prefix_lens()
        if self.extend_seq_lens is not None:
            lengths = prefix + self.extend_seq_lens
        else:
            lengths = _maximum(self.seq_lens, prefix + self._written)
        return lengths * (self.rows != 0)

    @property
    def longest(self) -> int | None:
        """No row is longer in a healthy batch; None if the host does not know.

        Some cells more, so that a position that is off by a few is seen in its row.
        """
        if self._on_host is None or not len(self._on_host):
            return None
        return int(self._on_host.max()) + self._written + _SLACK

    def defer(self, session: Session, make: Callable[[Batch], list[Event]]) -> None:
        """Emit what ``make`` gives for the batch's values, once they are on the host."""
        fields = {
            name: value
            for name in _TENSORS
            if (value := getattr(self, name)) is not None and len(value)
        }

        def made(*arrays: Ints) -> list[Event]:
            count = len(fields)
            values = dict(zip(fields, arrays[:count], strict=True))
            return make(Batch(self, values, arrays[count:], self._row_owner))

        session.defer(made, *fields.values(), *self.links)


def _maximum(first: Any, second: Any) -> Any:
    return np.maximum(first, second) if isinstance(first, np.ndarray) else first.maximum(second)


class Batch:
    """A batch on the host.

    Attributes:
        mode: Name of the forward mode.
        rows, seq_lens: [bs].
        input_ids, positions, out_cache_loc: [tokens].
        extend: ``extend_prefix_lens`` and ``extend_seq_lens`` in extend modes, else None.
        drafts: ``draft_token_num``, 0 without.
        tree: [tokens] parent of each draft node within its row, None if each follows the last.
        reqs: Request of each row, None for padding.
    """

    def __init__(
        self,
        inputs: Inputs,
        values: Mapping[str, Ints],
        links: Sequence[Ints],
        row_owner: Mapping[int, str],
    ) -> None:
        """From the ``values`` of the tensors of ``inputs``, by name; those without any left out."""
        nothing = np.zeros(0, dtype=np.int64)
        self.mode, self.drafts = inputs.mode, inputs.drafts
        self.rows, self.seq_lens = values["rows"], values["seq_lens"]
        self.out_cache_loc = values.get("out_cache_loc", nothing)
        self.input_ids = values.get("input_ids", nothing)
        self.positions = values.get("positions", nothing)
        self.tree: Ints | None = None
        if links:
            self.tree = tree_parents(links[0], links[1], len(self.rows), self.drafts)
        self.extend: tuple[Ints, Ints] | None = None
        if "extend_seq_lens" in values:
            extend = values["extend_seq_lens"]
            prefix = values.get("extend_prefix_lens")
            self.extend = (self.seq_lens - extend if prefix is None else prefix, extend)
        self.reqs: list[str | None] = [
            None if row == 0 else name if name is not None else row_owner.get(row)
            for row, name in zip(self.rows.tolist(), inputs.names, strict=True)
        ]

    @property
    def tokens_per_row(self) -> Ints:
        """[bs]."""
        if self.extend is not None:
            return self.extend[1]
        width = self.drafts if self.mode == "TARGET_VERIFY" else 1
        return np.full(len(self.rows), width, dtype=np.int64)

    def event(self, step: int, tokens: TokenCoder, namespaces: Mapping[str, str]) -> Event:
        """The ``forward`` event, without a draft worker's fields.

        Args:
            step: Its number.
            tokens: What becomes of token ids.
            namespaces: Of those requests that are not in the common one.
        """
        event: Event = {
            "kind": "forward",
            "step": step,
            "forward_mode": self.mode,
            "reqs": self.reqs,
            "req_pool_indices": self.rows,
            "seq_lens": self.seq_lens,
            "positions": self.positions,
            "out_cache_loc": self.out_cache_loc,
        }
        if tokens.mode != "absent":
            event["input_ids"] = tokens.encode(self.input_ids)
        if self.extend is not None:
            event["extend_prefix_lens"], event["extend_seq_lens"] = self.extend
        if self.mode == "TARGET_VERIFY":
            event["draft_token_num"] = self.drafts
        if self.tree is not None:
            event["tree"] = {"parent": self.tree.tolist()}
        if any(req in namespaces for req in self.reqs):
            event["namespaces"] = [
                None if req is None else namespaces.get(req, "") for req in self.reqs
            ]
        return event

    def launches(self, step: int) -> list[Event]:
        """Events that say what was queued for whom."""
        stops = np.cumsum(self.tokens_per_row)
        if not len(stops) or stops[-1] != len(self.out_cache_loc):
            return []
        starts = stops - self.tokens_per_row
        return [
            {
                "kind": "launch",
                "step": step,
                "req": req,
                "slots": self.out_cache_loc[start:stop],
                "row": row,
                "stream": "forward",
            }
            for req, row, start, stop in zip(
                self.reqs, self.rows.tolist(), starts.tolist(), stops.tolist(), strict=True
            )
            if req is not None
        ]
