"""Read-back that never waits inside a step: staged at step T, looked at in step T + 1 (5.5).

So every reaction of the host is one step late, and needs a further step to happen at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch


class FutureTensors:
    """Copies of device tensors on their way to the host."""

    __slots__ = ("_event", "_values")

    def __init__(self, values: dict[str, Any], event: Any) -> None:
        self._values: dict[str, Any] | None = values
        self._event = event

    @classmethod
    def device_to_host(
        cls, entries: Mapping[str, Any], *, stream: torch.cuda.Stream | None = None
    ) -> FutureTensors:
        """Clone each tensor now and start its copy to the host.

        Args:
            entries: Tensors by name; other values are passed through.
            stream: Side stream for the copies of CUDA tensors; None = the current one.

        Raises:
            ValueError: KVC-R15 without any tensor.
            AssertionError: KVC-R13 while a CUDA graph is being captured.
        """
        import torch

        tensors = {key: v for key, v in entries.items() if isinstance(v, torch.Tensor)}
        if not tensors:
            raise ValueError(
                "FutureTensors.device_to_host requires at least one tensor entry; got dict with "
                f"keys={list(entries)} containing no Tensor"
            )
        # A stream of a runtime that never started cannot be capturing.
        started = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        if started and torch.cuda.is_current_stream_capturing():
            raise AssertionError(
                "FutureTensors.device_to_host must not be called during cuda-graph capture: the "
                "d2h side-stream copy + pinned-host alloc cannot be captured. Upper-layer callers "
                "are responsible for placing the d2h staging OUTSIDE the cuda graph (not inside "
                "it)."
            )
        values = dict(entries)
        clones = {key: tensor.detach().clone() for key, tensor in tensors.items()}
        if not any(tensor.is_cuda for tensor in clones.values()):
            values.update(clones)
            return cls(values, None)
        side = stream or torch.cuda.current_stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for key, clone in clones.items():
                host = torch.empty(clone.shape, dtype=clone.dtype, pin_memory=True)
                values[key] = host.copy_(clone, non_blocking=True)
                clone.record_stream(side)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(side)
        return cls(values, event)

    def wait(self) -> dict[str, Any]:
        """Host values; waits for the copies.

        Raises:
            RuntimeError: KVC-R14 at the second call.
        """
        if self._values is None:
            raise RuntimeError("FutureTensors.wait() was called more than once")
        if self._event is not None:
            self._event.synchronize()
        values, self._values = self._values, None
        return values


class DelayedHostCopy:
    """A pipeline with one place: ``take`` what the previous step staged, then ``stage``."""

    __slots__ = ("_pending", "_stream")

    def __init__(self, stream: torch.cuda.Stream | None = None) -> None:
        self._pending: FutureTensors | None = None
        self._stream = stream

    def take(self) -> dict[str, Any] | None:
        """What was staged before, or None."""
        pending, self._pending = self._pending, None
        return None if pending is None else pending.wait()

    def stage(self, entries: Mapping[str, Any]) -> None:
        self._pending = FutureTensors.device_to_host(entries, stream=self._stream)
