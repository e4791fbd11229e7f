"""ForwardBatch: the part of an engine's batch that the canary looks at (specification 1.8)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from kvcanary_cli.abi.constants import ForwardMode, PoolKind


@dataclass(slots=True, kw_only=True)
class ForwardBatch:
    """One forward. All tensors are int32 or int64; bs rows, padding rows included.

    Attributes:
        forward_mode: Which rule gives prefix and extend lengths.
        req_pool_indices: [bs], row of the request table, 0 = padding row.
        seq_lens: [bs], length after this forward, except in TARGET_VERIFY and draft DECODE, where
            it is not bumped yet.
        input_ids: [num_tokens], flat in row order.
        positions: [num_tokens], 0-based.
        out_cache_loc: [num_tokens], slot to write, negative = not written.
        extend_prefix_lens: [bs], in modes that give extend lengths.
        extend_seq_lens: [bs], in modes that give extend lengths.
        draft_token_num: Tokens per row in TARGET_VERIFY.
        num_tokens_per_req: Tokens per row in DRAFT_EXTEND_V2, for the oracle; None =
            ``draft_token_num``.
        req_all_ids_flat: [sum of lens] int64, prompt and output ids of all rows, or None.
        req_all_ids_lens: [bs] int64, their lengths, or None.
        req_ids: Request of each row, None or missing = padding.
        bootstrap_rooms: Room of each row, negative = none.
        raw_batch_size: Rows before graph padding, None = all rows. The check before the forward
            (KVC-B03) sees these, the plan input (KVC-B05) sees the padded rows.
        landed: Pool kind to [num_tokens] physical slots, where a forward wrote elsewhere than
            out_cache_loc or its translation says.
    """

    forward_mode: ForwardMode
    req_pool_indices: torch.Tensor
    seq_lens: torch.Tensor
    input_ids: torch.Tensor
    positions: torch.Tensor
    out_cache_loc: torch.Tensor
    extend_prefix_lens: torch.Tensor | None = None
    extend_seq_lens: torch.Tensor | None = None
    draft_token_num: int = 0
    num_tokens_per_req: int | None = None
    req_all_ids_flat: torch.Tensor | None = None
    req_all_ids_lens: torch.Tensor | None = None
    req_ids: tuple[str | None, ...] = ()
    bootstrap_rooms: tuple[int, ...] = ()
    raw_batch_size: int | None = None
    landed: Mapping[PoolKind, torch.Tensor] = field(default_factory=dict)

    @property
    def batch_size(self) -> int:
        return int(self.req_pool_indices.shape[0])

    @property
    def num_tokens(self) -> int:
        return int(self.positions.shape[0])
