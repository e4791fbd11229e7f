"""Lets SGLang verify drafts on a CPU, where its attention knows prefills and decodes only.

What attention computes stays right; which batches are built, verified and committed is the
engine's own doing throughout.
"""

from __future__ import annotations

import copy
from typing import Any


def allow() -> None:
    """Patch this process's engine."""
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
    from sglang.srt.speculative.draft_utils import DraftBackendFactory

    plain = TorchNativeAttnBackend.forward_extend

    def forward_extend(
        self: Any, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any, *args: Any, **kwargs: Any
    ) -> Any:
        return plain(self, q, k, v, layer, as_prefill(forward_batch), *args, **kwargs)

    TorchNativeAttnBackend.forward_extend = forward_extend

    class Steps:
        """A backend for each step of a draft."""

        def __init__(self, runner: Any, count: int) -> None:
            self.attn_backends = [TorchNativeAttnBackend(runner) for _ in range(count)]

        def init_forward_metadata(self, forward_batch: Any) -> None:
            for backend in self.attn_backends:
                backend.init_forward_metadata(forward_batch)

    DraftBackendFactory.create_decode_backend = lambda self: Steps(
        self.draft_model_runner, self.speculative_num_steps
    )
    DraftBackendFactory.create_draft_extend_backend = lambda self: TorchNativeAttnBackend(
        self.draft_model_runner
    )


def as_prefill(batch: Any) -> Any:
    """``batch`` as attention over a prefill sees it."""
    mode = batch.forward_mode
    if not mode.is_target_verify() and batch.extend_prefix_lens is not None:
        return batch
    seen = copy.copy(batch)
    rows = len(batch.seq_lens)
    width = len(batch.input_ids) // max(rows, 1)
    added = batch.seq_lens.new_full((rows,), width)
    seen.extend_seq_lens = added
    if mode.is_target_verify():
        seen.extend_prefix_lens, seen.seq_lens = batch.seq_lens, batch.seq_lens + added
    else:
        seen.extend_prefix_lens = batch.seq_lens - added
    return seen
