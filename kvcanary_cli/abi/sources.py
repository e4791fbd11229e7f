"""RealKvSource: where the bytes of a slot's real KV live (1.9)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcanary_cli.abi.constants import REAL_KV_ALIGNMENT_BYTES

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class RealKvSource:
    """A live view of KV bytes; slot ``s`` owns, with the tensor seen as bytes,
    ``tensor[s // page_size, (s % page_size) * num_bytes_per_token:][:n]``.

    ``n`` is 16 in PARTIAL mode and ``read_bytes`` in ALL mode. There is no "skip" value: a source
    that reads nothing is left out.

    Attributes:
        tensor: [rows, width] of any dtype, at least 2-D; rows are stepped by the dim-0 stride and
            may be followed by foreign bytes.
        page_size: Slots per row, >= 1.
        num_bytes_per_token: Bytes of one slot's strip, a positive multiple of 16.
        read_bytes: Bytes folded in ALL mode, a multiple of 16 in (0, num_bytes_per_token].

    Raises:
        ValueError: KVC-S01 to KVC-S06, checked in this order at construction.
    """

    tensor: torch.Tensor
    page_size: int
    num_bytes_per_token: int
    read_bytes: int

    def __post_init__(self) -> None:
        if self.page_size < 1:
            raise ValueError(
                f"kv-canary: RealKvSource.page_size must be >= 1, got {self.page_size}"
            )
        if self.num_bytes_per_token <= 0 or self.num_bytes_per_token % REAL_KV_ALIGNMENT_BYTES:
            raise ValueError(
                "kv-canary: RealKvSource.num_bytes_per_token must be a positive multiple of 16, "
                f"got {self.num_bytes_per_token}"
            )
        if (
            not 0 < self.read_bytes <= self.num_bytes_per_token
            or self.read_bytes % REAL_KV_ALIGNMENT_BYTES
        ):
            raise ValueError(
                "kv-canary: RealKvSource.read_bytes must be a positive multiple of 16 in "
                f"(0, num_bytes_per_token={self.num_bytes_per_token}], got {self.read_bytes}"
            )
        tensor = self.tensor
        shape = tuple(tensor.shape)
        if tensor.dim() < 2:
            raise ValueError(
                f"kv-canary: RealKvSource.tensor must be at least 2-D, got shape {shape}"
            )
        item_bytes = tensor.element_size()
        stride_bytes = tensor.stride(0) * item_bytes
        if stride_bytes % REAL_KV_ALIGNMENT_BYTES:
            raise ValueError(
                "kv-canary: RealKvSource.tensor row stride must be a multiple of 16 bytes, "
                f"got {stride_bytes} bytes (shape={shape}, strides={tuple(tensor.stride())}, "
                f"dtype={tensor.dtype})"
            )
        width_bytes = tensor.shape[1] * item_bytes
        needed_bytes = self.page_size * self.num_bytes_per_token
        if width_bytes < needed_bytes:
            raise ValueError(
                f"kv-canary: RealKvSource.tensor row is {width_bytes} bytes wide but "
                f"page_size={self.page_size} x num_bytes_per_token={self.num_bytes_per_token} "
                f"needs {needed_bytes} (shape={shape}, dtype={tensor.dtype})"
            )
