"""Memory for arrays that kernels reach into at random: whole lines of the cache, huge pages.

Nothing here imports Numba.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

#: Bytes of a line of the cache.
LINE = 64
# Bytes of a huge page, and from how many on an array gets some: it takes them whole.
_HUGE, _LEAST = 2 << 20, 1 << 19


def zeros(shape: int | tuple[int, ...], dtype: DTypeLike, *, sparse: bool = False) -> NDArray[Any]:
    """Zeros that begin with a line of the cache, in huge pages if they are many.

    A kernel that reaches into ordinary pages of a large array waits for the address of each, and
    the system for each page's first touch.

    Args:
        shape, dtype: As NumPy's.
        sparse: Most of them are never touched: ordinary pages, since a huge one costs its whole
            size wherever it is touched. NumPy's own large arrays ask for huge ones.
    """
    size = prod(shape) if isinstance(shape, tuple) else shape
    size *= np.dtype(dtype).itemsize
    step = _HUGE if size >= _LEAST else LINE
    whole = -(-size // step) * step
    memory: NDArray[np.uint8] = np.zeros(whole + step, dtype=np.uint8)
    first = -memory.ctypes.data % step
    if step == _HUGE:
        _ask_for_pages(memory.ctypes.data + first, whole, huge=not sparse)
    return memory[first : first + size].view(dtype).reshape(shape)


def _ask_for_pages(address: int, size: int, *, huge: bool) -> None:
    """Ask for huge pages or for ordinary ones; a system that refuses, or has no huge ones, gives
    others, which costs time or memory and nothing else.
    """
    advise = _madvise()
    if advise is not None:
        advise(address, size, mmap.MADV_HUGEPAGE if huge else mmap.MADV_NOHUGEPAGE)


@cache
def _madvise() -> Any:
    """The system's ``madvise``, None where there are no huge pages."""
    if sys.platform != "linux" or not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    try:
        advise = ctypes.CDLL(None).madvise
    except (OSError, AttributeError):
        return None
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return advise
