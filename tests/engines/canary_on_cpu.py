"""Lets SGLang's own canary run on a CPU, where it asks for streams and pinned memory."""

from __future__ import annotations

from typing import Any


class _Nothing:
    """A stream or event where all work is done in order anyway."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        pass

    def wait_stream(self, *_args: Any) -> None:
        pass

    wait_event = wait = record = synchronize = wait_stream

    def query(self) -> bool:
        return True


def allow() -> None:
    """Replace what this process's torch does not have."""
    import torch

    torch.cpu.Stream = _Nothing  # type: ignore[assignment,misc]
    torch.cpu.Event = _Nothing  # type: ignore[attr-defined]

    def unpinned(make: Any) -> Any:
        def run(*args: Any, pin_memory: bool = False, **kwargs: Any) -> Any:
            return make(*args, **kwargs)

        return run

    for name in ("empty", "zeros", "ones", "full", "tensor"):
        setattr(torch, name, unpinned(getattr(torch, name)))
    torch.Tensor.pin_memory = lambda self, *_a, **_k: self  # type: ignore[assignment,method-assign]
