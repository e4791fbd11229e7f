"""Real-KV fingerprints of slots (specification 2.3), from the K buffer of the first layer."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvcanary_cli.abi.sources import RealKvSource
    from kvcanary_cli.record.options import RecordOptions
    from kvcanary_cli.record.sglang.pools import Pools

    Ints = NDArray[np.int64]
    Event = dict[str, Any]

log = logging.getLogger("kvcanary.record")


class Fingerprints:
    """Folds KV bytes where they are."""

    def __init__(self, sources: dict[str, RealKvSource], mode: str, every: int) -> None:
        """Prepare.

        Args:
            sources: Pool (``full``, ``swa``) to its source.
            mode: ``partial`` or ``all``.
            every: Fingerprint what is read in every n-th forward.
        """
        from kvcanary_cli.abi.constants import RealKvHashMode
        from kvcanary_cli.backends import get_backend

        self._sources = sources
        self._mode = RealKvHashMode.PARTIAL if mode == "partial" else RealKvHashMode.ALL
        self._every = every
        on_cpu = next(iter(sources.values())).tensor.device.type == "cpu"
        self._backend = get_backend("cpu" if on_cpu else "triton")

    @classmethod
    def of(cls, pools: Pools, options: RecordOptions) -> Fingerprints | None:
        """Fingerprints of these pools; None if none are wanted or the layout is not known."""
        if options.kv_hash == "none":
            return None
        sources: dict[str, RealKvSource] = {}
        for name, pool in (("full", pools.kv_full), ("swa", pools.kv_swa)):
            source = None if pool is None else _source(pool)
            if source is not None:
                sources[name] = source
        if "full" not in sources:
            log.warning(
                "kvcanary: 'kv_hash' is not recorded: the buffers of %s have an unknown layout",
                type(pools.kv_full).__name__,
            )
            return None
        return cls(sources, options.kv_hash, options.kv_hash_every)

    def before(self, step: int, slots: Ints, lut: Any) -> list[Event]:
        """Events for ``slots`` that forward ``step`` is about to read."""
        return [] if step % self._every else self._events("before", step, slots, lut)

    def after(self, step: int, slots: Ints, lut: Any) -> list[Event]:
        """Events for ``slots`` that forward ``step`` has written."""
        return self._events("after", step, slots, lut)

    def _events(self, phase: str, step: int, slots: Ints, lut: Any) -> list[Event]:
        slots = _once(slots)
        events = []
        for pool, source in self._sources.items():
            if pool == "swa":
                slots = _once(lut[slots]) if lut is not None else slots[:0]
            if len(slots):
                event: Event = {
                    "kind": "kv_hash",
                    "phase": phase,
                    "step": step,
                    "slots": slots,
                    "hash": self._fold(source, slots),
                }
                events.append(event if pool == "full" else {**event, "pool": pool})
        return events

    def _fold(self, source: RealKvSource, slots: Ints) -> Ints:
        import torch

        device = source.tensor.device
        hashes: Ints = (
            self._backend.real_kv_hash(
                slots=torch.from_numpy(slots).to(device),
                real_kv_sources=(source,),
                real_kv_hash_mode=self._mode,
            )
            .cpu()
            .numpy()
        )
        return hashes


def _once(slots: Ints) -> Ints:
    """Positive ``slots``, each once, in order of first appearance."""
    slots = slots[slots > 0]
    out: Ints = slots[np.sort(np.unique(slots, return_index=True)[1])]
    return out


def _source(pool: Any) -> RealKvSource | None:
    from kvcanary_cli.abi.sources import RealKvSource

    buffers = getattr(pool, "k_buffer", None) or getattr(pool, "kv_buffer", None)
    if not buffers or buffers[0].dim() != 3 or not buffers[0][0].is_contiguous():
        return None
    buffer = buffers[0].flatten(1)
    token_bytes = buffer.shape[1] * buffer.element_size()
    try:
        return RealKvSource(
            tensor=buffer, page_size=1, num_bytes_per_token=token_bytes, read_bytes=token_bytes
        )
    except ValueError:
        return None
