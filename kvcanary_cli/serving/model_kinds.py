"""Which architectures have which kind of KV cache (SPEC_SERVING_ARGS 3.2, 5)."""

from __future__ import annotations

DEEPSEEK_V4 = frozenset({"DeepseekV4ForCausalLM", "DeepseekV4ForCausalLMNextN"})

SLIDING_WINDOW = frozenset(
    {
        "GptOssForCausalLM",
        "Llama4ForConditionalGeneration",
        "MiMoV2FlashForCausalLM",
        "MiMoV2ForCausalLM",
        "Step3p5ForCausalLM",
        "Step3p7ForConditionalGeneration",
        "Gemma4ForCausalLM",
        "Gemma4ForConditionalGeneration",
        "Gemma4UnifiedForConditionalGeneration",
        "LagunaForCausalLM",
        "MellumForCausalLM",
        "MuseGlimmerForCausalLM",
        "MuseGlimmerForConditionalGeneration",
        "InklingForConditionalGeneration",
        "UnlimitedOCRForCausalLM",
    }
)
"""Architectures that get two pools. Others with a window keep one pool (Gemma 2, Gemma 3)."""

STATE_HYBRID = frozenset(
    {
        "Qwen3NextForCausalLM",
        "Qwen3_5ForCausalLM",
        "Qwen3_5MoeForCausalLM",
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForConditionalGeneration",
        "KimiLinearForCausalLM",
        "KimiK3LinearForCausalLM",
        "KimiK3ForConditionalGeneration",
        "NemotronHForCausalLM",
        "NemotronH_Nano_VL_V2",
        "FalconH1ForCausalLM",
        "GraniteMoeHybridForCausalLM",
        "JetNemotronForCausalLM",
        "Lfm2ForCausalLM",
        "Lfm2MoeForCausalLM",
        "BailingMoeV2_5ForCausalLM",
        "MiniMaxText01ForCausalLM",
    }
)
"""Mamba, gated delta net and other linear-attention hybrids: state beside the KV cache."""

SPARSE = frozenset({"MiniMaxM3SparseForCausalLM", "MiniMaxM3SparseForConditionalGeneration"})

STATE_LAYER_TYPES = frozenset(
    {"linear_attention", "mamba", "mamba2", "conv", "recurrent", "linear", "kda", "gdn"}
)

WHOLE_PROMPT = frozenset(
    {
        "Grok1VForCausalLM",
        "Grok1AForCausalLM",
        "LlavaLlamaForCausalLM",
        "MllamaForConditionalGeneration",
        "MossVLForConditionalGeneration",
        "CLIPModel",
        "HrmTextForCausalLM",
    }
)
"""Models whose prompts are not chunked: the server sets C = -1."""

NO_PREFILL_GRAPH = frozenset({"KimiLinearForCausalLM", "KimiK3LinearForCausalLM"})
"""Besides DeepSeek-V4 and most multimodal models."""
