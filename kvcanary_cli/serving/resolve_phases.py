"""Steps for the graphs of both phases: which back end, which sizes (SPEC_SERVING_ARGS 1.4, 2.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcanary_cli.serving import graph_sizes
from kvcanary_cli.serving.model_kinds import NO_PREFILL_GRAPH
from kvcanary_cli.serving.resolve_graphs import (
    graph_backend,
    graph_config,
    graph_list,
    graph_size,
)

if TYPE_CHECKING:
    from kvcanary_cli.serving.resolve_state import State

PIECEWISE = ("piecewise", "tc_piecewise")
"""Names of the prefill back end that the canary refuses."""

_MULTIMODAL = "multimodal model"
_MLA_PREFILL_TOKENS = 8192
_OLD_MLA_PREFILL_TOKENS = 2048
_LLAMA2_TOKENS = 4096
_PP_TOKENS = 8192
# Switches that turn the compiled (piecewise) prefill graph off, besides those with a rule below.
_COMPILED_OFF_FLAGS = (
    "enable_torch_compile",
    "enable_lora",
    "enable_hierarchical_cache",
    "enable_deterministic_inference",
    "enable_symm_mem",
    "enable_eplb",
    "enable_dsa_prefill_context_parallel",
    "debug_cuda_graph",
)


def resolve_phases(state: State, platform: str) -> None:
    """Decode graphs on or off, prefill back end."""
    mode = state.text("disaggregation_mode", "null")
    _decode_on(state, mode)
    backend, source = _prefill_backend(state, platform, mode)
    state.put("prefill_graph_backend", backend, source)


def _off_by_flag(state: State, phase: str) -> str | None:
    for name in (f"disable_{phase}_cuda_graph", "disable_cuda_graph"):
        if state.flag(name):
            return state.given[name].source
    return None


def _decode_on(state: State, mode: str) -> None:
    backend = graph_backend(state, "decode")
    if backend:
        source = f"{_backend_source(state, 'decode')}: back end {backend}"
        state.put("decode_graph", backend != "disabled", source)
        return
    off = _off_by_flag(state, "decode")
    if off is not None:
        state.put("decode_graph", False, off)
    elif mode == "prefill":
        state.put("decode_graph", False, "rule 2.9: PD prefill server", ("disaggregation_mode",))
    else:
        state.put("decode_graph", True, "default")


def _backend_source(state: State, phase: str) -> str:
    """Where an explicit back end was stated: in the JSON, else by the option of its own."""
    in_config = isinstance(graph_config(state, phase).get("backend"), str)
    item = state.stated("cuda_graph_config" if in_config else f"cuda_graph_backend_{phase}")
    return item.source if item is not None else "given"


def _prefill_backend(state: State, platform: str, mode: str) -> tuple[str, str]:
    release = state.release
    explicit = graph_backend(state, "prefill")
    if explicit:
        return explicit, _backend_source(state, "prefill")
    if release < (0, 5, 3):
        return "disabled", "no prefill graphs in this version"
    for name, backend in (
        ("enforce_piecewise_cuda_graph", "piecewise" if release < (0, 5, 14) else "tc_piecewise"),
        ("enable_breakable_cuda_graph", "breakable"),
        ("disable_piecewise_cuda_graph", "disabled"),
    ):
        if state.flag(name):
            return backend, state.given[name].source
    if release < (0, 5, 10):
        if state.flag("enable_piecewise_cuda_graph"):
            return "piecewise", state.given["enable_piecewise_cuda_graph"].source
        return "disabled", "default"
    off = _off_by_flag(state, "prefill")
    if off is not None:
        return "disabled", off
    if mode == "decode":
        return "disabled", "rule 2.9: PD decode server"
    return _default_prefill_backend(state, platform, mode)


def _default_prefill_backend(state: State, platform: str, mode: str) -> tuple[str, str]:
    release = state.release
    compiled = "piecewise" if release < (0, 5, 14) else "tc_piecewise"
    if release >= (0, 5, 16) and platform == "cuda":
        reason = _breakable_off(state)
        if reason == _MULTIMODAL and release < (0, 5, 22):
            state.remark(
                "a few multimodal models get the compiled prefill graph in this version, which "
                "the canary refuses; --cuda-graph-backend-prefill=disabled is safe for all"
            )
        return ("disabled", f"rule 1.4: {reason}") if reason else ("breakable", "default")
    if release >= (0, 5, 22):
        return "disabled", "default"
    reason = _compiled_off(state, platform, mode)
    if reason == _platform_reason(platform) and release >= (0, 5, 14):
        state.remark(
            f"the default prefill graph of {state.choice.rules} outside CUDA is tc_piecewise, "
            f"which the canary refuses; it is taken as turned off on {platform}: "
            "--cuda-graph-backend-prefill=disabled makes sure"
        )
        return "disabled", reason
    return ("disabled", f"rule 1.4: {reason}") if reason else (compiled, "default")


def _breakable_off(state: State) -> str:
    model = state.model
    conditions = (
        (state.get("pp_size") > 1, "pipeline parallelism"),
        ((state.integer("attn_cp_size") or 1) > 1, "context parallelism"),
        ((state.integer("dcp_size") or 1) > 1, "decode context parallelism"),
        (state.flag("enable_two_batch_overlap"), "two-batch overlap"),
        (
            state.text("moe_a2a_backend", "none").lower()
            not in ("none", "deepep", "megamoe", "flashinfer"),
            "MoE all-to-all back end",
        ),
        (model is not None and model.architecture in NO_PREFILL_GRAPH, "KDA model"),
        (model is not None and model.kind == "deepseek_v4", "DeepSeek-V4"),
        (model is not None and model.multimodal, _MULTIMODAL),
    )
    return next((reason for holds, reason in conditions if holds), "")


def _platform_reason(platform: str) -> str:
    return f"the compiled prefill graph does not run on platform {platform}"


def _compiled_off(state: State, platform: str, mode: str) -> str:
    model = state.model
    quantized = (state.text("quantization").lower(), state.text("load_format").lower())
    conditions = (
        (state.get("attn_dp_size") > 1, "DP attention"),
        (state.get("pp_size") > 1, "pipeline parallelism"),
        (platform in ("hip", "npu", "cpu", "xpu"), _platform_reason(platform)),
        (state.text("moe_a2a_backend", "none").lower() != "none", "MoE all-to-all back end"),
        (state.stated("lora_paths") is not None, "LoRA"),
        (model is not None and model.multimodal, _MULTIMODAL),
        ("gguf" in quantized, "GGUF"),
        (state.stated("dllm_algorithm") is not None, "diffusion model"),
        ((state.number("cpu_offload_gb") or 0) > 0, "CPU offload"),
        (mode != "null", "PD disaggregation"),
        ((state.integer("attn_cp_size") or 1) > 1, "context parallelism"),
    )
    found = next((reason for holds, reason in conditions if holds), "")
    return found or next((name for name in _COMPILED_OFF_FLAGS if state.flag(name)), "")


def resolve_prefill_sizes(state: State) -> None:
    """Token counts with a prefill graph (2.4)."""
    if state.get("prefill_graph_backend") == "disabled":
        state.put("cuda_graph_prefill_tokens", [], "prefill graphs are off")
        return
    captured = state.final("capture_num_tokens")
    if captured is not None:
        sizes = state.integers("capture_num_tokens")
        state.put_stated("cuda_graph_prefill_tokens", captured, sizes)
    maximum = prefill_maximum(state)
    state.prefill_max_tokens = maximum
    if captured is not None:
        return
    listed = graph_list(state, "prefill")
    if listed:
        state.put("cuda_graph_prefill_tokens", listed, "given")
    elif maximum is None:
        state.miss(
            "cuda_graph_prefill_tokens",
            "their maximum follows from chunked_prefill_size",
            "--chunked-prefill-size",
        )
    else:
        state.put(
            "cuda_graph_prefill_tokens",
            graph_sizes.prefill_sizes(state.release, maximum),
            f"rule 2.4: up to {maximum}",
            ("chunked_prefill_size",),
        )


def prefill_maximum(state: State) -> int | None:
    """P, or None if C is unknown."""
    given = graph_size(state, "prefill")
    if given is not None:
        return given
    if state.release < (0, 5, 7):
        return 4096
    chunk = state.raw_chunk
    if chunk is None:
        return None
    maximum = chunk
    if state.model is not None and state.model.mla:
        maximum = (
            min(_MLA_PREFILL_TOKENS, chunk)
            if state.release >= (0, 5, 14)
            else _OLD_MLA_PREFILL_TOKENS
        )
    if state.get("pp_size") > 1 and state.get("prefill_graph_backend") == "breakable":
        maximum = min(maximum, _PP_TOKENS)
    cap = state.integer("max_total_tokens")
    if cap is not None and state.release >= (0, 5, 10):
        maximum = min(maximum, cap)
    if "llama-2" in state.text("model_path").lower() and state.release >= (0, 5, 10):
        maximum = min(maximum, _LLAMA2_TOKENS)
    return max(maximum, 0)


def resolve_decode_sizes(state: State, platform: str) -> None:
    """Decode batch sizes with a graph, before they are cut at R (2.3)."""
    listed = graph_list(state, "decode")
    maximum = state.get("cuda_graph_max_bs")
    if listed:
        kept = [size for size in listed if maximum is None or size <= maximum]
        state.put("cuda_graph_bs", kept, "given")
    elif maximum is None:
        state.miss(
            "cuda_graph_bs",
            "cuda_graph_max_bs is unknown",
            state.unknown["cuda_graph_max_bs"].give if "cuda_graph_max_bs" in state.unknown else "",
        )
    else:
        sizes = graph_sizes.decode_sizes(
            state.release,
            max_bs=maximum,
            speculation=state.get("speculative_algorithm") is not None,
            padding_disabled=state.flag("disable_cuda_graph_padding"),
            memory_mib=state.get("gpu_memory_mib"),
            hip=platform == "hip",
        )
        state.put("cuda_graph_bs", sizes, f"rule 2.3: up to {maximum}", ("cuda_graph_max_bs",))
