"""Fingerprint of a slot's KV bytes (specification 1.9 and 2.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kvcanary_cli.abi.constants import PARTIAL_READ_BYTES, RealKvHashMode
from kvcanary_cli.abi.faults import Fault
from kvcanary_cli.backends.reference.hashes import fold, mix64

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcanary_cli.abi.sources import RealKvSource
    from kvcanary_cli.backends.reference.faults import FaultLog


def real_kv_hash_of_slot(
    slot: int,
    sources: Sequence[RealKvSource],
    mode: RealKvHashMode,
    faults: FaultLog,
) -> int:
    """Fingerprint one slot over all sources in order, as an unsigned 64-bit integer.

    A source that has no such row is folded as empty (0) and noted as REAL_KV_SLOT.
    """
    if mode == RealKvHashMode.NONE:
        return 0
    acc = 0
    for source in sources:
        data = slot_bytes(slot, source, mode)
        if data is None:
            faults.note(Fault.REAL_KV_SLOT, slot)
            data = b""
        acc = mix64(acc ^ fold(data))
    return acc


def slot_bytes(slot: int, source: RealKvSource, mode: RealKvHashMode) -> bytes | None:
    """The bytes of ``slot`` that ``mode`` reads, or None if the source has no such slot."""
    row, place = divmod(slot, source.page_size)
    if not 0 <= row < source.tensor.shape[0]:
        return None
    count = PARTIAL_READ_BYTES if mode == RealKvHashMode.PARTIAL else source.read_bytes
    start = place * source.num_bytes_per_token
    # A row is packed, so it can be seen as bytes on its own whatever the tensor's row stride is.
    # The copy gives it an aligned start, which viewing another type as bytes may need.
    row_bytes = source.tensor[row].clone().view(torch.uint8)
    return bytes(row_bytes[start : start + count].tolist())
