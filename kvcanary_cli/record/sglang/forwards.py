"""A SGLang ``ForwardBatch`` as the trace's ``forward``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvcanary_cli.record.sglang.speculation import tree_parents
from kvcanary_cli.record.shadows import to_host

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from kvcanary_cli.record.tokens import TokenCoder

    Ints = NDArray[np.int64]
    Event = dict[str, Any]

EXTEND_MODES = frozenset({"EXTEND", "MIXED", "SPLIT_PREFILL", "DLLM_EXTEND", "DRAFT_EXTEND_V2"})


class Batch:
    """Host copies of a batch's fields.

    Attributes:
        mode: Name of the forward mode.
        rows, seq_lens: [bs].
        input_ids, positions, out_cache_loc: [tokens].
        prefix_lens: [bs] what each row reads, by the mode's rule (specification 1.8).
        extend: ``extend_prefix_lens`` and ``extend_seq_lens`` in extend modes, else None.
        drafts: ``draft_token_num``, 0 without.
        tree: [tokens] parent of each draft node within its row, None if each follows the last.
        reqs: Request of each row, None for padding.
    """

    def __init__(self, batch: Any, row_owner: Mapping[int, str]) -> None:
        """Copy ``batch``; requests without a name get their row's."""
        self.mode = str(batch.forward_mode.name)
        self.rows = to_host(batch.req_pool_indices)
        self.seq_lens = to_host(batch.seq_lens)
        self.out_cache_loc = _host_or_empty(batch.out_cache_loc)
        self.input_ids = _host_or_empty(batch.input_ids)
        self.positions = _host_or_empty(batch.positions)
        self.drafts = int(getattr(batch.spec_info, "draft_token_num", 0) or 0)
        self.tree: Ints | None = None
        if self.mode == "TARGET_VERIFY":
            self.tree = tree_parents(batch.spec_info, len(self.rows), self.drafts)
        self.extend: tuple[Ints, Ints] | None = None
        if self.mode in EXTEND_MODES and batch.extend_seq_lens is not None:
            extend = to_host(batch.extend_seq_lens)
            prefix = batch.extend_prefix_lens
            self.extend = (self.seq_lens - extend if prefix is None else to_host(prefix), extend)
        names = list(getattr(batch, "rids", None) or [])
        names += [None] * (len(self.rows) - len(names))
        self.reqs: list[str | None] = [
            None if row == 0 else str(name) if name is not None else row_owner.get(row)
            for row, name in zip(self.rows.tolist(), names, strict=False)
        ]
        self.prefix_lens = self._prefix_lens()

    def _prefix_lens(self) -> Ints:
        if self.extend is not None:
            return self.extend[0]
        if self.mode == "TARGET_VERIFY":
            return self.seq_lens
        out = np.zeros(len(self.rows), dtype=np.int64)
        count = min(len(self.positions), len(out))
        out[:count] = self.positions[:count]
        return out

    @property
    def has_siblings(self) -> bool:
        """Whether a draft's step proposes several tokens for a row.

        What such a step writes is read within the same draft only, and rows do not name it.
        """
        return self.mode == "DECODE" and len(self.positions) > len(self.rows)

    @property
    def tokens_per_row(self) -> Ints:
        """[bs]."""
        if self.extend is not None:
            return self.extend[1]
        width = self.drafts if self.mode == "TARGET_VERIFY" else 1
        return np.full(len(self.rows), width, dtype=np.int64)

    @property
    def row_lengths(self) -> Ints:
        """[bs] cells of each row that this forward reads or writes."""
        written = self.drafts if self.mode == "TARGET_VERIFY" else 1
        if self.extend is not None:
            lengths = self.extend[0] + self.extend[1]
        else:
            lengths = np.maximum(self.seq_lens, self.prefix_lens + written)
        return np.where(self.rows == 0, 0, lengths)

    def event(self, step: int, tokens: TokenCoder, namespaces: list[str | None] | None) -> Event:
        """The ``forward`` event, without a draft worker's fields."""
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
        if namespaces is not None:
            event["namespaces"] = namespaces
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


def _host_or_empty(values: Any) -> Ints:
    return np.zeros(0, dtype=np.int64) if values is None else to_host(values)
