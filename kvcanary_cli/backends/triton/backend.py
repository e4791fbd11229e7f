"""``TritonBackend``: the interface of ``backends.interface`` over the Triton kernels."""

from __future__ import annotations

import torch

from kvcanary_cli.backends.triton.diff_rows import launch_diff_rows_kernels
from kvcanary_cli.backends.triton.launch import INTERPRETED
from kvcanary_cli.backends.triton.plan_entries import launch_plan_kernels
from kvcanary_cli.backends.triton.real_kv import launch_real_kv_kernel
from kvcanary_cli.backends.triton.scatter import launch_scatter_kernel
from kvcanary_cli.backends.triton.verify import launch_verify_kernel
from kvcanary_cli.backends.triton.write import launch_write_kernels


class TritonBackend:
    """Plan, verify and write as Triton kernels.

    With a ``fault`` cell no call waits for the device and all of them can be captured in a graph.

    Args:
        device: Where the tensors live; default ``cuda`` where torch sees a GPU, else ``cpu``,
            which needs Triton's interpreter (some milliseconds a launch: for tests).

    Raises:
        RuntimeError: The device cannot run the kernels.
    """

    name = "triton"

    plan = staticmethod(launch_plan_kernels)
    verify = staticmethod(launch_verify_kernel)
    write = staticmethod(launch_write_kernels)
    real_kv_hash = staticmethod(launch_real_kv_kernel)
    scatter_req_token_ids = staticmethod(launch_scatter_kernel)
    diff_rows = staticmethod(launch_diff_rows_kernels)

    def __init__(self, device: str | None = None) -> None:
        has_gpu = torch.cuda.is_available()
        if device is None:
            device = "cuda" if has_gpu else "cpu"
        if device.startswith("cuda") and not has_gpu:
            raise RuntimeError(
                f"kv-canary: the triton backend was asked for device {device!r}, but torch sees no "
                "GPU; use the cpu backend, or check the driver and torch's CUDA build"
            )
        if device == "cpu" and not INTERPRETED:
            raise RuntimeError(
                "kv-canary: the triton backend needs a GPU and torch sees none; use the cpu "
                "backend, or set TRITON_INTERPRET=1 before the start to run the kernels in "
                "Triton's interpreter"
            )
        self.device = device
