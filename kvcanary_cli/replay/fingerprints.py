"""Recorded KV fingerprints as KV bytes, so that the kernels check them like any other source.

A trace holds ``real_kv_hash`` values, not bytes. ``mix`` is a bijection, so for every value there
are 16 bytes whose fingerprint it is: a zero word and the twice unmixed value (specification 2.3,
one source: mix(fold(0, w)) = mix(mix(w))). These bytes stand in for the slot's KV.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvcanary_cli.abi.sources import RealKvSource
from kvcanary_cli.backends.cpu.event_records import NEVER
from kvcanary_cli.replay.chains import as_int64, as_uint64, mix, unmix

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from kvcanary_cli.replay.known import Known

STRIP_BYTES = 16


class RecordedFingerprints:
    """What the trace says of the KV bytes of one pool's half, slot by slot.

    Attributes:
        source: The stand-in bytes, [num_slots, 16] uint8.
        unhashed: [num_slots] bool: the canary wrote the slot in a forward whose fingerprint was
            not recorded. The first fingerprint seen afterwards is then taken as the right one.
        agreed: [num_slots] last event whose fingerprint of the slot was the right one: a
            fingerprint outside a forward, or the forward that it was taken before.
        known: Whom to tell which slots' bytes change, or None.
    """

    def __init__(self, num_slots: int, device: str) -> None:
        import torch

        self._words = torch.zeros((num_slots, 2), dtype=torch.int64, device=device)
        self.source = RealKvSource(
            tensor=self._words.view(torch.uint8),
            page_size=1,
            num_bytes_per_token=STRIP_BYTES,
            read_bytes=STRIP_BYTES,
        )
        self.unhashed = np.zeros(num_slots, dtype=np.bool_)
        self.agreed = np.full(num_slots, NEVER, dtype=np.int64)
        self._before: list[NDArray[np.int64]] = []
        self.known: Known | None = None

    def set(self, slots: NDArray[np.int64], hashes: NDArray[np.int64]) -> None:
        """The bytes of ``slots`` now have these fingerprints."""
        import torch

        words = as_int64(unmix(unmix(as_uint64(hashes))))
        index = torch.from_numpy(slots).to(self._words.device)
        if self.known is not None and self.known.holds(slots):
            self.known.forget_slots(slots[self._words[index, 1].cpu().numpy() != words])
        self._words[index, 1] = torch.from_numpy(words).to(self._words.device)

    def note_agreed(self, slots: NDArray[np.int64], event: int, *, before: bool) -> None:
        """The fingerprints of ``slots`` at ``event`` are right.

        Args:
            slots: [n] slots.
            event: An ``i``.
            before: Whether they were taken for the next forward.
        """
        self.agreed[slots] = event
        if before:
            self._before.append(slots)

    def met_by(self, event: int | None) -> None:
        """The forward that fingerprints were taken for found nothing; ``event`` None = it did."""
        if event is not None:
            for slots in self._before:
                self.agreed[slots] = event
        self._before.clear()

    def get(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """Fingerprints of ``slots`` as last set; 0 = never."""
        index = _index(slots, self._words.device)
        words = self._words[index, 1].cpu().numpy()
        return as_int64(mix(mix(as_uint64(words))))

    def forget(self, slots: NDArray[np.int64]) -> None:
        """The bytes of ``slots`` changed to something that was not recorded."""
        if len(slots):
            if self.known is not None:
                self.known.forget_slots(slots)
            self._words[_index(slots, self._words.device), 1] = 0
            self.unhashed[slots] = True

    def copy(self, src: NDArray[np.int64], dst: NDArray[np.int64]) -> None:
        """The bytes of ``src`` were copied to ``dst``."""
        device = self._words.device
        if self.known is not None:
            self.known.forget_slots(dst)
        self._words[_index(dst, device)] = self._words[_index(src, device)].clone()
        self.unhashed[dst] = self.unhashed[src]
        self.agreed[dst] = self.agreed[src]


def _index(slots: NDArray[np.int64], device: torch.device) -> torch.Tensor:
    import torch

    return torch.from_numpy(np.ascontiguousarray(slots)).to(device)
