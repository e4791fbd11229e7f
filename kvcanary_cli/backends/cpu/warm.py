"""Compile kernels ahead of their first use."""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

from kvcanary_cli.backends.cpu.cache import ALL, EVENTS, is_complete, mark_complete

#: Says what a user waits for.
log = logging.getLogger("kvcanary.backends")


def is_cached() -> bool:
    """Whether ``compile_all`` will load kernels instead of compiling them; imports no Numba."""
    return is_complete(ALL)


def compile_all() -> None:
    """Compile every kernel, or load it if an earlier run left it on disk.

    The kernel of whole events is left to the first trace that needs it: ``event_kernel``.
    """
    from kvcanary_cli.backends.cpu import backend, known  # noqa: F401  (define the kernels)
    from kvcanary_cli.backends.cpu.jit import KERNELS

    for kernel in KERNELS:
        _compile(kernel)
    mark_complete(ALL)


@cache
def event_kernel() -> Any:
    """``events.take_events``, compiled or loaded; says so before it compiles, which takes long."""
    if not is_complete(EVENTS):
        log.info("compiling kernels for large traces (first such run only) ...")
    from kvcanary_cli.backends.cpu.events import take_events

    _compile(take_events)
    mark_complete(EVENTS)
    return take_events


def _compile(kernel: Any) -> None:
    """Compile for int arguments, which are all that a kernel takes.

    Told in types: what is compiled for a signature in words is kept under those words, where a
    later process that calls the kernel does not look.
    """
    from numba import int64

    kernel.compile((int64,) * kernel.py_func.__code__.co_argcount)
