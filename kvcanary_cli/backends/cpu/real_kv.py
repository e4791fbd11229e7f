"""Fingerprints of KV bytes (specification 1.9 and 2.3)."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

import numpy as np

from kvcanary_cli.abi.constants import PARTIAL_READ_BYTES, RealKvHashMode
from kvcanary_cli.abi.faults import Fault
from kvcanary_cli.backends.cpu.hashes import as_int64, mix, worse_fault
from kvcanary_cli.backends.cpu.jit import helper, kernel
from kvcanary_cli.backends.cpu.memory import load_i64, store_i64

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcanary_cli.abi.sources import RealKvSource

_FIELDS = 6
_REAL_KV_SLOT = int(Fault.REAL_KV_SLOT)


class SourceTable:
    """Sources as int64 fields that kernels read; keep it alive while they run.

    Attributes:
        address: Of the first field: per source address, rows, row stride in bytes, slots a row,
            bytes a slot, bytes read.
        count: Sources to fold, 0 in mode NONE.
    """

    __slots__ = ("_fields", "address", "count")

    def __init__(self, sources: Sequence[RealKvSource], mode: RealKvHashMode) -> None:
        self.count = 0 if mode == RealKvHashMode.NONE else len(sources)
        self.address = 0
        if self.count == 0:
            return
        self._fields = array("q")
        for source in sources:
            tensor = source.tensor
            self._fields.extend(
                (
                    tensor.data_ptr(),
                    tensor.shape[0],
                    tensor.stride(0) * tensor.element_size(),
                    source.page_size,
                    source.num_bytes_per_token,
                    PARTIAL_READ_BYTES if mode == RealKvHashMode.PARTIAL else source.read_bytes,
                )
            )
        self.address = self._fields.buffer_info()[0]


@helper
def real_kv_hash(sources, num_sources, slot, fault):  # type: ignore[no-untyped-def]
    """uint64 fingerprint of a slot, and ``fault`` or a worse one."""
    acc = np.uint64(0)
    for n in range(num_sources):
        field = sources + n * _FIELDS * 8
        page_size = load_i64(field, 3)
        row, place = slot, 0
        if page_size != 1:
            row = slot // page_size
            place = slot - row * page_size
        folded = np.uint64(0)
        if 0 <= row < load_i64(field, 1):
            strip = load_i64(field, 0) + row * load_i64(field, 2) + place * load_i64(field, 4)
            for word in range(load_i64(field, 5) >> 3):
                folded = mix(folded ^ np.uint64(load_i64(strip, word)))
        else:
            fault = worse_fault(fault, _REAL_KV_SLOT, slot)
        acc = mix(acc ^ folded)
    return acc, fault


@kernel
def hash_range(slots, hashes, start, stop, sources, num_sources):  # type: ignore[no-untyped-def]
    """Fingerprint slots [start, stop); return the worst fault."""
    fault = 0
    for i in range(start, stop):
        acc, fault = real_kv_hash(sources, num_sources, load_i64(slots, i), fault)
        store_i64(hashes, i, as_int64(acc))
    return fault
