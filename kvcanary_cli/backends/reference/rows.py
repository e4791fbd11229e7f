"""Canary rows and the violation ring as plain values (specification 1.2 and 1.10)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kvcanary_cli.abi.constants import RING_FIELDS, SLOT_FIELDS
from kvcanary_cli.backends.reference.hashes import to_signed

if TYPE_CHECKING:
    from collections.abc import Sequence

Row = tuple[int, int, int, int]
"""token, position, prev_hash, real_kv_hash, each as the int64 that is stored."""


class CanaryRows:
    """Rows of a canary buffer [num_slots, stride] uint8; bytes past the 32nd are never touched."""

    def __init__(self, canary_buf: torch.Tensor) -> None:
        self._words = canary_buf.view(torch.int64)[:, :SLOT_FIELDS]

    def __len__(self) -> int:
        return int(self._words.shape[0])

    def read(self, slot: int) -> Row:
        token, position, prev_hash, real_kv_hash = self._words[slot].tolist()
        return token, position, prev_hash, real_kv_hash

    def store(self, slot: int, row: Sequence[int]) -> None:
        self._words[slot] = torch.tensor([to_signed(v) for v in row], dtype=torch.int64)


class ViolationLog:
    """The fill-once ring: every violation moves the index, rows past the capacity are dropped."""

    def __init__(self, ring: torch.Tensor, write_index: torch.Tensor) -> None:
        self._ring = ring
        self._write_index = write_index

    def append(self, fields: Sequence[int]) -> None:
        assert len(fields) == RING_FIELDS
        seq = int(self._write_index[0])
        self._write_index += 1
        # The index is an int32 and may wrap to negative numbers, which name no row either.
        if 0 <= seq < self._ring.shape[0]:
            self._ring[seq] = torch.tensor([to_signed(v) for v in fields], dtype=torch.int64)
