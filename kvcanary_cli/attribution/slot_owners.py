"""The map of owners around damaged slots."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvcanary_cli.attribution.facts import MAX_OWNERS, SlotOwner
from kvcanary_cli.attribution.ledger import FREE, NOBODY, TREE, UNKNOWN

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvcanary_cli.attribution.follow import Follower
    from kvcanary_cli.replay.forwards import Forward

    Ints = NDArray[np.int64]

# Slots shown on either side of a damaged one.
_AROUND = 4


def owner_map(
    follower: Follower,
    lane: tuple[str, str],
    slots: Ints,
    reader: str | None,
    forward: Forward | None,
    *,
    read: bool = True,
) -> tuple[SlotOwner, ...]:
    """Owners of the slots around ``slots``, at most ``MAX_OWNERS``.

    Args:
        follower: The ledger.
        lane: Worker and pool; owners are known of the full pool, of others the last writers.
        slots: [n] damaged slots, ascending.
        reader: Who read them.
        forward: The forward that read them: its rows say which free slots are still named.
        read: Whether anybody read them: without a reader no slot is another's than the reader's.
    """
    if not len(slots):
        return ()
    pool = follower.header.pool
    swa = lane[1] != "FULL"
    last = pool.swa_max_slot if swa else pool.max_slot
    spread = (slots[:MAX_OWNERS, None] + np.arange(-_AROUND, _AROUND + 1)).ravel()
    around = np.unique(spread[(spread > 0) & (spread <= last)])[:MAX_OWNERS]
    names = follower.names
    codes = follower.lane(*lane).req[around] if swa else follower.rules.state.owner[around]
    shared = follower.rules.state.shared
    mine = NOBODY if reader is None else names.code(reader)
    damaged = np.isin(around, slots)
    named = np.zeros(len(around), dtype=np.bool_)
    if not swa and forward is not None and (codes == FREE).any():
        named = np.isin(around, _named_by(follower, forward))
    out = []
    for slot, code, bad, held in zip(
        around.tolist(), codes.tolist(), damaged.tolist(), named.tolist(), strict=True
    ):
        foreign = read and bad and code > TREE and code != mine and (swa or not shared[slot])
        out.append(
            SlotOwner(
                slot=slot,
                owner="reserved" if slot in pool.reserved else _label(follower, code),
                damaged=bad,
                foreign=foreign,
                dangling=code == FREE and held,
            )
        )
    return tuple(out)


def _label(follower: Follower, code: int) -> str:
    if code in (UNKNOWN, NOBODY):
        return "?"
    if code == FREE:
        return "free"
    return follower.names.name(code) or "?"


def _named_by(follower: Follower, forward: Forward) -> Ints:
    """Slots that the batch's rows name."""
    if follower.pool is None:
        return np.empty(0, dtype=np.int64)
    table = follower.pool.table
    cells = [
        table[row, :length].astype(np.int64)
        for row, length in zip(
            forward.rows.tolist(), (forward.prefix + forward.extend).tolist(), strict=True
        )
        if row
    ]
    return np.concatenate(cells) if cells else np.empty(0, dtype=np.int64)
