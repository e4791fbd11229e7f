"""What the option table cannot say by itself: which options reach the capacities, and choices."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

GRAPH_BACKENDS = ("full", "breakable", "tc_piecewise", "disabled")
"""Back ends of CUDA graphs, those that a later version removed included."""

CHOICES: Mapping[str, tuple[str, ...]] = {
    "kv_canary": ("none", "log", "raise"),
    "kv_canary_real_data": ("none", "partial", "all"),
    "disaggregation_mode": ("null", "prefill", "decode"),
    "cuda_graph_backend_decode": GRAPH_BACKENDS,
    "cuda_graph_backend_prefill": GRAPH_BACKENDS,
}
"""Short lists of accepted values, those of all versions that have the option."""

REPLACED_BY: Mapping[str, str] = {
    "enable_dp_attention": "--attn-dp-size N",
    "disable_cuda_graph": "--cuda-graph-backend-decode=disabled",
    "disable_piecewise_cuda_graph": "--cuda-graph-backend-prefill=disabled",
    "enforce_piecewise_cuda_graph": "--cuda-graph-backend-prefill=tc_piecewise",
    "enable_piecewise_cuda_graph": "--cuda-graph-backend-prefill=breakable",
    "enable_breakable_cuda_graph": "--cuda-graph-backend-prefill=breakable",
    "attn_dp_size": "--enable-dp-attention",
    "hybrid_kvcache_ratio": "--swa-full-tokens-ratio",
    "enable_ep_moe": "--ep-size N",
    "enable_deepep_moe": "--moe-a2a-backend deepep",
    "enable_flashinfer_mla": "--attention-backend flashinfer",
    "enable_flashmla": "--attention-backend flashmla",
}
"""Options that another option took the place of, by canonical name."""

DEFAULTS: Mapping[str, object] = {
    "tp_size": 1,
    "pp_size": 1,
    "dp_size": 1,
    "attn_dp_size": 1,
    "attn_cp_size": 1,
    "dcp_size": 1,
    "ep_size": 1,
    "max_prefill_tokens": 16384,
    "schedule_policy": "fcfs",
    "schedule_conservativeness": 1.0,
    "swa_full_tokens_ratio": 0.8,
    "num_continuous_decode_steps": 1,
    "mamba_full_memory_ratio": 0.9,
    "kv_cache_dtype": "auto",
    "disaggregation_mode": "null",
    "num_reserved_decode_tokens": 512,
    "kv_canary": "none",
    "kv_canary_real_data": "none",
    "kv_canary_sweep_interval": 0,
}
"""Raw defaults; every other option has none (None), or is off if it is a flag."""

REACHES_CAPACITIES: frozenset[str] = frozenset(
    {
        *DEFAULTS,
        "model_path",
        "enable_dp_attention",
        "mem_fraction_static",
        "max_running_requests",
        "max_queued_requests",
        "max_total_tokens",
        "chunked_prefill_size",
        "prefill_max_requests",
        "page_size",
        "context_length",
        "disable_hybrid_swa_memory",
        "disable_radix_cache",
        "enable_mixed_chunk",
        "enable_dynamic_chunking",
        "disable_overlap_schedule",
        "max_mamba_cache_size",
        "mamba_radix_cache_strategy",
        "disaggregation_decode_extra_slots",
        "speculative_algorithm",
        "speculative_draft_model_path",
        "speculative_num_steps",
        "speculative_eagle_topk",
        "speculative_num_draft_tokens",
        "speculative_dflash_block_size",
        "speculative_dspark_block_size",
        "speculative_ngram_max_bfs_breadth",
        "speculative_adaptive",
        "speculative_adaptive_config",
        "enable_hierarchical_cache",
        "cuda_graph_max_bs_decode",
        "cuda_graph_bs_decode",
        "cuda_graph_backend_decode",
        "cuda_graph_max_bs_prefill",
        "cuda_graph_bs_prefill",
        "cuda_graph_backend_prefill",
        "cuda_graph_config",
        "disable_cuda_graph",
        "disable_cuda_graph_padding",
        "disable_decode_cuda_graph",
        "disable_prefill_cuda_graph",
        "disable_piecewise_cuda_graph",
        "enable_piecewise_cuda_graph",
        "enforce_piecewise_cuda_graph",
        "enable_breakable_cuda_graph",
        "enable_two_batch_overlap",
        "moe_a2a_backend",
        "attention_backend",
        "decode_attention_backend",
        "prefill_attention_backend",
        "device",
        "dtype",
        "is_embedding",
        "prefill_only_disable_kv_cache",
        "sampling_backend",
        "decrypted_config_file",
        "disaggregation_decode_enable_radix_cache",
    }
)
"""Canonical names that a rule of this package reads."""
