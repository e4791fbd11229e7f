"""Where the KV bytes of a slot lie in a layer's cache, and how they are folded there.

vLLM shows a layer's cache as [blocks, heads, block_size, content], whatever its order in memory,
and its attention backends write a token through that view: ``content`` is a head's K and V, or what
MLA keeps instead. The CPU backend alone packs something else behind the same view.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Protocol

from kvcanary_cli.abi.constants import RealKvHashMode
from kvcanary_cli.abi.sources import RealKvSource

if TYPE_CHECKING:
    import torch

    from kvcanary_cli.record.vllm.pools import Pools

#: Backends that write a token where the view shows it.
_AS_SHOWN = frozenset(
    {
        "AiterFlashAttentionBackend",
        "CutlassMLABackend",
        "FlashAttentionBackend",
        "FlashAttnMLABackend",
        "FlashInferBackend",
        "FlashInferMLABackend",
        "FlashMLABackend",
        "FlexAttentionBackend",
        "RocmAiterUnifiedAttentionBackend",
        "TritonAttentionBackend",
        "TritonMLABackend",
    }
)
#: How a cell may be stored: other kinds keep scales of their own beside the cells.
_PLAIN = frozenset({"NONE", "FP8_PER_TENSOR"})
_CPU, _CPU_KIND = "CPUAttentionBackend", "vec"
_UNIT = 16
#: Strips that are folded at a time: what that takes on a device stays below 64 MB.
_AT_ONCE = 1 << 20


class Layout(Protocol):
    """Folds the bytes of slots.

    Attributes:
        slots: How many slots the cache has.
        what: Which bytes they are, in words.
    """

    slots: int
    what: str

    def fold(self, slots: torch.Tensor, mode: RealKvHashMode) -> torch.Tensor:
        """[n] int64 hashes of [n] int64 ``slots``, on their device; of others than the cache's
        slots, anything.
        """


class InPlace:
    """The strips of a slot, one or one a head, are folded where they are.

    Several are folded into one as the words of one more strip (specification 2.3).
    """

    what = "K and V of the first layer"

    def __init__(self, cache: torch.Tensor) -> None:
        """Find them.

        Args:
            cache: [blocks, heads, block_size, content] of any strides.

        Raises:
            ValueError: The strips are not dense, or not of a multiple of 16 bytes.
        """
        blocks, heads, size, content = cache.shape
        if cache.stride(3) != 1 and content > 1:
            raise ValueError("a head's bytes are not side by side")
        self.slots, self._size, self._heads = blocks * size, size, heads
        if (heads == 1 or cache.stride(1) == content) and cache.stride(2) == heads * content:
            # A token's heads are side by side.
            self._heads, width, step = 1, heads * content, cache.stride(0)
            self._per_block, self._per_head, rows = 1, 0, blocks
        elif cache.stride(2) == content:
            width, step = content, math.gcd(cache.stride(0), cache.stride(1))
            self._per_block, self._per_head = cache.stride(0) // step, cache.stride(1) // step
            rows = (blocks - 1) * self._per_block + (heads - 1) * self._per_head + 1
        else:
            raise ValueError("a head's tokens are not side by side")
        strip = width * cache.element_size()
        self._source = RealKvSource(
            tensor=cache.as_strided((rows, size * width), (step, 1)),
            page_size=size,
            num_bytes_per_token=strip,
            read_bytes=strip,
        )
        self._fold = _Folder(cache.device)

    def fold(self, slots: torch.Tensor, mode: RealKvHashMode) -> torch.Tensor:
        """See ``Layout``."""
        import torch

        parts = torch.split(slots, max(1, _AT_ONCE // self._heads))
        return torch.cat([self._fold_some(part, mode) for part in parts])

    def _fold_some(self, slots: torch.Tensor, mode: RealKvHashMode) -> torch.Tensor:
        import torch

        if self._heads == 1:
            return self._fold(slots, self._source, mode)
        blocks, offsets = slots // self._size, slots % self._size
        heads = torch.arange(self._heads, device=slots.device)
        rows = blocks[:, None] * self._per_block + heads * self._per_head
        hashes = self._fold(
            (rows * self._size + offsets[:, None]).reshape(-1), self._source, mode
        ).reshape(-1, self._heads)
        # A strip is a multiple of 16 bytes: two words.
        return self._fold.strips(torch.nn.functional.pad(hashes, (0, self._heads % 2)))


class Gathered:
    """The CPU backend's: within a head K before V, a token's elements ``block_size`` apart."""

    what = "K of the first layer"

    def __init__(self, cache: torch.Tensor) -> None:
        """Find them.

        Args:
            cache: [blocks, heads, block_size, 2 * head_size], contiguous.

        Raises:
            ValueError: A token's K is no multiple of 16 bytes, or the cache has holes.
        """
        blocks, heads, self._size, content = cache.shape
        self.slots, self._width = blocks * self._size, heads * content // 2
        if not cache.is_contiguous():
            raise ValueError("the cache is not contiguous")
        if self._width * cache.element_size() % _UNIT:
            raise ValueError("a token's K is no multiple of 16 bytes")
        self._keys = cache.view(blocks, heads, 2, content // 2, self._size)[:, :, 0]
        self._fold = _Folder(cache.device)

    def fold(self, slots: torch.Tensor, mode: RealKvHashMode) -> torch.Tensor:
        """See ``Layout``."""
        slots = slots.clamp(0, self.slots - 1)
        # Advanced indices around a slice put their dimension first: [n, heads, head_size].
        strips = self._keys[slots // self._size, :, :, slots % self._size]
        return self._fold.strips(strips.reshape(len(slots), self._width).contiguous(), mode)


class _Folder:
    """The project's fingerprint on one device."""

    def __init__(self, device: torch.device) -> None:
        from kvcanary_cli.abi.faults import new_fault_cell
        from kvcanary_cli.backends import get_backend

        self._backend = get_backend("cpu" if device.type == "cpu" else "triton")
        self._fault = new_fault_cell(device)

    def __call__(
        self, slots: torch.Tensor, source: RealKvSource, mode: RealKvHashMode
    ) -> torch.Tensor:
        return self._backend.real_kv_hash(
            slots=slots,
            real_kv_sources=(source,),
            real_kv_hash_mode=mode,
            # Given, so that the launch does not wait to see whether a slot is none.
            fault=self._fault,
        )

    def strips(
        self, strips: torch.Tensor, mode: RealKvHashMode = RealKvHashMode.ALL
    ) -> torch.Tensor:
        """[n] hashes of the rows of ``strips``."""
        import torch

        size = strips.shape[1] * strips.element_size()
        source = RealKvSource(tensor=strips, page_size=1, num_bytes_per_token=size, read_bytes=size)
        return self(torch.arange(len(strips), device=strips.device), source, mode)


def layout_of(pools: Pools, number: int | None = None) -> tuple[Layout | None, str]:
    """How the KV of a slot is folded, or why it cannot be.

    Args:
        pools: What is recorded.
        number: Of the group of layers; None = the first that is told.
    """
    runner, group = pools.runner, pools.group if number is None else number
    if runner is None or group is None:
        return None, pools.why_derived or "no group of layers keeps every token"
    of_group = runner.kv_cache_config.kv_cache_groups[group]
    name = of_group.layer_names[0]
    layer = runner.compilation_config.static_forward_context[name]
    cache, backend = layer.kv_cache, layer.get_attn_backend().__name__
    cache = cache[:, None] if cache.dim() == 3 else cache
    shown = f"{backend}, {tuple(cache.shape)} by {tuple(cache.stride())}"
    why = _unknown(layer, cache, backend, _spec(of_group.kv_cache_spec, name))
    if not why and cache.shape[0] * cache.shape[2] != pools.num_blocks * pools.block_size:
        why = f"it has other slots than the {pools.num_blocks} blocks of {pools.block_size}"
    if why:
        return None, f"the layout of the KV cache ({shown}) is not known: {why}"
    try:
        return (Gathered if backend == _CPU else InPlace)(cache), ""
    except ValueError as error:
        return None, f"the layout of the KV cache ({shown}) is not known: {error}"


def _spec(of_group: Any, layer: str) -> Any:
    """The specification of one layer of a group."""
    return getattr(of_group, "kv_cache_specs", {}).get(layer, of_group)


def _unknown(layer: Any, cache: torch.Tensor, backend: str, spec: Any) -> str:
    """What of the cache is not known, "" if all is."""
    if cache.dim() != 4:
        return "it has other dimensions"
    if backend == _CPU:
        kind = getattr(layer, "isa", None)
        return "" if kind == _CPU_KIND else f"it is packed for {kind}"
    if backend not in _AS_SHOWN:
        return "the backend is not one that was looked at"
    kind = getattr(getattr(spec, "kv_quant_mode", None), "name", "NONE")
    if kind not in _PLAIN:
        return f"{kind} keeps scales beside the cells"
    if getattr(spec, "state_content_bytes", None) is not None:
        return "its cells are packed"
    if getattr(spec, "num_head_slots", None) is not None:
        return "its heads are packed"
    if getattr(spec, "tokens_per_state", 1) != 1:
        return "several tokens share a cell"
    return ""
