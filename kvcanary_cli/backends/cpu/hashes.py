"""Hashes and packed faults for kernels; equal to ``backends.reference.hashes`` to the bit.

Numba turns a mix of int64 and uint64 into float64, so every operand here is uint64 by cast.
"""

from __future__ import annotations

import numpy as np

from kvcanary_cli.abi import constants, faults
from kvcanary_cli.backends.cpu.jit import helper
from kvcanary_cli.backends.cpu.memory import load_i64

_M1 = np.uint64(constants.MIX_MULTIPLIER_1)
_M2 = np.uint64(constants.MIX_MULTIPLIER_2)
_S27, _S30, _S31 = np.uint64(27), np.uint64(30), np.uint64(31)
_HEAD = np.uint64(constants.CHAIN_HEAD_HASH)
_VALUE_BITS = faults.FAULT_VALUE_BITS
_VALUE_BIAS = faults.FAULT_VALUE_BIAS


@helper
def mix(x):  # type: ignore[no-untyped-def]
    """uint64 to uint64 (2.1)."""
    x = (x ^ (x >> _S30)) * _M1
    x = (x ^ (x >> _S27)) * _M2
    return x ^ (x >> _S31)


@helper
def as_int64(x):  # type: ignore[no-untyped-def]
    """The int64 with the bits of a uint64."""
    return np.int64(x)


@helper
def chain_step(h, token, position):  # type: ignore[no-untyped-def]
    """Extend the uint64 ``h`` by int64 token and position (2.2)."""
    return mix(mix(mix(h) ^ np.uint64(token)) ^ np.uint64(position))


@helper
def slot_hash(row, is_head):  # type: ignore[no-untyped-def]
    """uint64 chain value after the row at address ``row``, HEAD if ``is_head`` (2.2)."""
    if is_head:
        return _HEAD
    return chain_step(np.uint64(load_i64(row, 2)), load_i64(row, 0), load_i64(row, 1))


@helper
def worse_fault(fault, code, value):  # type: ignore[no-untyped-def]
    """The larger of a packed fault and (code, value) packed (``abi.faults.pack_fault``)."""
    clamped = min(max(value, -_VALUE_BIAS), _VALUE_BIAS - 1)
    return max(fault, (code << _VALUE_BITS) | (clamped + _VALUE_BIAS))
