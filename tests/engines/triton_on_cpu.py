"""Has vLLM's CPU build run its Triton kernels, in Triton's interpreter."""

from __future__ import annotations

import os
from types import SimpleNamespace


def pretend() -> None:
    """Before vLLM is imported: Triton can compile for this machine, and a GPU has been asked."""
    os.environ["TRITON_INTERPRET"] = "1"
    import torch
    from triton.backends import backends

    backends["cpu"] = SimpleNamespace(driver=SimpleNamespace(is_active=lambda: True))
    torch.cuda.get_device_capability = lambda *_: (9, 0)
