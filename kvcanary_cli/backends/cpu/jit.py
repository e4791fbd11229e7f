"""The decorator of every kernel: compiled once, kept on disk, interpreter lock released."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numba

from kvcanary_cli.backends.cpu.cache import cache_dir

if TYPE_CHECKING:
    from collections.abc import Callable

KERNELS: list[Any] = []
"""Every kernel that Python calls."""


def constants(*members: int) -> tuple[int, ...]:
    """Members of enumerations as the plain integers that compiled code takes for constants."""
    return tuple(int(member) for member in members)


def helper(function: Callable[..., Any]) -> Any:
    """Compile a function that only kernels call; its code goes into theirs."""
    return numba.njit(nogil=True)(function)


def inlined(function: Callable[..., Any]) -> Any:
    """A helper that is called from one place, or so often that the call itself would count."""
    return numba.njit(nogil=True, forceinline=True)(function)


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function that Python calls with int arguments only, and keep it on disk.

    Where no folder is writable it is compiled in each process.
    """
    folder = cache_dir()
    before = numba.config.CACHE_DIR
    try:
        # Numba decides on a folder when it decorates; its setting is the process's, not ours.
        numba.config.CACHE_DIR = "" if folder is None else str(folder)
        compiled = numba.njit(nogil=True, cache=folder is not None)(function)
    finally:
        numba.config.CACHE_DIR = before
    KERNELS.append(compiled)
    return compiled
