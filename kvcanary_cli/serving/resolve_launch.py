"""First steps of a resolution: models, machine, parallelism, speculation, page size."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from kvcanary_cli.serving import gpus
from kvcanary_cli.serving.model_config import parse_model_config
from kvcanary_cli.serving.refused_values import (
    KNOWN_ALGORITHMS,
    refuse_unlisted,
)
from kvcanary_cli.serving.speculation import (
    SpeculationInputs,
    algorithm_of,
    default_running_requests,
    resolve_speculation,
)
from kvcanary_cli.serving.values import Refusal

if TYPE_CHECKING:
    from kvcanary_cli.serving.resolve_state import State

_PLATFORMS = ("cuda", "hip", "musa", "npu", "xpu", "cpu")
_COVERED_PLATFORMS = ("cuda", "hip", "musa", "npu")
_DRAFT_LIMIT = 1 << 20
_PAGE_BY_BACKEND = {
    "flashmla": (64,),
    "cutlass_mla": (128,),
    "trtllm_mla": (64, 32),
    "cutedsl_mla": (64, 32),
    "trtllm_mha": (64, 16, 32),
    "hpc-ops": (64,),
    "hpc_ops": (64,),
    "ascend": (128,),
}
GIVE_GPU = "--gpu h100 or --gpu-mem 80GB"
"""Options of our commands that state the GPU's memory."""


def read_models(state: State) -> None:
    """Parse the config.json of the target and of the draft model, if they were given."""
    item = state.stated("model_config")
    if item is not None:
        model = parse_model_config(item.value, item.source)
        if model.kind == "swa" and state.flag("disable_hybrid_swa_memory"):
            model = dataclasses.replace(
                model, kind="mha", full_layers=model.full_layers + model.swa_layers, swa_layers=0
            )
        state.model = model
    draft = state.stated("draft_model_config")
    if draft is not None:
        state.draft_model = parse_model_config(draft.value, draft.source)


def resolve_machine(state: State) -> str:
    """GPU memory; returns the platform (``cuda`` unless something says otherwise)."""
    name = state.text("gpu_name")
    platform = state.text("platform").lower() or state.text("device").lower()
    if platform not in _PLATFORMS:
        platform = "hip" if name and gpus.is_hip(name) else "cuda"
    if platform not in _COVERED_PLATFORMS:
        state.remark(f"the rules of platform {platform} are covered only in part")
    item = state.stated("gpu_memory_mib")
    if item is not None:
        if isinstance(item.value, str):
            memory = gpus.parse_gpu_memory(item.value)
            state.put("gpu_memory_mib", memory.mib, f"{item.source}: {memory.text}", (), item.place)
            if not memory.exact:
                state.remark(memory.text)
        else:
            state.put_stated("gpu_memory_mib", item, state.integer("gpu_memory_mib", least=1))
        return platform
    named = state.stated("gpu_name")
    if named is not None and (named.kind == "override" or gpus.gpu_key(name) is not None):
        memory = gpus.memory_of_gpu(name)
        state.put("gpu_memory_mib", memory.mib, f"{named.source}: {memory.text}", (), named.place)
    else:
        state.miss("gpu_memory_mib", "nothing states the GPU", GIVE_GPU)
    return platform


def resolve_parallel(state: State) -> None:
    """tp, pp, attention DP and replicas (2.6)."""
    sizes = {}
    for name in ("tp_size", "pp_size", "dp_size"):
        sizes[name] = state.integer(name, least=1) or 1
    state.put_default("tp_size", "tp_size", state.integer("tp_size"), 1)
    state.put_default("pp_size", "pp_size", state.integer("pp_size"), 1)
    dp, tp = sizes["dp_size"], sizes["tp_size"]
    attention_dp = state.integer("attn_dp_size", least=1) or 1
    dp_item = state.stated("dp_size")
    replicas = 1
    if attention_dp > 1:
        item = state.given["attn_dp_size"]
        state.put_stated("attn_dp_size", item, attention_dp)
        replicas = dp
        if dp > 1:
            _refuse_two_dp(state, item.source, dp, attention_dp)
    elif state.flag("enable_dp_attention"):
        if state.release < (0, 4, 4):
            attention_dp = tp
            state.put("attn_dp_size", tp, f"rule 2.6: dp is tp {tp}", ("tp_size",))
        else:
            attention_dp = dp
            source = "default" if dp_item is None else f"{dp_item.source}, DP attention"
            state.put("attn_dp_size", dp, source)
    else:
        replicas = dp
        state.put("attn_dp_size", 1, "no DP attention")
    state.put("replicas", replicas, "default" if replicas == 1 else str(dp_item and dp_item.source))
    if tp % attention_dp:
        _refuse_uneven_dp(state, tp, attention_dp)
    _check_gpu_count(state, tp * sizes["pp_size"] * replicas)


def _refuse_two_dp(state: State, source: str, dp: int, attention_dp: int) -> None:
    """Replicas and attention DP at once (2.6); beside the old switch it depends on the rewrite."""
    dp_item = state.given["dp_size"]
    state.refuse(
        Refusal(
            "",
            f"dp_size {dp} together with attn_dp_size {attention_dp}",
            f"{dp_item.source} and {source}",
            "give one of --dp-size and --attn-dp-size, not both",
            certain=not state.flag("enable_dp_attention"),
        )
    )


def _refuse_uneven_dp(state: State, tp: int, attention_dp: int) -> None:
    state.refuse(
        Refusal(
            "",
            f"tp_size {tp} is no multiple of the attention DP size {attention_dp}",
            state.values["attn_dp_size"].source,
            f"set --tp-size to a multiple of {attention_dp}, or the DP size to a divisor of {tp}",
        )
    )


def _check_gpu_count(state: State, needed: int) -> None:
    count = state.integer("gpu_count", least=1)
    if count is not None and count < needed:
        state.remark(f"the launch needs {needed} GPUs, {count} were stated")


def resolve_speculation_options(state: State) -> None:
    """Algorithm, steps, topk, D, and what was asked for as max_running_requests (2.8)."""
    algorithm = algorithm_of(state.text("speculative_algorithm"))
    if algorithm is not None:
        refuse_unlisted(state, "speculative_algorithm", algorithm, KNOWN_ALGORITHMS)
    block = state.integer("speculative_dflash_block_size", least=1)
    if algorithm == "DSPARK":
        block = state.integer("speculative_dspark_block_size", least=1)
    spec = resolve_speculation(
        SpeculationInputs(
            algorithm=algorithm,
            num_steps=state.integer("speculative_num_steps", least=0),
            topk=state.integer("speculative_eagle_topk", least=1),
            draft_tokens=state.integer("speculative_num_draft_tokens"),
            architecture=state.model.architecture if state.model else None,
            block_size=block,
            draft_config_known=state.draft_model is not None,
            ngram_breadth=state.integer("speculative_ngram_max_bfs_breadth", least=1),
            adaptive=state.flag("speculative_adaptive"),
        )
    )
    if spec.algorithm is not None:
        state.put_stated("speculative_algorithm", state.given["speculative_algorithm"], algorithm)
        for name, value in (("num_steps", spec.num_steps), ("eagle_topk", spec.topk)):
            full = f"speculative_{name}"
            if value is not None:
                _put_settled(state, full, value, spec.rule)
            else:
                state.miss(full, spec.why_unknown or "it is not given", spec.give)
    if spec.draft_tokens is None:
        item = state.final("speculative_num_draft_tokens")
        if item is not None and item.value is not None:
            draft = state.integer("speculative_num_draft_tokens")
            state.put_stated("speculative_num_draft_tokens", item, draft)
        else:
            state.miss("speculative_num_draft_tokens", spec.why_unknown, spec.give)
    else:
        limited = min(spec.draft_tokens, _DRAFT_LIMIT)
        _put_settled(state, "speculative_num_draft_tokens", limited, spec.rule)
    steps = state.get("speculative_num_steps")
    if spec.algorithm is None:
        state.put("forward_managers", 1, "no speculation")
    elif steps is not None:
        state.put(
            "forward_managers",
            max(1, steps - 1),
            f"max(1, {steps} - 1)",
            ("speculative_num_steps",),
        )
    _requested_requests(state, spec.algorithm)


def _put_settled(state: State, name: str, value: int, rule: str) -> None:
    """A dump's or the user's final word, else the rule's value."""
    item = state.stated(name)
    stated = state.integer(name)
    if item is not None and stated is not None and (item.kind != "argument" or stated == value):
        state.put_stated(name, item, stated)
    else:
        state.put(name, value, rule, ("speculative_algorithm",) if value else ())


def _requested_requests(state: State, algorithm: str | None) -> None:
    item = state.stated("max_running_requests")
    if item is not None:
        if item.value is not None:
            state.put_stated(
                "requested_max_running_requests", item, state.integer("max_running_requests")
            )
        return
    architecture = state.model.architecture if state.model else None
    default = default_running_requests(state.release, algorithm, architecture=architecture)
    if default is not None:
        number, rule = default
        state.put("requested_max_running_requests", number, rule, ("speculative_algorithm",))


def resolve_page_size(state: State, platform: str) -> None:
    """page_size, the default of the platform or of the back end (2.7)."""
    item = state.stated("page_size")
    page = state.integer("page_size", least=1)
    if item is not None and page is not None and item.kind != "argument":
        state.put_stated("page_size", item, page)
        return
    for option in ("attention_backend", "decode_attention_backend", "prefill_attention_backend"):
        backend = state.text(option).lower()
        if backend == "fa4" and state.model is None and page is None:
            state.miss(
                "page_size",
                "back end fa4 makes it 128, except for a model with MLA",
                "--page-size, or --model-config config.json",
            )
            state.page_sizes = (1, 128)
            state.remark(
                "page_size is 128 with back end fa4, and 1 for a model with MLA: "
                "--page-size or --model-config would say"
            )
            return
        allowed = _PAGE_BY_BACKEND.get(backend, ())
        if backend == "fa4" and state.model is not None and not state.model.mla:
            allowed = (128,)
        if allowed:
            if page in allowed and item is not None:
                state.put_stated("page_size", item, page)
            else:
                state.put("page_size", allowed[0], f"rule 2.7: back end {backend}")
            return
    if page is not None and item is not None:
        state.put_stated("page_size", item, page)
        return
    default, source = 1, "default"
    if platform == "npu":
        default, source = 128, "rule 2.7: Ascend"
    elif platform == "musa" and state.release >= (0, 5, 12):
        default, source = 64, "rule 2.7: MUSA"
    elif state.model is not None and state.model.kind == "sparse":
        default, source = 128, "rule 2.7: MiniMax-M3"
    state.put("page_size", default, source)
