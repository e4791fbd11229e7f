"""Backends by name. Each is imported only when it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvcanary_cli.backends.interface import Backend

BACKEND_NAMES = ("reference", "cpu", "triton")


def get_backend(name: str, device: str | None = None) -> Backend:
    """Make the backend called ``name``.

    Args:
        name: ``auto`` (``triton`` where torch sees a GPU, else ``cpu``), ``reference``, ``cpu`` or
            ``triton``.
        device: Where tensors live; default ``cuda`` for triton on a GPU, else ``cpu``.

    Raises:
        ValueError: Unknown name.
        RuntimeError: ``triton`` without a GPU and without ``TRITON_INTERPRET=1``.
    """
    if name == "auto":
        import torch

        name = "triton" if torch.cuda.is_available() else "cpu"
    if name == "reference":
        from kvcanary_cli.backends.reference.backend import ReferenceBackend

        return ReferenceBackend()
    if name == "cpu":
        from kvcanary_cli.backends.cpu.backend import CpuBackend

        return CpuBackend()
    if name == "triton":
        from kvcanary_cli.backends.triton.backend import TritonBackend

        return TritonBackend(device)
    raise ValueError(f"unknown backend {name!r}, expected one of auto, {', '.join(BACKEND_NAMES)}")
