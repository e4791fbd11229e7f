"""Steps for the request pool and what is captured (SPEC_SERVING_ARGS 2.3, 2.9, 3.3, 3.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcanary_cli.serving import graph_sizes
from kvcanary_cli.serving.request_pool import (
    extra_request_rows,
    request_pool,
    request_table_columns,
    state_slots_per_request,
)

if TYPE_CHECKING:
    from kvcanary_cli.serving.resolve_state import State

_POOL = "req_to_token_pool_size"
_FIRST_WITH_EQUAL_SIZES = (0, 5, 10)


def resolve_context(state: State) -> None:
    """Context length: in effect, given, or the model's."""
    name = "context_length"
    for stated in ("context_len", name):
        item = state.stated(stated)
        value = state.integer(stated, least=1)
        if item is not None and value is not None:
            state.put_stated(name, item, value)
            return
    if state.model is not None and state.model.context_len:
        state.put(name, state.model.context_len, state.given["model_config"].source)
        return
    state.miss(
        name,
        "it is not given and the model is not known",
        "--context-length or --model-config config.json",
    )


def resolve_state_slots(state: State) -> None:
    """State slots of hybrid models, and how many a request takes."""
    slots = state.stated("mamba_slots") or state.stated("max_mamba_cache_size")
    hybrid = state.model is not None and state.model.kind == "hybrid"
    if slots is None and not hybrid:
        return
    if slots is not None:
        state.put_stated("mamba_slots", slots, state.integer(slots.name, least=0))
    else:
        state.miss(
            "mamba_slots",
            "the state memory of the model is not known",
            "--max-mamba-cache-size, or a server log with its 'Mamba Cache' line",
        )
    item = state.stated("state_slots_per_request")
    if item is not None:
        state.put_stated(
            "state_slots_per_request", item, state.integer("state_slots_per_request", least=1)
        )
        return
    per_request = state_slots_per_request(
        radix_cache=not state.flag("disable_radix_cache"),
        strategy=state.text("mamba_radix_cache_strategy").lower() or None,
        overlap=not state.flag("disable_overlap_schedule"),
    )
    if per_request is None:
        state.miss(
            "state_slots_per_request",
            "it is 3, 4 or 5 by the state-cache strategy that the server chooses",
            "--mamba-radix-cache-strategy",
        )
    else:
        state.put("state_slots_per_request", per_request, "rule 3.3")


def _state_cap(state: State) -> tuple[int | None, bool]:
    """Requests that the state memory holds, and whether an unknown one may be the limit."""
    slots, each = state.get("mamba_slots"), state.get("state_slots_per_request")
    if slots is not None and each is not None:
        return slots // each, False
    return None, "mamba_slots" in state.unknown or "state_slots_per_request" in state.unknown


def resolve_requests(state: State) -> None:
    """R and max_running_requests in effect (3.3)."""
    stated_size = state.final(_POOL)
    effective = state.final("effective_max_running_requests")
    if stated_size is not None:
        state.put_stated(_POOL, stated_size, state.integer(_POOL))
    if effective is not None:
        number = state.integer("effective_max_running_requests")
        state.put_stated("max_running_requests", effective, number)
        if _POOL not in state.values and state.release >= _FIRST_WITH_EQUAL_SIZES:
            state.put_stated(_POOL, effective, number)
    if _POOL in state.values and "max_running_requests" in state.values:
        return
    cap, cap_unknown = _state_cap(state)
    requested = state.get("requested_max_running_requests")
    pool = request_pool(
        state.release,
        tokens=state.get("pool_slot_count"),
        context_len=state.get("context_length"),
        requested=requested,
        dp_size=state.get("attn_dp_size"),
        state_cap=cap,
    )
    if pool is None or cap_unknown:
        _miss_requests(state, requested, cap_unknown)
        return
    inputs = ["requested_max_running_requests"] if requested is not None else []
    inputs += ["pool_slot_count", "context_length"] if requested is None else ["attn_dp_size"]
    if cap is not None:
        inputs.append("mamba_slots")
    source = pool.rule
    if pool.needs_tokens:
        source += f", provided that T is at least {pool.needs_tokens}"
        state.remark(
            f"R {pool.size} holds if the KV cache has at least {pool.needs_tokens} tokens; "
            "T is not known"
        )
    if _POOL not in state.values:
        state.put(_POOL, pool.size, source, inputs)
    if "max_running_requests" not in state.values:
        state.put("max_running_requests", pool.max_running, source, inputs)


def _miss_requests(state: State, requested: int | None, cap_unknown: bool) -> None:
    if cap_unknown:
        why = "the state memory may be the limit and is not known"
        give = state.unknown.get("mamba_slots") or state.unknown["state_slots_per_request"]
        hint = give.give
    else:
        lacking = [
            name for name in ("pool_slot_count", "context_length") if name not in state.values
        ]
        why = "it follows from " + " and ".join(lacking)
        why += ", which are unknown" if len(lacking) > 1 else ", which is unknown"
        hint = "; ".join(state.unknown[name].give for name in lacking if name in state.unknown)
        if requested is None:
            hint = f"--max-running-requests, or {hint}"
    for name in (_POOL, "max_running_requests"):
        state.miss(name, why, hint)


def resolve_table(state: State) -> None:
    """Rows in advance and columns of the request table (2.9, 3.4)."""
    size = state.get(_POOL)
    if size is not None:
        rows = extra_request_rows(
            state.release,
            mode=state.text("disaggregation_mode", "null"),
            size=size,
            requested=state.stated("max_running_requests") is not None,
            extra_slots=state.integer("disaggregation_decode_extra_slots", least=0),
            preallocated=_preallocated(state),
        )
        state.put("extra_request_rows", rows, "rule 2.9" if rows else "none")
    name = "max_seq_len_per_req"
    item = state.final(name)
    if item is not None:
        state.put_stated(name, item, state.integer(name))
        return
    context, draft = state.get("context_length"), state.get("speculative_num_draft_tokens")
    if context is None or draft is None:
        lacking = "context_length" if context is None else "speculative_num_draft_tokens"
        gap = state.unknown.get(lacking)
        state.miss(name, f"{lacking} is unknown", gap.give if gap else "")
        return
    by_page = {
        request_table_columns(
            state.release,
            context_len=context,
            draft_tokens=draft,
            num_steps=state.get("speculative_num_steps"),
            topk=state.get("speculative_eagle_topk"),
            page_size=page,
            uno=state.get("speculative_algorithm") == "UNO",
        )
        for page in state.pages()
    }
    if len(by_page) > 1:
        gap = state.unknown["page_size"]
        state.miss(name, f"page_size is unknown: {gap.why}", gap.give)
        return
    (columns,) = by_page
    state.put(
        name,
        columns,
        f"rule 3.4: {context} + {columns - context}",
        ("context_length", "speculative_num_draft_tokens"),
    )


def _preallocated(state: State) -> int:
    text = state.text("SGLANG_DISAGGREGATION_NUM_PRE_ALLOCATE_REQS")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def resolve_captured(state: State) -> None:
    """Decode sizes that are captured, and G if only they are known."""
    name = "captured_bs"
    size = state.get(_POOL)
    captured = state.final("capture_bs")
    if captured is not None:
        sizes = state.integers("capture_bs") or []
        state.put_stated(name, captured, sizes)
        if "cuda_graph_max_bs" not in state.values and sizes and size is not None:
            _graph_from_captured(state, sizes[-1], size)
        return
    if not state.get("decode_graph"):
        state.put(name, [], "decode graphs are off", ("decode_graph",))
        return
    sizes = state.get("cuda_graph_bs")
    if sizes is None or size is None:
        lacking = "cuda_graph_bs" if sizes is None else _POOL
        gap = state.unknown.get(lacking)
        state.miss(name, f"{lacking} is unknown", gap.give if gap else "")
        return
    attention_dp = state.get("attn_dp_size")
    alignment = state.get("tp_size") // attention_dp if attention_dp > 1 else 1
    if state.flag("enable_two_batch_overlap"):
        alignment *= 2
    cut = graph_sizes.cut_at_pool(state.release, sizes, size, alignment=max(1, alignment))
    state.put(name, cut, f"rule 2.3: up to R {size}", ("cuda_graph_bs", _POOL))


def _graph_from_captured(state: State, largest: int, size: int) -> None:
    """The captured list ends at the smaller of G and R."""
    item = state.given["capture_bs"]
    if largest < size:
        state.put(
            "cuda_graph_max_bs",
            largest,
            f"{item.source}: largest captured, below R {size}",
            ("captured_bs", _POOL),
        )
        return
    gap = state.unknown.get("cuda_graph_max_bs")
    if gap is not None:
        state.unknown.pop("cuda_graph_max_bs")
        state.miss(
            "cuda_graph_max_bs",
            f"the captured list ends at R {size}, so it is at least that",
            gap.give,
        )
