"""Has vLLM itself lay out caches and write into them, and folds what stands there.

Runs in vLLM's environment, behind ``triton_on_cpu``, and prints JSON: for each kind of cache in
every layout of vLLM's, which slots' fingerprints changed when vLLM's kernel wrote some, and how
many fingerprints equal KV has in all slots.
"""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

import torch
from vllm.v1.attention.ops.triton_reshape_and_cache_flash import triton_reshape_and_cache_flash
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheTensor,
    MLAAttentionSpec,
    compute_layout_strides,
    create_kv_cache_views,
)
from vllm.v1.kv_cache_layout import KVCacheLayout

from kvcanary_cli.abi.constants import RealKvHashMode
from kvcanary_cli.record.vllm.kv_layouts import layout_of

BLOCKS, SIZE, LAYERS, HEAD = 5, 16, 3, 16
WRITTEN = [3, 17, 40, 79]


def _attention(heads: int, **more: Any) -> FullAttentionSpec:
    return FullAttentionSpec(
        block_size=SIZE, num_kv_heads=heads, head_size=HEAD, dtype=torch.bfloat16, **more
    )


#: Kind of cache to its specification, the backend's class, and the kernel's block size.
KINDS: dict[str, tuple[Any, str, int | None]] = {
    "attention": (_attention(3), "TritonAttentionBackend", None),
    "one_head": (_attention(1), "FlashAttentionBackend", None),
    "padded_pages": (_attention(3, page_size_padded=SIZE * 256), "FlashAttentionBackend", None),
    "smaller_kernel_blocks": (_attention(3), "FlashInferBackend", 8),
    "latent": (
        MLAAttentionSpec(block_size=SIZE, num_kv_heads=1, head_size=HEAD, dtype=torch.bfloat16),
        "FlashMLABackend",
        None,
    ),
}


def _views(spec: Any, layout: KVCacheLayout, kernel_block_size: int | None) -> list[torch.Tensor]:
    layer, block, *_ = compute_layout_strides(spec, BLOCKS, LAYERS, layout)
    raw = torch.zeros(4 * LAYERS * BLOCKS * spec.page_size_bytes, dtype=torch.int8)
    names = [f"layer.{k}" for k in range(LAYERS)]
    placed = KVCacheTensor(size=len(raw), layers=names, layer_stride=layer, block_stride=block)
    return create_kv_cache_views(raw, spec, BLOCKS, layout, placed, kernel_block_size)


def _write(view: torch.Tensor, slots: list[int], keys: torch.Tensor, values: torch.Tensor) -> None:
    if view.dim() == 3:
        view.view(torch.bfloat16)[[s // SIZE for s in slots], [s % SIZE for s in slots]] = keys[
            :, 0
        ]
        return
    one = torch.tensor(1.0)
    into = view.transpose(1, 2).split(HEAD, dim=-1)
    triton_reshape_and_cache_flash(
        keys, values, *into, torch.tensor(slots), "auto", k_scale=one, v_scale=one
    )


def _seen(name: str, layout: KVCacheLayout) -> dict[str, Any]:
    spec, backend, kernel_block_size = KINDS[name]
    try:
        views = _views(spec, layout, kernel_block_size)
    except (AssertionError, ValueError) as error:
        return {"impossible": str(error)}
    views = [view[:, 0] if name == "latent" else view for view in views]
    layer = SimpleNamespace(kv_cache=views[1], get_attn_backend=lambda: type(backend, (), {}))
    group = SimpleNamespace(layer_names=["layer.1"], kv_cache_spec=spec)
    pools: Any = SimpleNamespace(
        group=0,
        num_blocks=BLOCKS,
        block_size=SIZE,
        runner=SimpleNamespace(
            kv_cache_config=SimpleNamespace(kv_cache_groups=[group]),
            compilation_config=SimpleNamespace(static_forward_context={"layer.1": layer}),
        ),
    )
    known, why = layout_of(pools)
    if known is None:
        return {"unknown": why}
    slots = torch.arange(BLOCKS * SIZE)
    empty = known.fold(slots, RealKvHashMode.ALL)
    heads = spec.num_kv_heads
    keys = torch.randn(BLOCKS * SIZE, heads, HEAD, dtype=torch.bfloat16)
    values = torch.randn(BLOCKS * SIZE, heads, HEAD, dtype=torch.bfloat16)
    for other in (views[0], views[2]):
        _write(other, slots.tolist(), keys, values)
    others = known.fold(slots, RealKvHashMode.ALL)
    _write(views[1], WRITTEN, keys[:4], values[:4])
    some = known.fold(slots, RealKvHashMode.ALL)
    same = keys[:1].expand_as(keys).contiguous(), values[:1].expand_as(values).contiguous()
    _write(views[1], slots.tolist(), *same)
    every = known.fold(slots, RealKvHashMode.ALL)
    return {
        "by_other_layers": (empty != others).nonzero().flatten().tolist(),
        "by_a_write": (others != some).nonzero().flatten().tolist(),
        "of_equal_tokens": len(set(every.tolist())),
    }


def main() -> None:
    """Print what is seen of every kind in every layout."""
    seen = {
        f"{name} {layout.name}": _seen(name, layout) for name in KINDS for layout in KVCacheLayout
    }
    json.dump(seen, sys.stdout)
