"""Lets SGLang keep a cache on the host behind a device that is the host itself."""

from __future__ import annotations

from typing import Any


def allow() -> None:
    """Patch this process's engine: plain memory, and copies in plain torch."""
    import torch
    from sglang.srt.mem_cache.pool_host import common, mha

    from tests.engines.canary_on_cpu import allow as allow_streams

    allow_streams()

    def plain_memory(dims: Any, dtype: Any, device: Any, *_args: Any, **_kwargs: Any) -> Any:
        return torch.empty(dims, dtype=dtype, device=device)

    common.ALLOC_MEMORY_FUNCS["cpu"] = plain_memory
    mha.transfer_kv_direct = transfer_kv_direct


def transfer_kv_direct(
    *, src_layers: Any, dst_layers: Any, src_indices: Any, dst_indices: Any, page_size: int
) -> None:
    """Copy slots of each layer."""
    for source, target in zip(src_layers, dst_layers, strict=True):
        target[dst_indices] = source[src_indices]
