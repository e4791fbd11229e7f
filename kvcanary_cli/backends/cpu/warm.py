"""Compile kernels ahead of their first use."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Any

from kvcanary_cli.backends.cpu.cache import ALL, EVENTS, cache_dir, is_complete, mark_complete

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
        compile_apart("kvcanary_cli.backends.cpu.events", "take_events")
    from kvcanary_cli.backends.cpu.events import take_events

    _compile(take_events)
    mark_complete(EVENTS)
    return take_events


def compile_apart(module: str, name: str) -> None:
    """Have another process compile a kernel into the cache, for this one to load.

    The compiler gives back nothing of the memory that it takes. Where that does not work, for want
    of a folder or of an interpreter, or because it dies, this process compiles by itself.
    """
    if cache_dir() is None or not sys.executable:
        return
    paths = os.pathsep.join(path for path in sys.path if path)
    with suppress(OSError):
        subprocess.run(
            # Without -P it would import what lies in the current folder, before anything else.
            [sys.executable, "-P", "-m", __name__, module, name],
            env={**os.environ, "PYTHONPATH": paths},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )


def _compile(kernel: Any) -> None:
    """Compile for int arguments, which are all that a kernel takes.

    Told in types: what is compiled for a signature in words is kept under those words, where a
    later process that calls the kernel does not look.
    """
    from numba import int64

    kernel.compile((int64,) * kernel.py_func.__code__.co_argcount)


if __name__ == "__main__":
    _compile(getattr(import_module(sys.argv[1]), sys.argv[2]))
