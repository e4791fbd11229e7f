"""The ranges that a header's pool gives to slots, rows and positions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcanary_cli.trace.problems import Range
from kvcanary_cli.trace.schema import DEVICE_POOLS

if TYPE_CHECKING:
    from kvcanary_cli.trace.header import PoolInfo

INT64_MAX = (1 << 63) - 1


class Bounds:
    """Ranges of one trace.

    Attributes:
        row_len: Cells of a table row.
        has_swa: Whether there is a sliding-window pool.
    """

    def __init__(self, pool: PoolInfo) -> None:
        self.row_len = pool.row_len
        self.has_swa = pool.swa_slots > 0
        self.row = Range(0, pool.rows - 1, "a row (pool.rows)")
        self.slot = Range(0, pool.max_slot, "a slot")
        self.slot_or_unwritten = Range(-1, pool.max_slot, "a slot, or -1 for none,")
        self.swa_slot = Range(0, pool.swa_max_slot, "a slot of the sliding-window pool")
        self.any_device_slot = Range(0, max(pool.max_slot, pool.swa_max_slot), "a slot")
        self.position = Range(0, pool.row_len - 1, "a position (pool.row_len)")
        self.cells = Range(0, pool.row_len, "a length")
        # No token lives behind the end of its row; the last sampled one may be named there.
        self.history_start = Range(0, pool.row_len, "a position")
        self.natural = Range(0, INT64_MAX, "a number")
        #: What the ledger keeps of a step, in 32 bits; a server needs years for that many.
        self.step = Range(0, (1 << 31) - 1, "a step")
        self.count = Range(1, (1 << 31) - 1, "a number")

    def slot_in(self, pool: str | None) -> Range | None:
        """Range of slots in a named pool; None for a pool on the host or elsewhere."""
        if pool == "swa":
            return self.swa_slot
        return self.slot if pool is None or pool in DEVICE_POOLS else None
