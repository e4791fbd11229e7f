"""Canary buffers for a described KV pool, and their place in its transfer list (5.11, 5.12)."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvcanary_cli.abi.constants import SLOT_BYTES, PoolKind, RealKvHashMode
from kvcanary_cli.canary.buffer_group import (
    CanaryBufferGroup,
    read_bytes_of_mode,
    real_kv_source_from_rows,
)
from kvcanary_cli.canary.object_patch import wrap_method

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    BufferInfos = tuple[list[int], list[int], list[int]]

logger = logging.getLogger("kvcanary.canary")

_MHA_POOLS = ("MHATokenToKVPool", "MHATokenToKVPoolFP4")
_SWA_POOL = "SWAKVPool"
_V4_POOL = "DeepSeekV4TokenToKVPool"
SUPPORTED_POOLS = tuple(sorted((*_MHA_POOLS, _SWA_POOL, _V4_POOL)))


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolDescription:
    """What the canary needs to know of a KV pool.

    Attributes:
        class_name: Exact class; subclasses are other pools.
        k_rows, v_rows: [slots, ...] first local layer's rows of the FULL pool.
        swa_k_rows, swa_v_rows: The same of the sliding-window pool.
        swa_index_lut: [n] int64 full-to-SWA table.
        swa_slots: Rows of a sliding-window pool whose bytes are not fingerprinted.
    """

    class_name: str
    k_rows: torch.Tensor | None = None
    v_rows: torch.Tensor | None = None
    swa_k_rows: torch.Tensor | None = None
    swa_v_rows: torch.Tensor | None = None
    swa_index_lut: torch.Tensor | None = None
    swa_slots: int | None = None


def attach_canary_buffers(
    pool: PoolDescription,
    *,
    real_kv_hash_mode: RealKvHashMode,
    kv_token_id_vs_position_offset: int = 0,
    device: torch.device | str = "cpu",
) -> tuple[CanaryBufferGroup, ...]:
    """Make the groups that the server makes for such a pool, and log KVC-L02.

    Raises:
        NotImplementedError: KVC-A06 for another class.
        ValueError: KVC-S01 to S09 from the sources, KVC-C01 for a sliding-window pool without a
            table, or rows that the class needs and the description lacks.
    """
    read_bytes = read_bytes_of_mode(real_kv_hash_mode)

    def with_halves(
        kind: PoolKind, k_rows: torch.Tensor | None, v_rows: torch.Tensor | None
    ) -> CanaryBufferGroup:
        if k_rows is None or v_rows is None:
            raise ValueError(
                f"kv-canary: pool {pool.class_name} needs K and V rows for its {kind.name} group"
            )
        return CanaryBufferGroup.allocate(
            kind=kind,
            num_slots=int(k_rows.shape[0]),
            v_half=True,
            device=device,
            real_kv_sources_k=real_kv_source_from_rows(k_rows, read_bytes=read_bytes),
            real_kv_sources_v=real_kv_source_from_rows(v_rows, read_bytes=read_bytes),
            swa_index_lut=pool.swa_index_lut if kind is PoolKind.SWA else None,
            kv_token_id_vs_position_offset=kv_token_id_vs_position_offset,
        )

    groups: tuple[CanaryBufferGroup, ...]
    if pool.class_name in _MHA_POOLS:
        attacher = "mha"
        groups = (with_halves(PoolKind.FULL, pool.k_rows, pool.v_rows),)
    elif pool.class_name == _SWA_POOL:
        attacher = "swa"
        groups = (
            with_halves(PoolKind.FULL, pool.k_rows, pool.v_rows),
            with_halves(PoolKind.SWA, pool.swa_k_rows, pool.swa_v_rows),
        )
    elif pool.class_name == _V4_POOL:
        attacher = "deepseek_v4"
        if pool.swa_slots is None:
            raise ValueError(f"kv-canary: pool {pool.class_name} needs swa_slots")
        groups = (
            CanaryBufferGroup.allocate(
                kind=PoolKind.SWA,
                num_slots=pool.swa_slots,
                device=device,
                swa_index_lut=pool.swa_index_lut,
                kv_token_id_vs_position_offset=kv_token_id_vs_position_offset,
            ),
        )
    else:
        raise NotImplementedError(
            f"kv-canary: no attacher registered for pool class {pool.class_name}; "
            f"supported: {list(SUPPORTED_POOLS)}"
        )
    logger.info(
        f"attach_canary_buffers: pool={pool.class_name} attacher={attacher} "
        f"read_bytes={read_bytes} n_groups={len(groups)} "
        f"kinds={[group.kind.name for group in groups]} "
        f"kv_token_id_vs_position_offset={kv_token_id_vs_position_offset}"
    )
    return groups


def splice_buffer_infos(
    infos: BufferInfos, group: CanaryBufferGroup, *, page_size: int
) -> BufferInfos:
    """Put the canary buffers around a pool's transfer list, so that rows travel with the pages.

    Without a V half ``[k_head] + entries + [k_tail]``; with one the entries are split in the
    middle: ``[k_head] + K entries + [k_tail, v_head] + V entries + [v_tail]``.

    Args:
        infos: (addresses, total bytes, bytes of one page), one entry per buffer.
        group: Its buffers.
        page_size: Slots per page.

    Raises:
        RuntimeError: KVC-A12 for an odd number of entries with a V half.
    """
    entries = list(zip(*infos, strict=True))

    def canary(buffer: torch.Tensor) -> tuple[int, int, int]:
        return buffer.data_ptr(), buffer.numel(), SLOT_BYTES * page_size

    head, tail = canary(group.k_head), canary(group.k_tail)
    if group.v_head is None or group.v_tail is None:
        spliced = [head, *entries, tail]
    else:
        if len(entries) % 2:
            raise RuntimeError(
                "kv-canary: K/V split adapter expects even-length buf_info list, "
                f"got {len(entries)}"
            )
        half = len(entries) // 2
        spliced = [
            head,
            *entries[:half],
            tail,
            canary(group.v_head),
            *entries[half:],
            canary(group.v_tail),
        ]
    addresses, totals, pages = zip(*spliced, strict=True)
    return list(addresses), list(totals), list(pages)


def patch_buffer_infos(
    pool: object, method: str, group: CanaryBufferGroup, *, page_size: int
) -> None:
    """Make ``pool.method()`` list the canary buffers too.

    Args:
        pool: Object with the method.
        method: ``get_contiguous_buf_infos`` for FULL groups, ``get_state_buf_infos`` for SWA.
        group: Its buffers.
        page_size: Slots per page.

    Raises:
        AttributeError, RuntimeError: KVC-A07, KVC-A08.
    """

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def infos(*args: Any, **kwargs: Any) -> BufferInfos:
            return splice_buffer_infos(original(*args, **kwargs), group, page_size=page_size)

        return infos

    wrap_method(pool, method, make)
