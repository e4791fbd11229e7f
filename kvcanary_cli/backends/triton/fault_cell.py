"""Faulty data inside a kernel: packed like ``abi.faults``, kept as the largest of the launch.

Kernels carry a vector of packed faults (0 = none) and record it once per block, so that clean data
costs one reduction and no atomic.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kvcanary_cli.abi.faults import FAULT_VALUE_BIAS, Fault

_VALUE_BIAS = tl.constexpr(FAULT_VALUE_BIAS)

SWA_SLOT = tl.constexpr(int(Fault.SWA_SLOT))
PREFIX = tl.constexpr(int(Fault.PREFIX))
REQUEST_ROW = tl.constexpr(int(Fault.REQUEST_ROW))
VERIFY_SLOT = tl.constexpr(int(Fault.VERIFY_SLOT))
VERIFY_PREV = tl.constexpr(int(Fault.VERIFY_PREV))
WRITE_SLOT = tl.constexpr(int(Fault.WRITE_SLOT))
WRITE_SEED = tl.constexpr(int(Fault.WRITE_SEED))
WRITE_OFFSETS = tl.constexpr(int(Fault.WRITE_OFFSETS))
REAL_KV_SLOT = tl.constexpr(int(Fault.REAL_KV_SLOT))


@triton.jit
def note_fault(noted, bad, value, CODE: tl.constexpr):
    """Merge a fault into ``noted`` where ``bad``: the larger code wins, then the larger value.

    Args:
        noted: [n] int64 of packed faults, 0 = none.
        bad: [n] bool.
        value: [n] int64, the offending value.
        CODE: The ``Fault``.
    """
    value = tl.minimum(tl.maximum(value, -_VALUE_BIAS), _VALUE_BIAS - 1)
    packed = value + (CODE * (_VALUE_BIAS * 2) + _VALUE_BIAS)
    return tl.maximum(noted, tl.where(bad, packed, 0))


@triton.jit
def record_faults(fault_ptr, noted):
    """Leave the largest of ``noted`` in the launch's fault cell, if there is one."""
    worst = tl.max(noted, axis=0)
    if worst > 0:
        tl.atomic_max(fault_ptr, worst, sem="relaxed")
