"""Digests of what ranks compare: names and numbers as one signed 64-bit number."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def digest(*parts: object) -> int:
    """Of texts and numbers, in their order."""
    text = "\x1f".join(map(str, parts)).encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little", signed=True)


def digest_of_ints(values: NDArray[np.int64]) -> int:
    """Of an array."""
    raw = np.ascontiguousarray(values, dtype=np.int64).tobytes()
    return int.from_bytes(blake2b(raw, digest_size=8).digest(), "little", signed=True)
