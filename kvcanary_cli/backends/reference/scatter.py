"""Scatter of the batch's token ids into the expected-token pool (specification 1.14)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence


def scatter_reference(
    *,
    flat_in: torch.Tensor,
    offsets: torch.Tensor,
    req_pool_indices: torch.Tensor,
    pool_out: torch.Tensor,
) -> None:
    """Copy ids request by request, given checked arguments; see ``Backend.scatter_req_token_ids``.

    What has no place is dropped: ids past the pool's width, requests whose row the pool does not
    have, offsets outside ``flat_in``.
    """
    num_rows, width = pool_out.shape
    bounds: Sequence[int] = offsets.tolist()
    for r, row in enumerate(req_pool_indices.tolist()):
        if not 0 <= row < num_rows:
            continue
        start, stop = bounds[r], bounds[r + 1]
        for i in range(max(0, start), min(stop, flat_in.shape[0], start + width)):
            # torch's cast keeps the low 32 bits.
            pool_out[row, i - start] = flat_in[i].to(torch.int32)
