"""Work on ranges with a few threads; kernels release the interpreter lock."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from itertools import count, pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# Handing a range to a thread costs some 30 us, about as long as 4,000 entries take.
MIN_PARALLEL_ENTRIES = 1 << 15
# A write must first be found to be free of dependences, which costs a sixth of writing it.
MIN_PARALLEL_TOKENS = 1 << 17
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
    wanted = min(num_threads() * _RANGES_PER_THREAD, _MAX_RANGES)
    parts = max(1, min(wanted, total // _MIN_RANGE_ENTRIES))
    bounds = [total * n // parts for n in range(parts + 1)]
    return list(pairwise(bounds))


def run_all(function: Callable[..., Any], calls: Sequence[tuple[Any, ...]]) -> list[Any]:
    """``function(*call)`` for each call, on threads; results in order.

    The caller's thread works too, so on a busy machine nothing waits for a helper that has not been
    given a core yet.
    """
    global _pool
    results: list[Any] = [None] * len(calls)
    numbers = count()

    def work() -> None:
        while (n := next(numbers)) < len(calls):
            results[n] = function(*calls[n])

    num_helpers = min(num_threads(), len(calls)) - 1
    if num_helpers > 0 and _pool is None:
        _pool = ThreadPoolExecutor(num_threads() - 1, thread_name_prefix="kvcanary-kernel")
    helpers = [_pool.submit(work) for _ in range(num_helpers)] if _pool else []
    work()
    for helper in helpers:
        if not helper.cancel():
            helper.result()
    return results


def _forget_pool() -> None:
    # A forked child has the executor but none of its threads.
    global _pool
    _pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)
