"""Whether the pool that a header describes fits into this machine's memory at all."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from kvcanary_cli.errors import InputError

if TYPE_CHECKING:
    from kvcanary_cli.trace.header import TraceHeader

#: What a replay and its ledger keep for a slot, at the least.
BYTES_PER_SLOT = 150
_TABLE_CELL, _HISTORY_CELL = 4, 8


def physical_memory() -> int | None:
    """Bytes of memory that this machine has, None if the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def check_memory(header: TraceHeader) -> None:
    """Refuse a pool that cannot be replayed here, before anything is allocated.

    Raises:
        InputError: Its slots, or its request table, alone take more than the machine's memory.
    """
    memory = physical_memory()
    if memory is None:
        return
    pool = header.pool
    cell = _HISTORY_CELL if "history" in header.records else _TABLE_CELL
    slots = (pool.max_slot + 1 + (pool.swa_max_slot if pool.swa_slots else 0)) * BYTES_PER_SLOT
    table = pool.rows * pool.row_len * cell
    sizes = (
        (f"'pool.slots' {pool.slots}", slots),
        (f"'pool.rows' {pool.rows} and 'pool.row_len' {pool.row_len}", table),
    )
    for named, size in sizes:
        if size > memory:
            raise InputError(
                f"header field {named} takes {size} bytes, and this machine has {memory}",
                hint="if the header tells the server's true sizes, use a machine with more memory",
            )
