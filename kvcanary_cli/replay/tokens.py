"""The histories as the two sources of truth that the canary asks: verify and write tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvcanary_cli.abi.constants import NO_EXPECTED_TOKEN, ForwardMode

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from kvcanary_cli.canary.forward_batch import ForwardBatch
    from kvcanary_cli.replay.forwards import Forward


class RecordedTokens:
    """Expected tokens of the current forward (``ExpectedTokens`` and ``InputOracle`` at once).

    The driver sets it up before each forward; the manager then reads it.

    Attributes:
        pool: [rows, n] int64 tokens by table row.
        lens: [bs] int64, cells of each batch row that are known, or None = compare nothing.
        forward: The forward under way.
    """

    def __init__(self, pool: torch.Tensor) -> None:
        self.pool = pool
        self.lens: torch.Tensor | None = None
        self.forward: Forward | None = None
        self.expected: NDArray[np.int64] | None = None

    def refresh(self, batch: ForwardBatch) -> None:
        """Nothing to scatter: histories write through."""

    def valid_lens(self, batch: ForwardBatch) -> torch.Tensor | None:
        return self.lens

    def expected_inputs(self, batch: ForwardBatch) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Tokens by history; positions are the batch's own, as from upstream's oracle (5.9)."""
        import torch

        if self.expected is None:
            return None
        return torch.from_numpy(self.expected).to(batch.positions.device), batch.positions


def expected_tokens(
    forward: Forward,
    tokens: NDArray[np.int64],
    token_rows: NDArray[np.int64],
    lens: NDArray[np.int64],
) -> NDArray[np.int64] | None:
    """Token that each written token should be; the actual one where that is unknown.

    Args:
        forward: The forward.
        tokens: [rows, n] histories.
        token_rows: [bs] row of ``tokens`` that holds the history of each batch row.
        lens: [bs] how many of them are known.

    Returns:
        [num_tokens], or None where nothing is compared: verification trees and inner draft steps
        hold proposals (specification 5.4).
    """
    actual: NDArray[np.int64] = forward.input_ids
    mode = forward.mode
    if mode is ForwardMode.TARGET_VERIFY or (forward.is_draft and mode is ForwardMode.DECODE):
        return None
    expected = actual.copy()
    row = forward.token_row
    wanted = forward.true_positions + (1 if forward.is_draft else 0)
    known = (wanted >= 0) & (wanted < lens[row]) & (wanted < tokens.shape[1])
    k = np.flatnonzero(known)
    values = tokens[token_rows[row[k]], wanted[k]]
    hit = values != NO_EXPECTED_TOKEN
    expected[k[hit]] = values[hit]
    return expected
