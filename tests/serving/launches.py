"""Launches that several tests resolve."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvcanary_cli.serving.resolve import resolve
from kvcanary_cli.serving.values import Given

if TYPE_CHECKING:
    from kvcanary_cli.serving.values import Kind, Resolution

FACT_NAMES = frozenset(
    {"gpu_memory_mib", "gpu_name", "platform", "kv_tokens", "context_len", "capture_bs"}
    | {"effective_max_running_requests", "mamba_slots", "cell_bytes", "pool_class", "gpu_count"}
    | {"avail_before_load_gib", "avail_after_load_gib", "weights_gib", "weights_bytes"}
    | {"model_config", "draft_model_config", "canary_write_req_capacity", "k_gib", "v_gib"}
)

GQA: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_size": 4096,
    "max_position_embeddings": 32768,
    "torch_dtype": "bfloat16",
}
MLA: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "hidden_size": 7168,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "max_position_embeddings": 163840,
    "torch_dtype": "bfloat16",
}
HYBRID: dict[str, Any] = {
    "architectures": ["Qwen3NextForCausalLM"],
    "num_hidden_layers": 48,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "hidden_size": 2048,
    "full_attention_interval": 4,
    "max_position_embeddings": 262144,
}
WINDOW: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"],
    "num_hidden_layers": 4,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "hidden_size": 2880,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "max_position_embeddings": 131072,
}


def given(name: str, value: Any, kind: Kind | None = None) -> Given:
    """A statement; facts are known by name."""
    chosen: Kind = kind or ("fact" if name in FACT_NAMES else "argument")
    return Given(name, value, f"{name} of the test", None, chosen)


def launch(version: str | None = "0.5.23", **values: Any) -> Resolution:
    """Resolve options and facts by name."""
    return resolve([given(name, value) for name, value in values.items()], version=version)
