"""The engine's pools: which allocator, table and KV buffers the trace is about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_ALLOCATORS = ("TokenToKVPoolAllocator", "PagedTokenToKVPoolAllocator")


@dataclass(frozen=True, slots=True)
class Pools:
    """Live objects of the engine and the sizes that the header states.

    Attributes:
        allocator: Hands out slots of the full pool.
        table: [rows, row_len] int32 request table.
        lut: [n] full-to-SWA table, or None.
        kv: What the allocator calls its KV cache; holds both pools of a hybrid.
        kv_full: KV pool behind the full slots.
        kv_swa: KV pool behind the SWA slots, or None.
        slots, page_size, swa_slots, swa_window: See the trace's header.
        knows_allocator: Whether ``allocator`` is of a class whose calls are understood.
    """

    allocator: Any
    table: Any
    lut: Any
    kv: Any
    kv_full: Any
    kv_swa: Any
    slots: int
    page_size: int
    swa_slots: int
    swa_window: int
    knows_allocator: bool

    @classmethod
    def of(cls, runner: Any, allocator: Any, table_pool: Any) -> Pools:
        """Find them."""
        full = getattr(allocator, "full_attn_allocator", allocator)
        lut = getattr(allocator, "full_to_swa_index_mapping", None)
        kv = allocator.get_kvcache()
        has_swa = lut is not None and getattr(allocator, "swa_attn_allocator", None) is not None
        return cls(
            allocator=full,
            table=table_pool.req_to_token,
            lut=lut if has_swa else None,
            kv=kv,
            kv_full=getattr(kv, "full_kv_pool", kv),
            kv_swa=getattr(kv, "swa_kv_pool", None) if has_swa else None,
            slots=int(full.size),
            page_size=int(full.page_size),
            swa_slots=int(allocator.swa_attn_allocator.size) if has_swa else 0,
            swa_window=int(runner.sliding_window_size or 0) if has_swa else 0,
            knows_allocator=type(full).__name__ in _ALLOCATORS,
        )

    @property
    def max_slot(self) -> int:
        return self.slots + (self.page_size - 1 if self.page_size > 1 else 0)

    def describe(self) -> dict[str, Any]:
        """The header's ``pool``."""
        rows, row_len = self.table.shape
        pool: dict[str, Any] = {
            "slots": self.slots,
            "page_size": self.page_size,
            "rows": int(rows),
            "row_len": int(row_len),
            "swa_slots": self.swa_slots,
            "swa_window": self.swa_window,
        }
        if self.page_size > 1:
            # All of page 0 is padding, so the last page ends later.
            pool["max_slot"] = self.max_slot
            pool["reserved"] = list(range(self.page_size))
        return pool
