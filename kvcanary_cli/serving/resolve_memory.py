"""Steps from memory to T (SPEC_SERVING_ARGS 2.5, 3.1, 3.2)."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from kvcanary_cli.serving import kv_cell, kv_memory
from kvcanary_cli.serving.mem_fraction import (
    FractionInputs,
    default_fraction,
    multimodal_fraction,
)

if TYPE_CHECKING:
    from kvcanary_cli.serving.resolve_state import State

_MTP_LAYERS = 1
_SINGLE_LAYER_DRAFTS = frozenset({"EAGLE", "EAGLE3"})
_FIRST_WITH_SHARED_DRAFT = (0, 5, 6)
_GIVE_MEMORY = (
    "a server log with its 'Load weight' lines, or --model-config with --gpu and --weights-bytes, "
    "or --max-total-tokens"
)


def resolve_fraction(state: State, platform: str) -> None:
    """mem_fraction_static (2.5)."""
    name = "mem_fraction_static"
    item = state.stated(name)
    given = state.number(name)
    if item is not None and given is not None:
        if not 0 < given <= 1:
            raise state.bad(item, "a fraction above 0 and up to 1 is expected")
        multimodal = state.model is not None and state.model.multimodal
        if multimodal and state.release < (0, 5, 0) and item.kind == "argument":
            lowered = multimodal_fraction(state.release, given)
            state.put(name, lowered, f"rule 2.5: {given:g} * 0.95, multimodal ({item.source})")
        else:
            state.put_stated(name, item, given)
        return
    memory, graph_max = state.get("gpu_memory_mib"), state.get("cuda_graph_max_bs")
    if memory is None or graph_max is None or state.raw_chunk is None:
        state.miss(
            name,
            "it is not given and its default follows from the GPU's memory, C and G",
            "--mem-fraction-static, or --gpu-mem",
        )
        return
    flavours = (True, False) if state.model is None else (state.model.mla,)
    fractions = {_default(state, platform, memory, graph_max, mla) for mla in flavours}
    if len(fractions) > 1:
        low, high = sorted(fractions)
        state.miss(
            name,
            f"the default is {low:g} for a model with MLA and {high:g} for another",
            "--model-config config.json",
        )
        return
    (fraction,) = fractions
    rule = f"rule 2.5: {memory} MiB, C {state.raw_chunk}, G {graph_max}"
    model = state.model
    if model is not None and model.multimodal and _lowered(state):
        fraction = multimodal_fraction(
            state.release,
            fraction,
            vision_layers=model.vision_layers,
            vision_hidden=model.vision_hidden,
        )
        rule += ", lowered for a multimodal model"
        if state.release >= (0, 5, 0) and None in (model.vision_layers, model.vision_hidden):
            state.remark(
                "the size of the vision tower is not in the model's config.json: the share of "
                "mem_fraction_static that the server takes off for it is left out"
            )
    state.put(
        name,
        fraction,
        rule,
        ("gpu_memory_mib", "tp_size", "pp_size", "attn_dp_size", "cuda_graph_max_bs"),
    )


def _lowered(state: State) -> bool:
    return not (
        state.flag("language_only")
        or state.flag("language_model_only")
        or state.text("disaggregation_mode", "null") == "decode"
    )


def _default(state: State, platform: str, memory: int, graph_max: int, mla: bool) -> float:
    sizes = state.get("cuda_graph_prefill_tokens")
    backend = state.get("prefill_graph_backend")
    asked = state.integer("max_running_requests")
    return default_fraction(
        state.release,
        FractionInputs(
            memory_mib=memory,
            tp_size=state.get("tp_size"),
            pp_size=state.get("pp_size"),
            dp_size=state.get("attn_dp_size"),
            chunked_prefill_size=state.raw_chunk or 0,
            max_prefill_tokens=state.get("max_prefill_tokens"),
            cuda_graph_max_bs=graph_max,
            speculative_algorithm=state.get("speculative_algorithm"),
            draft_tokens=state.integer("speculative_num_draft_tokens"),
            max_running_requests=asked,
            disaggregation_mode=state.text("disaggregation_mode", "null"),
            decode_graph=state.get("decode_graph"),
            prefill_sizes=None if backend == "disabled" else tuple(sizes or ()),
            prefill_max_tokens=state.prefill_max_tokens,
            mla=mla,
            breakable=backend == "breakable",
            deepep=state.text("moe_a2a_backend").lower() == "deepep",
            xpu=platform == "xpu",
            post_capture=state.text("SGLANG_ENABLE_POST_CAPTURE_KV_SIZING").lower()
            in ("1", "true", "yes", "y"),
        ),
    )


def resolve_cell(state: State) -> None:
    """Bytes per token and rank: stated, from a pool line, or from the model (3.2)."""
    item = state.final("cell_bytes")
    if item is not None:
        state.put_stated("cell_bytes", item, state.integer("cell_bytes", least=1))
        return
    if state.model is None:
        _cell_from_line(state)
        return
    dtype = state.text("kv_cache_dtype", "auto")
    elem = kv_cell.element_bytes(dtype, state.model, state.text("dtype", "auto"))
    ratio = swa_ratio(state)
    attention_tp = max(1, state.get("tp_size") // state.get("attn_dp_size"))
    cell = None
    if elem is not None:
        cell = kv_cell.cell_size(
            state.model,
            elem=elem,
            attn_tp=attention_tp,
            pp_size=state.get("pp_size"),
            swa_ratio=ratio,
            dsa_packed=not state.text("attention_backend").lower().startswith("trtllm"),
        )
    if cell is None:
        why = f"there is no rule for a {state.model.kind} pool with kv_cache_dtype {dtype}"
        state.miss("cell_bytes", why, "--set cell_bytes=N")
        _cell_from_line(state)
        return
    draft = _draft_layers(state)
    if draft:
        cell = kv_cell.with_draft(cell, draft_layers=draft, target_layers=state.model.layers)
    if cell.bytes < 1:
        state.miss("cell_bytes", "the model has no layers with a KV cache", "--set cell_bytes=N")
        return
    state.put(
        "cell_bytes",
        cell.bytes,
        f"rule 3.2: {cell.formula}",
        ("tp_size", "attn_dp_size", "pp_size"),
    )


def swa_ratio(state: State) -> Fraction:
    """swa_full_tokens_ratio, or its default for the model."""
    item = state.stated("swa_full_tokens_ratio")
    given = state.number("swa_full_tokens_ratio")
    if item is None or given is None:
        special = state.model is not None and state.model.kind == "deepseek_v4"
        return Fraction(1, 10) if special else Fraction(4, 5)
    if not 0 < given <= 1:
        raise state.bad(item, "a ratio above 0 and up to 1 is expected")
    return Fraction(str(given))


def _draft_layers(state: State) -> int:
    algorithm = state.get("speculative_algorithm")
    if algorithm is None or state.release < _FIRST_WITH_SHARED_DRAFT or algorithm == "NGRAM":
        return 0
    if state.draft_model is not None:
        return state.draft_model.layers
    if algorithm in _SINGLE_LAYER_DRAFTS:
        state.remark(
            "the draft model is taken to have one layer, as EAGLE and MTP drafts have; "
            "--draft-model-config would say"
        )
        return _MTP_LAYERS
    state.remark(
        f"the share of the {algorithm} draft model in the KV memory is left out; "
        "--draft-model-config would say"
    )
    return 0


def _cell_from_line(state: State) -> None:
    tokens = state.integer("kv_tokens") or 0
    both = state.number("kv_gib")
    keys, values = state.number("k_gib"), state.number("v_gib")
    if both is None and keys is not None:
        both = keys + (values or 0.0)
    if tokens > 0 and both and both > 0:
        cell = max(1, round(kv_memory.cell_from_sizes(kv_gib=both, tokens=tokens)))
        state.put(
            "cell_bytes",
            cell,
            f"rule 3.2, inverse: {both:g} GiB / {tokens} tokens",
            ("kv_tokens", "kv_gib"),
        )
        return
    state.miss("cell_bytes", "the model is not known", "--model-config config.json")


def resolve_tokens(state: State) -> None:
    """T, and the memory that it comes from (3.1)."""
    name = "pool_slot_count"
    for stated in (name, "kv_tokens"):
        item = state.final(stated)
        if item is not None:
            state.put_stated(name, item, state.integer(stated))
            break
    _resolve_rest(state)
    cap_item = state.stated("max_total_tokens")
    cap = state.integer("max_total_tokens")
    if name not in state.values:
        _tokens_by_rule(state, cap)
    if name not in state.values and cap is not None and cap_item is not None:
        sizes = {cap // page * page for page in state.pages()}
        if len(sizes) > 1:
            _miss_pages(state, name)
            _resolve_window_pool(state)
            return
        state.put(
            name,
            sizes.pop(),
            f"{cap_item.source}, provided that memory allows it",
            ("page_size",),
            cap_item.place,
        )
        state.remark(
            f"T is taken as --max-total-tokens {cap}; the server lowers it if the GPU has less "
            "memory left, which cannot be computed from what was given"
        )
    if name in state.values:
        # Nothing else is computed from it.
        state.unknown.pop("kv_rest_gib", None)
    missing = [each for each in ("kv_rest_gib", "cell_bytes") if each in state.unknown]
    why = "; ".join(state.unknown[each].why for each in missing) or "memory is not known"
    state.miss(name, why, _GIVE_MEMORY)
    _resolve_window_pool(state)


def _resolve_rest(state: State) -> None:
    fraction = state.get("mem_fraction_static")
    after = state.number("avail_after_load_gib")
    before = state.number("avail_before_load_gib")
    weights = state.number("weights_gib")
    if before is None and after is not None and weights is not None:
        before = after + weights
    memory = state.get("gpu_memory_mib")
    loaded = state.integer("weights_bytes", least=0)
    estimated = False
    if (before is None or after is None) and memory is not None and loaded is not None:
        before = memory / 1024
        after = before - loaded / kv_memory.GIB
        estimated = True
    if before is None or after is None:
        state.miss(
            "kv_rest_gib", "the memory that the weights leave is not known", "--weights-bytes"
        )
        return
    if fraction is None:
        state.miss("kv_rest_gib", "mem_fraction_static is unknown", "--mem-fraction-static")
        return
    rest = kv_memory.rest_gib(before=before, after=after, fraction=fraction)
    source = f"rule 3.1: {after:.2f} - {before:.2f} * (1 - {fraction:g})"
    if estimated:
        source += ", estimated from the GPU's nominal memory"
        state.remark(
            "the KV memory is estimated from the GPU's nominal memory; a log's 'Load weight' lines "
            "give the memory that was there"
        )
    inputs = ("mem_fraction_static", "gpu_memory_mib") if estimated else ("mem_fraction_static",)
    state.put("kv_rest_gib", rest, source, inputs)


def _tokens_by_rule(state: State, cap: int | None) -> None:
    rest, cell = state.get("kv_rest_gib"), state.get("cell_bytes")
    if rest is None or cell is None:
        return
    inputs = ["kv_rest_gib", "cell_bytes", "page_size"]
    kept = rest
    if state.model is not None and state.model.kind == "hybrid":
        ratio = state.number("mamba_full_memory_ratio")
        ratio = 0.9 if ratio is None or ratio < 0 else ratio
        kept, _ = kv_memory.split_state_memory(rest, ratio)
    by_page = [
        kv_memory.tokens_from_memory(kept, cell, max_total_tokens=cap, page_size=page)
        for page in state.pages()
    ]
    if len({each.tokens for each in by_page}) > 1:
        _miss_pages(state, "pool_slot_count")
        return
    found = by_page[0]
    source = f"rule 3.1: {kept:.2f} GiB / {cell} B"
    if found.capped:
        source += ", capped by --max-total-tokens"
    elif cap is not None and cap > found.profiled:
        state.remark(
            f"max_total_tokens={cap} is larger than the profiled value {found.profiled}; "
            "the server uses the latter"
        )
    state.put("pool_slot_count", found.tokens, source, inputs)


def _miss_pages(state: State, name: str) -> None:
    gap = state.unknown["page_size"]
    state.miss(name, f"it is rounded to pages, and page_size is unknown: {gap.why}", gap.give)


def _resolve_window_pool(state: State) -> None:
    name = "swa_pool_slot_count"
    item = state.final("swa_kv_tokens")
    if item is not None:
        state.put_stated(name, item, state.integer("swa_kv_tokens", least=0))
        return
    if state.model is None or state.model.kind not in ("swa", "deepseek_v4"):
        return
    tokens = state.get("pool_slot_count")
    if tokens is None:
        state.miss(name, "pool_slot_count is unknown", _GIVE_MEMORY)
        return
    ratio = float(swa_ratio(state))
    sizes = {kv_memory.swa_tokens(tokens, ratio, page) for page in state.pages()}
    if len(sizes) > 1:
        _miss_pages(state, name)
        return
    state.put(
        name,
        sizes.pop(),
        f"rule 3.2: {tokens} * {ratio:g}",
        ("pool_slot_count", "page_size"),
    )
