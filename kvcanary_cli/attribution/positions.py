"""Positions that a forward was fed against those that its lengths give: this needs no hash."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvcanary_cli.abi.constants import ForwardMode

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvcanary_cli.attribution.book import FindingBook
    from kvcanary_cli.attribution.ledger import Names
    from kvcanary_cli.attribution.rules.inputs import InputFacts
    from kvcanary_cli.replay.forwards import Forward

    Ints = NDArray[np.int64]

# Text positions follow from the lengths here; drafts and verified trees have schemes of their own.
_TEXT_MODES = frozenset(
    {ForwardMode.EXTEND, ForwardMode.DECODE, ForwardMode.MIXED, ForwardMode.SPLIT_PREFILL}
)


def check_positions(
    forward: Forward,
    slots: Ints,
    codes: NDArray[np.int32],
    inputs: InputFacts,
    names: Names,
    book: FindingBook,
) -> None:
    """Report rows whose positions are off their lengths.

    A row that runs one position early reads one entry less and looks consistent, and so does a
    whole prompt that starts late: no check of rows against each other sees them.

    Args:
        forward: What is about to run.
        slots: [tokens of rows] FULL-pool slot of each, negative = not written.
        codes: [bs] name code of each batch row.
        inputs: Makes the cause.
        names: Interned names.
        book: Takes what is found.
    """
    if forward.is_draft or forward.mode not in _TEXT_MODES:
        return
    off = forward.positions[: len(forward.token_row)] - forward.true_positions
    if not off.any():
        return
    for row in np.unique(forward.token_row[off != 0]).tolist():
        mine = np.flatnonzero((forward.token_row == row) & (off != 0) & (slots > 0))
        if not len(mine):
            continue
        victim = int(codes[row])
        cause = inputs.misaligned(victim, forward.event, forward.step, int(off[mine[0]]))
        book.add(cause, names.name(victim), forward.step, slots[mine], forward.true_positions[mine])
