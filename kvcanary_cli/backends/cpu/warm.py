"""Compile every kernel ahead of its first use."""

from __future__ import annotations

from kvcanary_cli.backends.cpu.cache import is_complete, mark_complete


def is_cached() -> bool:
    """Whether ``compile_all`` will load kernels instead of compiling them; imports no Numba."""
    return is_complete()


def compile_all() -> None:
    """Compile every kernel, or load it if an earlier run left it on disk.

    The kernel of whole events (``events``) is left to the first trace that has many of them.
    """
    from kvcanary_cli.backends.cpu import backend, known  # noqa: F401  (define the kernels)
    from kvcanary_cli.backends.cpu.jit import KERNELS

    for kernel in KERNELS:
        count = kernel.py_func.__code__.co_argcount
        kernel.compile(f"({', '.join(['int64'] * count)})")
    mark_complete()
