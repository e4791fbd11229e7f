"""From a violation to the damaged entry that the rules are asked about."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvcanary_cli.abi.constants import FailReason
from kvcanary_cli.attribution.damage import Damage
from kvcanary_cli.replay.violations import VERIFY

if TYPE_CHECKING:
    from kvcanary_cli.attribution.under_way import UnderWay
    from kvcanary_cli.replay.forwards import Forward
    from kvcanary_cli.replay.violations import ViolationChunk

_KV_ONLY = int(FailReason.VERIFY_REAL_KV_HASH_MISMATCH)
_KV_AND_CHAIN = _KV_ONLY | int(FailReason.VERIFY_CHAIN_HASH_MISMATCH)


class Damages:
    """Makes them, with the ledger as it is.

    Args:
        now: The forward that is being judged.
    """

    def __init__(self, now: UnderWay) -> None:
        self._now = now

    def of(
        self,
        chunk: ViolationChunk,
        k: int,
        forward: Forward | None,
        slot: int,
        position: int,
        victim: int,
    ) -> Damage:
        """The k-th entry of a chunk.

        Args:
            chunk: Violations of one forward or sweep.
            k: Which of them.
            forward: The forward, None for a sweep.
            slot, position: Where the damage is: the entry's, or the slot before it.
            victim: Name code of the reader.
        """
        columns = chunk.columns
        row = int(columns["row"][k])
        true_position = None
        if forward is not None and chunk.check != VERIFY:
            true_position = position
        elif forward is not None:
            true_position = _row_end(forward, row)
        offset = 0 if forward is None else row_offset(forward, row)
        checked = bool(columns["token_checked"][k])
        return Damage(
            worker=chunk.worker,
            pool_kind=chunk.pool_kind,
            victim=victim,
            row=row,
            position=position,
            slot=slot,
            stored_position=int(columns["position"][k]),
            stored_token=int(columns["stored_token"][k]),
            expected_token=int(columns["expected_token"][k]) if checked else None,
            kv_only=self._kv_only(chunk, k),
            seam=int(chunk.bits[k]) == _KV_AND_CHAIN,
            step=chunk.step,
            event=chunk.event,
            forward=forward,
            true_position=true_position,
            row_offset=offset,
            writes=self._now.follower.lane(*lane_of(chunk)),
            full_slot=self._full_slot(chunk, forward, row, position),
            full_writes=self._now.follower.lane(chunk.worker, "FULL"),
            mapped_slot=self._now.cell(None, row, position),
        )

    def _kv_only(self, chunk: ViolationChunk, k: int) -> bool:
        """Whether only the bytes changed: a predecessor that was replaced since is no change."""
        bits = int(chunk.bits[k])
        if bits != _KV_AND_CHAIN:
            return bits == _KV_ONLY
        slot, prev = int(chunk.columns["slot"][k]), int(chunk.columns["prev_slot"][k])
        came = self._now.follower.lane(*lane_of(chunk)).came(np.array([slot, max(prev, 0)]))
        return prev > 0 and bool(came[1] > came[0])

    def _full_slot(
        self, chunk: ViolationChunk, forward: Forward | None, row: int, position: int
    ) -> int:
        """What the reader's row names at ``position``; 0 in the full pool, or if not known."""
        return self._now.cell(forward, row, position) if chunk.pool_kind == "SWA" else 0


def lane_of(chunk: ViolationChunk) -> tuple[str, str]:
    """Worker and pool of a chunk of violations."""
    return chunk.worker, chunk.pool_kind


def _row_end(forward: Forward, row: int) -> int | None:
    """First position that the row writes by its lengths."""
    batch_row = np.flatnonzero(forward.rows == row)
    if not len(batch_row):
        return None
    mine = forward.true_positions[forward.token_row == batch_row[0]]
    return int(mine.min()) if len(mine) else None


def row_offset(forward: Forward, row: int) -> int:
    """How far the positions that the row writes are off its lengths."""
    batch_row = np.flatnonzero(forward.rows == row)
    if not len(batch_row):
        return 0
    mine = np.flatnonzero(forward.token_row == batch_row[0])
    if not len(mine):
        return 0
    return int(forward.positions[mine[0]]) - int(forward.true_positions[mine[0]])
