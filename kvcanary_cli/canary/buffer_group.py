"""CanaryBufferGroup: the canary rows beside one KV pool (specification 1.4, 5.11)."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcanary_cli.abi.constants import (
    PARTIAL_READ_BYTES,
    REAL_KV_ALIGNMENT_BYTES,
    SLOT_BYTES,
    PoolKind,
    RealKvHashMode,
)
from kvcanary_cli.abi.sources import RealKvSource

if TYPE_CHECKING:
    import torch

READ_WHOLE_ROW = sys.maxsize
"""``read_bytes`` that stands for the whole row, whatever its width."""

MISSING_LUT_TEXT = (
    "kv-canary: launch_canary_plan_kernels requires full_to_swa_index_mapping when "
    "swa_window_size > 0"
)


def read_bytes_of_mode(mode: RealKvHashMode) -> int:
    """Bytes of a row to fingerprint: 0, 16 or ``READ_WHOLE_ROW``."""
    if mode is RealKvHashMode.NONE:
        return 0
    return PARTIAL_READ_BYTES if mode is RealKvHashMode.PARTIAL else READ_WHOLE_ROW


def real_kv_source_from_rows(
    rows: torch.Tensor,
    *,
    read_bytes: int,
    page_size: int = 1,
    num_bytes_per_token: int | None = None,
) -> tuple[RealKvSource, ...]:
    """Make the sources of one layer's K or V rows: a live view, never a copy.

    Args:
        rows: [rows, ...] of any dtype, one row per ``page_size`` slots; flattened and seen as
            bytes, which needs packed rows.
        read_bytes: 0 = no source, 16, or ``READ_WHOLE_ROW``.
        page_size: Slots per row.
        num_bytes_per_token: Bytes of a slot's strip; default the row's width over ``page_size``.

    Returns:
        One source, or none if ``read_bytes`` is 0.

    Raises:
        ValueError: KVC-S08, KVC-S09, or KVC-S01 to S06 from the source itself.
    """
    import torch

    if read_bytes == 0:
        return ()
    flat = rows.flatten(1).view(torch.uint8)
    if num_bytes_per_token is None:
        num_bytes_per_token = int(flat.shape[1]) // max(1, page_size)
    if num_bytes_per_token <= 0 or num_bytes_per_token % REAL_KV_ALIGNMENT_BYTES:
        raise ValueError(
            "kv-canary: num_bytes_per_token must be a positive multiple of 16, "
            f"got {num_bytes_per_token}"
        )
    if read_bytes == READ_WHOLE_ROW:
        read_bytes = num_bytes_per_token
    if read_bytes < 0:
        raise ValueError(f"kv-canary: read_bytes must be non-negative, got {read_bytes}")
    if read_bytes > num_bytes_per_token:
        raise ValueError(
            f"kv-canary: read_bytes must be <= num_bytes_per_token ({num_bytes_per_token}), "
            f"got {read_bytes}"
        )
    if read_bytes % REAL_KV_ALIGNMENT_BYTES:
        raise ValueError(f"kv-canary: read_bytes must be a multiple of 16, got {read_bytes}")
    return (
        RealKvSource(
            tensor=flat,
            page_size=page_size,
            num_bytes_per_token=num_bytes_per_token,
            read_bytes=read_bytes,
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryBufferGroup:
    """Canary buffers, sources and table of one pool.

    Attributes:
        kind: FULL covers positions [0, K), SWA the last window of them.
        k_head, k_tail: [num_slots, 32] uint8; rows written before and after the model.
        v_head, v_tail: The same for the V half, both None without one.
        real_kv_sources_k, real_kv_sources_v: At most 4 each, empty = no fingerprint.
        swa_index_lut: [n] int64 full-to-SWA table, None iff FULL. Read at every launch, so it may
            be updated in place.
        kv_token_id_vs_position_offset: 0 = the token at position p was fed at p (target pool);
            1 = the pool of a draft, which holds token p + 1 at position p.

    Raises:
        ValueError: KVC-C01 for SWA without a table; FULL with one, or half a V half.
    """

    kind: PoolKind
    k_head: torch.Tensor
    k_tail: torch.Tensor
    v_head: torch.Tensor | None = None
    v_tail: torch.Tensor | None = None
    real_kv_sources_k: tuple[RealKvSource, ...] = ()
    real_kv_sources_v: tuple[RealKvSource, ...] = ()
    swa_index_lut: torch.Tensor | None = None
    kv_token_id_vs_position_offset: int = 0

    def __post_init__(self) -> None:
        if self.kind is PoolKind.SWA and self.swa_index_lut is None:
            raise ValueError(MISSING_LUT_TEXT)
        if self.kind is PoolKind.FULL and self.swa_index_lut is not None:
            raise ValueError(
                "kv-canary: a FULL buffer group takes no full_to_swa_index_mapping; leave "
                "swa_index_lut None or make the group SWA"
            )
        if (self.v_head is None) != (self.v_tail is None):
            raise ValueError("kv-canary: v_head and v_tail must both be given or both be None")

    @classmethod
    def allocate(
        cls,
        *,
        kind: PoolKind,
        num_slots: int,
        v_half: bool = False,
        device: torch.device | str = "cpu",
        real_kv_sources_k: tuple[RealKvSource, ...] = (),
        real_kv_sources_v: tuple[RealKvSource, ...] = (),
        swa_index_lut: torch.Tensor | None = None,
        kv_token_id_vs_position_offset: int = 0,
    ) -> CanaryBufferGroup:
        """Allocate zeroed buffers of ``num_slots`` rows (all zero = never written)."""
        import torch

        def rows() -> torch.Tensor:
            return torch.zeros((num_slots, SLOT_BYTES), dtype=torch.uint8, device=device)

        return cls(
            kind=kind,
            k_head=rows(),
            k_tail=rows(),
            v_head=rows() if v_half else None,
            v_tail=rows() if v_half else None,
            real_kv_sources_k=real_kv_sources_k,
            real_kv_sources_v=real_kv_sources_v,
            swa_index_lut=swa_index_lut,
            kv_token_id_vs_position_offset=kv_token_id_vs_position_offset,
        )

    @property
    def has_v_half(self) -> bool:
        return self.v_head is not None

    @property
    def num_slots(self) -> int:
        return int(self.k_head.shape[0])
