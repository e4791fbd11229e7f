"""What can be seen of SGLang's GPU side without a GPU, printed in two lines.

First the recorder's hooks that have no place in the engine, all of whose modules are imported. Then
the event that results when the engine's own decode graph runner pads a batch: its buffers, their
registry and ``load_batch`` are the engine's, what only a GPU has is left out.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))


def main() -> None:
    import numpy as np
    import torch

    from kvcanary_cli.record.copies import host_array
    from kvcanary_cli.record.options import RecordOptions
    from kvcanary_cli.record.sglang.graphs import Padding
    from kvcanary_cli.record.sglang.recorder import SglangRecorder
    from kvcanary_cli.record.tokens import TokenCoder

    recorder = SglangRecorder(RecordOptions(path="never-written.kvtrace"))
    patcher = recorder.patcher
    patcher.install()
    for module in sorted({hook.module for hook in patcher.hooks}):
        importlib.import_module(module)
    missing = {key: patcher.missing.get(key, "") for key in patcher.unplaced()}
    sys.stdout.write(f"unplaced {json.dumps(missing)}\n")
    from sglang.srt.runtime_context import get_parallel

    with get_parallel().override(moe_ep_size=1):
        runner = bare_runner()
    batch = SimpleNamespace(
        batch_size=3,
        input_ids=torch.tensor([7, 8, 9]),
        positions=torch.tensor([4, 5, 6]),
        out_cache_loc=torch.tensor([11, 12, 13]),
        req_pool_indices=torch.tensor([1, 2, 3]),
        seq_lens=torch.tensor([5, 6, 7]),
        forward_mode=SimpleNamespace(is_idle=lambda: False),
        spec_info=None,
        input_embeds=None,
        needs_forward_metadata_init=lambda: True,
    )
    event: dict[str, Any] = {"reqs": ["a", "b", "c"], "input_ids": batch.input_ids.numpy()}
    for name in ("req_pool_indices", "seq_lens", "positions", "out_cache_loc"):
        event[name] = getattr(batch, name).numpy()
    session: Any = SimpleNamespace(active=True, tokens=TokenCoder("raw"))
    session.defer = lambda make, *tensors: make(*map(host_array, tensors))
    padding = Padding(session)
    padding.opens(SimpleNamespace(event=event))
    follower: Any = SimpleNamespace(padding=padding, session=session)
    recorder.follower = follower
    # What an earlier, larger batch has left behind must not show.
    runner.buffers.out_cache_loc.fill_(99)
    runner.load_batch(batch)
    plain = {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in event.items()}
    sys.stdout.write(f"event {json.dumps(plain)}\n")


def bare_runner() -> Any:
    """The engine's runner with buffers for batches of 4 and 8 rows."""
    import torch
    from sglang.srt.model_executor.cuda_graph_buffer_registry import build_decode_registry
    from sglang.srt.model_executor.runner.decode_cuda_graph_runner import (
        DecodeCudaGraphRunner,
        DecodeInputBuffers,
    )

    class Bare(DecodeCudaGraphRunner):
        def __init__(self) -> None:
            pass

        def capture_prepare(self, *_args: Any, **_kwargs: Any) -> None:
            raise NotImplementedError

    for name in (
        "_validate_capture_hidden_mode",
        "_resolve_attention_variant",
        "_glue_key",
        "_take_early_verify_metadata",
        "_set_dp_real_num_tokens",
        "_init_replay_attn_metadata",
        "_resolve_lora_variant",
        "_make_graph_key",
        "_capture_graph_size",
    ):
        setattr(Bare, name, lambda self, *_args, **_kwargs: None)
    runner: Any = Bare()
    device, sizes = torch.device("cpu"), {"max_bs": 8, "max_num_token": 8}
    runner.buffers = DecodeInputBuffers.create(
        device=device,
        **sizes,
        hidden_size=4,
        next_token_logits_buffer=torch.zeros(8, 4),
        dtype=torch.float32,
        num_dp_ranks=1,
        pp_size=1,
        is_encoder_decoder=False,
        require_mlp_tp_gather=False,
        seq_len_fill_value=1,
        encoder_len_fill_value=0,
        num_tokens_per_req=1,
        cache_loc_dtype=torch.int64,
        enable_mamba_track=False,
    )
    runner.buffer_registry = build_decode_registry(
        device=device,
        **sizes,
        seq_len_fill_value=1,
        cache_loc_dtype=torch.int64,
        source=runner.buffers,
    )
    nothing = {
        "dllm_uses_input_embeds": False,
        "dllm_input_preparation": None,
        "ragged_verify_mode": False,
        "require_mlp_tp_gather": False,
        "enable_two_batch_overlap": False,
        "_skips_prefilled_inputs": False,
        "_draft_metadata_glue": False,
        "_target_metadata_glue": False,
        "_early_verify_metadata": None,
        "enable_pdmux": False,
    }
    for name, value in nothing.items():
        setattr(runner, name, value)
    runner.captured_req_width, runner.capture_bs = 1, [4, 8]
    runner.deepep_adapter = SimpleNamespace(replay=lambda: None)
    runner.model_runner = SimpleNamespace(
        hisparse_coordinator=None,
        is_draft_worker=False,
        spec_algorithm=SimpleNamespace(is_dflash_family=lambda: False),
    )
    return runner


if __name__ == "__main__":
    main()
