"""Whether a wrong token was fed where a prompt was cut into chunks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvcanary_cli.abi.constants import ForwardMode

if TYPE_CHECKING:
    from kvcanary_cli.replay.forwards import Forward
    from kvcanary_cli.replay.history import TokenHistories
    from kvcanary_cli.replay.violations import ViolationChunk

_CHUNKED = frozenset({ForwardMode.EXTEND, ForwardMode.MIXED})


def is_chunk_end(
    chunk: ViolationChunk, k: int, forward: Forward | None, histories: TokenHistories | None
) -> bool:
    """Whether the k-th of some wrong inputs is the only one of its row and ends a prompt's chunk.

    More of the prompt must be known behind it: what ends a prompt ends no chunk.
    """
    if forward is None or histories is None or forward.mode not in _CHUNKED:
        return False
    row, slot = int(chunk.columns["row"][k]), int(chunk.columns["slot"][k])
    batch_rows = np.flatnonzero(forward.rows == row)
    if len(batch_rows) != 1 or int((chunk.columns["row"] == row).sum()) != 1:
        return False
    mine = np.flatnonzero(forward.token_row == batch_rows[0])
    if len(mine) < 2 or int(forward.out_cache_loc[mine[-1]]) != slot:
        return False
    req = forward.reqs[int(batch_rows[0])]
    behind = int(forward.true_positions[mine[-1]]) + 1
    return req is not None and len(histories.tokens(req)) > behind
