"""A device for processes without one: its copies arrive late, and who waits for it is caught.

``play()`` makes tensors in main memory count as a device's: the recorder gets a mover whose copies
hold nothing before their fence has been passed, and a value that recorder code takes from a tensor
on the engine's thread is an error.
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_NOT_THERE = -999
_POLLS = 3
_WAITING = ("cpu", "numpy", "item", "tolist", "__int__", "__bool__", "__float__", "nonzero")
_RECORDER = "kvcanary_cli.record."


class LaggingMover:
    """Copies that are there at the third look at their fence."""

    def __init__(self) -> None:
        self.begun = 0

    def begin(self, tensor: Any, *, fresh: bool) -> _Copy:
        with _allowed():
            values = tensor.detach().numpy() if hasattr(tensor, "detach") else tensor
            self.begun += 1
            return _Copy(np.array(values, dtype=np.int64))

    def fence(self) -> _Fence:
        return _Fence()


class _Copy:
    def __init__(self, values: NDArray[np.int64]) -> None:
        self._values, self.nbytes = values, values.nbytes

    def array(self) -> NDArray[np.int64]:
        # Memory of the host before the copy is there: anything.
        there = threading.current_thread() is not threading.main_thread()
        return self._values if there else np.full_like(self._values, _NOT_THERE)


class _Fence:
    def __init__(self) -> None:
        self._polls = 0

    def passed(self) -> bool:
        self._polls += 1
        return self._polls >= _POLLS


_permits = threading.local()


class _allowed:
    def __enter__(self) -> None:
        _permits.held = getattr(_permits, "held", 0) + 1

    def __exit__(self, *_: object) -> None:
        _permits.held -= 1


def play() -> LaggingMover:
    """Make this process's recorder take tensors for a device's; returns its mover."""
    import torch

    from kvcanary_cli.record import copies, diffs, drainer

    # An engine of no work is faster than any disk: nothing is to be dropped.
    drainer.MAX_STEPS = 1 << 20
    mover = LaggingMover()
    copies.mover_of = lambda tensor: mover
    prepare = diffs.RowDiff.__init__

    def prepared(*args: Any, **kwargs: Any) -> None:
        # Before the first step there is nothing to wait for.
        with _allowed():
            prepare(*args, **kwargs)

    diffs.RowDiff.__init__ = prepared
    for name in _WAITING:
        setattr(torch.Tensor, name, _caught(name, getattr(torch.Tensor, name)))
    return mover


def _caught(name: str, plain: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        on_engine = threading.current_thread() is threading.main_thread()
        if on_engine and not getattr(_permits, "held", 0):
            frame = sys._getframe(1)
            module = frame.f_globals.get("__name__", "")
            if module.startswith(_RECORDER):
                raise AssertionError(f"{module}:{frame.f_lineno} waits for the device: {name}")
        return plain(*args, **kwargs)

    return call
