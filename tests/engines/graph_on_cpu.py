"""Lets SGLang pad decode batches on a CPU as it does for captured graphs.

Its CPU graph runner needs a compiler and instructions that not every machine has. Here it runs the
model as it is; which batch is padded to what, and what stands in the added rows, is its own doing.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

SIZES = (3, 8)


def allow() -> None:
    """Patch this process's engine, before the recorder does."""
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.model_executor import cpu_graph_runner

    @contextlib.contextmanager
    def plain_model(model: Any, *_args: Any, **_kwargs: Any) -> Iterator[Any]:
        yield model.forward

    cpu_graph_runner.patch_model = plain_model
    cpu_graph_runner.get_batch_sizes_to_capture = lambda _runner: list(SIZES)
    backend: Any = TorchNativeAttnBackend
    backend.init_cpu_graph_state = lambda self, *_a: None
    backend.get_cpu_graph_seq_len_fill_value = lambda self: 1
    backend.init_forward_metadata_capture_cpu_graph = lambda self, *_a: None
    build = Scheduler.__init__

    def built_with_graphs(self: Any, *args: Any, **kwargs: Any) -> None:
        build(self, *args, **kwargs)
        runner = self.tp_worker.model_runner
        runner.decode_cuda_graph_runner = cpu_graph_runner.CPUGraphRunner(runner)

    Scheduler.__init__ = built_with_graphs
