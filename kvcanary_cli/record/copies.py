"""Copies from a device to the host that nobody waits for.

A copy is begun on a stream of its own, into pinned memory, and is there once the fence behind it
has been passed. What computes on the device goes on meanwhile: the tensor is cloned on the engine's
stream first, for the engine may overwrite it in its next step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]


class Fence(Protocol):
    """A point behind some copies."""

    def passed(self) -> bool:
        """Whether all of them are there; does not wait."""


class HostCopy(Protocol):
    """A copy under way, or there."""

    nbytes: int

    def array(self) -> Ints:
        """Its integers as int64, once the fence has been passed."""


class Mover(Protocol):
    """Begins copies; used by the engine's thread only."""

    def begin(self, tensor: Any, *, fresh: bool) -> HostCopy:
        """Copy ``tensor`` as the engine's stream has it by now.

        Args:
            tensor: Integers.
            fresh: Whether nobody else writes to it, so that it need not be cloned.
        """

    def fence(self) -> Fence:
        """A fence behind all copies begun so far."""


class CudaMover:
    """Copies over a side stream of a CUDA device."""

    def __init__(self, device: torch.device) -> None:
        import torch

        self._device = device
        self._cuda: Any = torch.cuda
        self._stream = self._cuda.Stream(device)

    def begin(self, tensor: Any, *, fresh: bool) -> HostCopy:
        """See ``Mover``."""
        import torch

        if not torch.is_tensor(tensor) or tensor.device.type == "cpu":
            return HostNow.of(tensor)
        source = tensor if fresh else tensor.clone()
        self._stream.wait_stream(self._cuda.current_stream(self._device))
        host = torch.empty(source.shape, dtype=source.dtype, pin_memory=True)
        with self._cuda.stream(self._stream):
            host.copy_(source, non_blocking=True)
        # The allocator must not hand the memory out again before the copy has read it.
        source.record_stream(self._stream)
        return _Pinned(host)

    def fence(self) -> Fence:
        """See ``Mover``."""
        event = self._cuda.Event()
        event.record(self._stream)
        return _CudaFence(event)


class _CudaFence:
    def __init__(self, event: Any) -> None:
        self._event = event

    def passed(self) -> bool:
        return bool(self._event.query())


class _Pinned:
    def __init__(self, host: torch.Tensor) -> None:
        self._host = host
        self.nbytes = host.numel() * host.element_size()

    def array(self) -> Ints:
        return host_array(self._host)


class Turns(Protocol):
    """Has launches that change the same memory run one behind the other, on whatever stream."""

    def begin(self) -> None:
        """What is launched next runs behind what was launched before ``end``."""

    def end(self) -> None:
        """All of it has been launched."""


class CudaTurns:
    """An engine queues its batches on one stream and prepares the next one on another."""

    def __init__(self, device: torch.device) -> None:
        import torch

        self._device = device
        self._cuda: Any = torch.cuda
        self._last: Any = None

    def begin(self) -> None:
        """See ``Turns``."""
        if self._last is not None:
            self._cuda.current_stream(self._device).wait_event(self._last)

    def end(self) -> None:
        """See ``Turns``."""
        self._last = self._cuda.Event()
        self._last.record(self._cuda.current_stream(self._device))


class _HostTurns:
    """On the host everything runs where it is called."""

    def begin(self) -> None:
        """See ``Turns``."""

    def end(self) -> None:
        """See ``Turns``."""


class HostNow:
    """A copy that was made at once."""

    def __init__(self, values: Ints) -> None:
        self._values = values
        self.nbytes = values.nbytes

    @classmethod
    def of(cls, values: Any) -> HostNow:
        """Copy the integers of a tensor, array or sequence."""
        return cls(host_array(values))

    def array(self) -> Ints:
        return self._values


def host_array(values: Any) -> Ints:
    """Integers of a tensor, array or sequence as an int64 copy of the same shape."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    return np.array(values, dtype=np.int64)


def to_device(values: Ints, device: torch.device) -> torch.Tensor:
    """[n] values of the host on ``device``, behind what is queued there; waits for nothing."""
    import torch

    host = torch.from_numpy(values)
    if device.type == "cpu":
        return host
    # From pageable memory the copy might wait for what the device is at.
    return host.pin_memory().to(device, non_blocking=True)


def mover_of(tensor: Any) -> Mover | None:
    """What copies tensors of the device of ``tensor`` without waiting; None on the host."""
    return CudaMover(tensor.device) if _is_cuda(tensor) else None


def turns_on(tensor: Any) -> Turns:
    """What orders launches that change ``tensor``."""
    return CudaTurns(tensor.device) if _is_cuda(tensor) else _HostTurns()


def _is_cuda(tensor: Any) -> bool:
    return getattr(getattr(tensor, "device", None), "type", "cpu") == "cuda"
