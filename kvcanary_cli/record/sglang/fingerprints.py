"""Real-KV fingerprints of slots (specification 2.3), from the K buffer of the first layer."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from kvcanary_cli.record.slots import each_once, first_of_each

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    import torch
    from numpy.typing import NDArray

    from kvcanary_cli.abi.sources import RealKvSource
    from kvcanary_cli.record.options import RecordOptions
    from kvcanary_cli.record.session import Session
    from kvcanary_cli.record.sglang.forwards import Inputs
    from kvcanary_cli.record.sglang.pools import Pools

    Ints = NDArray[np.int64]
    Event = dict[str, Any]

log = logging.getLogger("kvcanary.record")


class Fingerprints:
    """Folds KV bytes where they are."""

    def __init__(
        self, sources: dict[str, RealKvSource], table: Any, lut: Any, mode: str, every: int
    ) -> None:
        """Prepare.

        Args:
            sources: Pool (``full``, ``swa``) to its source.
            table: [rows, row_len] live request table.
            lut: [n] live full-to-SWA table; None without a SWA pool.
            mode: ``partial`` or ``all``.
            every: Fingerprint what is read in every n-th forward.
        """
        from kvcanary_cli.abi.constants import RealKvHashMode
        from kvcanary_cli.abi.faults import new_fault_cell
        from kvcanary_cli.backends import get_backend

        self._sources, self._table, self._lut = sources, table, lut
        self._bounds = {
            name: len(source.tensor) * source.page_size for name, source in sources.items()
        }
        self._mode = RealKvHashMode.PARTIAL if mode == "partial" else RealKvHashMode.ALL
        self._every = every
        device = next(iter(sources.values())).tensor.device
        self._backend = get_backend("cpu" if device.type == "cpu" else "triton")
        self._fault = new_fault_cell(device)

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
        if pools.lut is None:
            sources.pop("swa", None)
        return cls(sources, pools.table, pools.lut, options.kv_hash, options.kv_hash_every)

    def before(self, session: Session, step: int, inputs: Inputs) -> None:
        """Tell the bytes of what forward ``step`` is about to read, if it is this one's turn."""
        if not step % self._every:
            self._tell(session, "before", step, self._read_by(inputs))

    def after(self, session: Session, step: int, slots: Sequence[Any]) -> None:
        """Tell the bytes of what forward ``step`` has written: ``slots``, a list of tensors."""
        import torch

        parts = [part.to(torch.int64).reshape(-1) for part in slots if part is not None]
        self._tell(session, "after", step, torch.cat(parts) if parts else None)

    def _read_by(self, inputs: Inputs) -> torch.Tensor:
        """Slots of the batch's prefixes, row by row, 0 in between where they are on a device."""
        import torch

        table: torch.Tensor = self._table
        rows = torch.as_tensor(inputs.rows).to(torch.int64)
        lengths = torch.as_tensor(inputs.prefix_lens()).to(torch.int64) * (rows != 0)
        longest = inputs.longest
        if longest is None:
            # On a device that would wait for it.
            longest = int(lengths.max()) if is_on_host(lengths) else table.shape[1]
        width = min(longest, table.shape[1])
        rows = rows.clamp(0, table.shape[0] - 1)
        cells = table[rows, :width].to(torch.int64)
        inside = torch.arange(width, device=cells.device)[None, :] < lengths[:, None]
        out: torch.Tensor = (cells * inside).reshape(-1)
        return out

    def _tell(self, session: Session, phase: str, step: int, slots: torch.Tensor | None) -> None:
        """Fold where the bytes are; which slots are there, and each once, is found on the host."""
        import torch

        if slots is None or not len(slots):
            return
        for pool, source in self._sources.items():
            if pool == "swa":
                slots = self._translated(slots)
            if is_on_host(slots):
                slots = torch.from_numpy(each_once(slots.numpy(), self._bounds[pool]))
            if len(slots):
                hashes = self._fold(source, slots)
                session.defer(self._event_of(phase, step, pool), slots, hashes, fresh=True)

    def _translated(self, slots: torch.Tensor) -> torch.Tensor:
        """SWA slots behind full ones, 0 where there is none."""
        inside = (slots > 0) & (slots < len(self._lut))
        out: torch.Tensor = self._lut[slots * inside].to(slots.dtype) * inside
        return out

    def _event_of(self, phase: str, step: int, pool: str) -> Callable[[Ints, Ints], list[Event]]:
        def made(slots: Ints, hashes: Ints) -> list[Event]:
            first = first_of_each(slots, self._bounds[pool])
            if not len(first):
                return []
            event: Event = {"kind": "kv_hash", "phase": phase, "step": step}
            event |= {"slots": slots[first], "hash": hashes[first]}
            return [event if pool == "full" else {**event, "pool": pool}]

        return made

    def _fold(self, source: RealKvSource, slots: torch.Tensor) -> torch.Tensor:
        """[n] hashes; of slots that the pool does not have, anything."""
        return self._backend.real_kv_hash(
            slots=slots,
            real_kv_sources=(source,),
            real_kv_hash_mode=self._mode,
            # Given, so that the launch does not wait to see whether a slot is none.
            fault=self._fault,
        )


def is_on_host(tensor: torch.Tensor) -> bool:
    """Whether a look at the values of ``tensor`` waits for nothing."""
    return tensor.device.type == "cpu"


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
