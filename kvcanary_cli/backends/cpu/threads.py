"""Work on ranges with a few threads; kernels release the interpreter lock."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# Handing a range to a thread costs some 30 us, about as long as 4,000 entries take.
MIN_PARALLEL_ENTRIES = 1 << 15
_MIN_RANGE_ENTRIES = 1 << 14
# More ranges than threads, so that a thread that is held up doesn't hold up the launch.
_RANGES_PER_THREAD = 4
# A write tells ranges apart by a byte.
_MAX_RANGES = 200

_pool: ThreadPoolExecutor | None = None


def num_threads() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def split(total: int) -> list[tuple[int, int]]:
    """Cut [0, total) into consecutive ranges worth a thread each."""
    count = max(
        1, min(num_threads() * _RANGES_PER_THREAD, total // _MIN_RANGE_ENTRIES, _MAX_RANGES)
    )
    bounds = [total * n // count for n in range(count + 1)]
    return list(pairwise(bounds))


def run_all(function: Callable[..., Any], calls: Sequence[tuple[Any, ...]]) -> list[Any]:
    """``function(*call)`` for each call, on threads; results in order."""
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(num_threads(), thread_name_prefix="kvcanary-kernel")
    return list(_pool.map(lambda call: function(*call), calls))


def _forget_pool() -> None:
    # A forked child has the executor but none of its threads.
    global _pool
    _pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)
