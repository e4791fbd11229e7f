"""Real-KV fingerprints of slots (specification 2.3), from the K half of the first layer.

The layout of a block differs with the attention backend. Known is the CPU backend's: a block holds
``[kv_heads, 2, block_size * head_size]``, K before V, and within K a token's elements lie
``block_size`` apart. They are gathered into one strip a slot, heads in order, and folded there.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np

from kvcanary_cli.record.vllm.pools import RUNNER_V1

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from numpy.typing import NDArray

    from kvcanary_cli.record.options import RecordOptions
    from kvcanary_cli.record.vllm.pools import Pools

    Ints = NDArray[np.int64]
    Event = dict[str, Any]

log = logging.getLogger("kvcanary.record")

_CPU_BACKEND = "CPUAttentionBackend"
_CPU_LAYOUT = "vec"


class Fingerprints:
    """Folds KV bytes where they are."""

    def __init__(self, gather: Callable[[Ints], torch.Tensor], mode: str, every: int) -> None:
        """Prepare.

        Args:
            gather: Slots [n] to their K bytes, [n, bytes] of any dtype.
            mode: ``partial`` or ``all``.
            every: Fingerprint what is read in every n-th forward.
        """
        from kvcanary_cli.abi.constants import RealKvHashMode
        from kvcanary_cli.backends import get_backend

        self._gather = gather
        self._mode = RealKvHashMode.PARTIAL if mode == "partial" else RealKvHashMode.ALL
        self._every = every
        self._backend = get_backend("cpu")

    @classmethod
    def of(cls, pools: Pools, options: RecordOptions) -> Fingerprints | None:
        """Fingerprints of this pool; None if none are wanted or the layout is not known."""
        if options.kv_hash == "none":
            return None
        gather, why = _layout(pools)
        if gather is None:
            log.warning("kvcanary: 'kv_hash' is not recorded: %s", why)
            return None
        return cls(gather, options.kv_hash, options.kv_hash_every)

    def before(self, step: int, slots: Ints) -> list[Event]:
        """Events for ``slots`` that forward ``step`` is about to read."""
        return [] if step % self._every else self._events("before", step, slots)

    def after(self, step: int, slots: Ints) -> list[Event]:
        """Events for ``slots`` that forward ``step`` has written."""
        return self._events("after", step, slots)

    def _events(self, phase: str, step: int, slots: Ints) -> list[Event]:
        slots = slots[slots > 0]
        slots = slots[np.sort(np.unique(slots, return_index=True)[1])]
        if not len(slots):
            return []
        hashes = self._fold(slots)
        return [{"kind": "kv_hash", "phase": phase, "step": step, "slots": slots, "hash": hashes}]

    def _fold(self, slots: Ints) -> Ints:
        import torch

        from kvcanary_cli.abi.sources import RealKvSource

        strips = self._gather(slots)
        size = strips.shape[1] * strips.element_size()
        source = RealKvSource(tensor=strips, page_size=1, num_bytes_per_token=size, read_bytes=size)
        hashes: Ints = self._backend.real_kv_hash(
            slots=torch.arange(len(slots)),
            real_kv_sources=(source,),
            real_kv_hash_mode=self._mode,
        ).numpy()
        return hashes


def _layout(pools: Pools) -> tuple[Callable[[Ints], torch.Tensor] | None, str]:
    """What gathers the K bytes of slots, or why nothing can."""
    runner, group = pools.runner, pools.group
    if runner is None or group is None:
        return None, pools.why_derived or "no group of layers keeps every token"
    if pools.runner_module != RUNNER_V1:
        return None, f"the layout of {pools.runner_module} is not known"
    name = runner.kv_cache_config.kv_cache_groups[group].layer_names[0]
    layer = runner.compilation_config.static_forward_context[name]
    cache = layer.kv_cache
    backend = runner.attn_groups[group][0].backend.__name__
    layout = getattr(layer, "isa", None)
    if backend != _CPU_BACKEND or layout != _CPU_LAYOUT or cache.dim() != 4:
        return None, f"the layout of {backend} ({layout}, {tuple(cache.shape)}) is not known"
    num_blocks, heads, block_size, width = cache.shape
    head_size = width // 2
    if heads * head_size * cache.element_size() % 16 or not cache.is_contiguous():
        return None, f"a token's K of {backend} {tuple(cache.shape)} is no multiple of 16 bytes"
    keys = cache.view(num_blocks, heads, 2, head_size, block_size)[:, :, 0]

    def gather(slots: Ints) -> torch.Tensor:
        import torch

        index = torch.from_numpy(slots)
        blocks, offsets = index // block_size, index % block_size
        # Advanced indices around a slice put their dimension first: [n, heads, head_size].
        strips: torch.Tensor = keys[blocks, :, :, offsets].reshape(len(slots), heads * head_size)
        return strips.contiguous()

    return gather, ""
