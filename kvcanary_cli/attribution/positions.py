"""Positions and lengths that a forward was fed against each other: this needs no hash."""

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
    """Report rows whose positions are off their lengths, or whose lengths disagree.

    A row that runs one position early reads one entry less and looks consistent, and so does a
    whole prompt that starts late: no check of rows against each other sees them. Nor do those see
    a ``seq_lens`` that is not prefix plus extend, for what a row reads and writes is planned
    without it (SPEC_CANARY 1.8); attention kernels go by it.

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
    ends = forward.prefix + forward.extend
    # Where a decode's ``seq_lens`` is off, its position is.
    too_long = (forward.seq_lens - ends) * (forward.extend > 0)
    if forward.mode is ForwardMode.DECODE:
        too_long[:] = 0
    if not off.any() and not too_long.any():
        return
    for row in np.unique(forward.token_row[(off != 0) | (too_long[forward.token_row] != 0)]):
        mine = (forward.token_row == row) & (slots > 0)
        wrong = mine & (off != 0)
        victim = int(codes[row])
        if wrong.any():
            first = int(off[wrong.argmax()])
            cause = inputs.misaligned(victim, forward.event, forward.step, first)
        elif mine.any() and too_long[row]:
            wrong = mine
            cause = inputs.wrong_length(victim, forward, int(forward.seq_lens[row]), int(ends[row]))
        else:
            continue
        book.add(
            cause, names.name(victim), forward.step, slots[wrong], forward.true_positions[wrong]
        )
