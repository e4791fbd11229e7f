"""Hash arithmetic of the canary over numpy arrays, for the few places that are no kernel launch.

All arithmetic wraps in uint64; values at the borders are int64 bit patterns (specification 2).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvcanary_cli.abi.constants import CHAIN_HEAD_HASH, MIX_MULTIPLIER_1, MIX_MULTIPLIER_2

if TYPE_CHECKING:
    from numpy.typing import NDArray

_M1, _M2 = np.uint64(MIX_MULTIPLIER_1), np.uint64(MIX_MULTIPLIER_2)
_M1_INVERSE = np.uint64(pow(MIX_MULTIPLIER_1, -1, 1 << 64))
_M2_INVERSE = np.uint64(pow(MIX_MULTIPLIER_2, -1, 1 << 64))
_S27, _S30, _S31 = np.uint64(27), np.uint64(30), np.uint64(31)
HEAD = np.uint64(CHAIN_HEAD_HASH)


def mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Specification 2.1, elementwise."""
    x = (x ^ (x >> _S30)) * _M1
    x = (x ^ (x >> _S27)) * _M2
    out: NDArray[np.uint64] = x ^ (x >> _S31)
    return out


def unmix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The inverse of ``mix``, which is a bijection of 64-bit values."""
    x = x ^ (x >> _S31) ^ (x >> np.uint64(62))
    x = x * _M2_INVERSE
    x = x ^ (x >> _S27) ^ (x >> np.uint64(54))
    x = x * _M1_INVERSE
    out: NDArray[np.uint64] = x ^ (x >> _S30) ^ (x >> np.uint64(60))
    return out


def step(
    h: NDArray[np.uint64], token: NDArray[np.int64], position: NDArray[np.int64]
) -> NDArray[np.uint64]:
    """Chain value after a token (specification 2.2), elementwise."""
    return mix(mix(mix(h) ^ as_uint64(token)) ^ as_uint64(position))


def slot_hash(rows: NDArray[np.int64], slots: NDArray[np.int64]) -> NDArray[np.int64]:
    """Chain value that ends at each slot, given its row [n, 4]; negative slots are the head."""
    value = step(as_uint64(rows[:, 2]), rows[:, 0], rows[:, 1])
    return as_int64(np.where(slots < 0, HEAD, value))


def as_uint64(x: NDArray[Any]) -> NDArray[np.uint64]:
    return np.ascontiguousarray(x, dtype=np.int64).view(np.uint64)


def as_int64(x: NDArray[np.uint64]) -> NDArray[np.int64]:
    return np.ascontiguousarray(x).view(np.int64)
