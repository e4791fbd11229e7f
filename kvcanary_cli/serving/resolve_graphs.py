"""Steps for C, G, M and the graphs (SPEC_SERVING_ARGS 1.4, 2.2 to 2.4, 2.6, 2.7)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvcanary_cli.serving import gpus, graph_sizes
from kvcanary_cli.serving.memory_defaults import memory_defaults
from kvcanary_cli.serving.option_facts import DEFAULTS
from kvcanary_cli.serving.resolve_launch import GIVE_GPU
from kvcanary_cli.serving.speculation import algorithm_of

if TYPE_CHECKING:
    from kvcanary_cli.serving.memory_defaults import MemoryDefaults
    from kvcanary_cli.serving.resolve_state import State


def graph_config(state: State, phase: str) -> dict[str, Any]:
    """The part of ``--cuda-graph-config`` for ``decode`` or ``prefill``; empty without one."""
    item = state.stated("cuda_graph_config")
    if item is None or item.value is None:
        return {}
    if not isinstance(item.value, dict):
        raise state.bad(item, 'an object such as {"decode": {"max_bs": 64}} is expected')
    part = item.value.get(phase)
    if part is None:
        return {}
    if not isinstance(part, dict):
        raise state.bad(item, f"{phase} must be an object")
    return part


def graph_size(state: State, phase: str) -> int | None:
    """``max_bs`` of the JSON, else the per-phase option, else None."""
    item = state.stated("cuda_graph_config")
    value = graph_config(state, phase).get("max_bs")
    if value is not None and item is not None:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 31:
            raise state.bad(item, f"{phase}.max_bs must be a whole number")
        return value
    return state.integer(f"cuda_graph_max_bs_{phase}")


def graph_list(state: State, phase: str) -> list[int] | None:
    """``bs`` of the JSON, else the per-phase option, else None."""
    item = state.stated("cuda_graph_config")
    value = graph_config(state, phase).get("bs")
    if value is not None and item is not None:
        sizes = value if isinstance(value, list) else []
        if not all(isinstance(each, int) and 0 < each < 1 << 31 for each in sizes):
            raise state.bad(item, f"{phase}.bs must list whole numbers above 0")
        return sorted(sizes) or None
    return state.integers(f"cuda_graph_bs_{phase}") or None


def graph_backend(state: State, phase: str) -> str:
    """``backend`` of the JSON, else the per-phase option, else empty; lower case."""
    value = graph_config(state, phase).get("backend")
    return (
        value.lower()
        if isinstance(value, str)
        else state.text(f"cuda_graph_backend_{phase}").lower()
    )


def resolve_chunk_and_graph(state: State, platform: str) -> None:
    """C, G and M (2.2, 2.6, 2.7)."""
    tp = state.get("tp_size")
    mode = state.text("disaggregation_mode", "null")
    memory = state.get("gpu_memory_mib")
    table = None
    if memory is not None:
        table = memory_defaults(
            state.release,
            memory_mib=memory,
            tp_size=tp,
            npu=platform == "npu",
            disaggregated=mode in ("prefill", "decode"),
        )
    _resolve_chunk(state, table)
    _resolve_graph_max(state, table, platform)
    item = state.stated("max_prefill_tokens")
    prefill = state.integer("max_prefill_tokens")
    if item is None or prefill is None:
        state.put("max_prefill_tokens", DEFAULTS["max_prefill_tokens"], "default")
    else:
        state.put_stated("max_prefill_tokens", item, prefill)


def _resolve_chunk(state: State, table: MemoryDefaults | None) -> None:
    item = state.stated("chunked_prefill_size")
    chunk = state.integer("chunked_prefill_size")
    dp = state.get("attn_dp_size")
    if item is not None and item.kind != "argument":
        # A dump says None when chunking is off.
        state.put_stated("chunked_prefill_size", item, -1 if chunk is None else chunk)
        state.raw_chunk = chunk * dp if chunk is not None and chunk > 0 else -1
        return
    source = ""
    inputs: tuple[str, ...] = ("gpu_memory_mib", "tp_size")
    if chunk is not None and item is not None:
        source, inputs = item.source, ()
    else:
        automatic = _automatic_chunk(state)
        if automatic:
            state.raw_chunk = -1
            state.put("chunked_prefill_size", -1, f"rule 2.2: {automatic}")
            return
        if table is not None:
            chunk, source = table.chunked_prefill_size, table.source
    if chunk is None:
        state.miss(
            "chunked_prefill_size",
            "--chunked-prefill-size is not given and its default follows from the GPU's memory",
            f"--chunked-prefill-size, or {GIVE_GPU}",
        )
        return
    state.raw_chunk = chunk
    place = item.place if item is not None and not inputs else None
    if dp > 1 and chunk > 0:
        divisor = 2 if state.release < (0, 4, 6) else dp
        word = "2" if state.release < (0, 4, 6) else f"dp {dp}"
        state.put(
            "chunked_prefill_size",
            chunk // divisor,
            f"rule 2.6: {chunk} // {word} ({source})",
            (*inputs, "attn_dp_size"),
            place,
        )
        return
    state.put("chunked_prefill_size", chunk, source, inputs, place)


def _automatic_chunk(state: State) -> str:
    """Why the server turns chunking off by itself, or empty."""
    if state.flag("is_embedding"):
        return "embedding models are not chunked"
    if state.model is not None and state.model.whole_prompt:
        return f"{state.model.architecture} is not chunked"
    if state.release < (0, 4, 2) and algorithm_of(state.text("speculative_algorithm")):
        return "speculation turns chunking off"
    return ""


def _resolve_graph_max(state: State, table: MemoryDefaults | None, platform: str) -> None:
    name = "cuda_graph_max_bs"
    config = state.stated("cuda_graph_config")
    own = state.stated("cuda_graph_max_bs_decode")
    listed = graph_list(state, "decode")
    given = graph_size(state, "decode")
    in_config = graph_config(state, "decode")
    if own is not None and own.kind == "override" and given is not None:
        state.put_stated(name, own, state.integer("cuda_graph_max_bs_decode"))
        return
    if listed and (state.release >= (0, 5, 3) or given is None):
        item = config if in_config.get("bs") is not None else state.stated("cuda_graph_bs_decode")
        where = item.source if item is not None else ""
        state.put(
            name, listed[-1], f"{where}: largest of the list", (), item.place if item else None
        )
        return
    if given is not None:
        item = config if in_config.get("max_bs") is not None else own
        if item is not None:
            state.put_stated(name, item, given)
        return
    if table is None:
        state.miss(
            name,
            "--cuda-graph-max-bs is not given and its default follows from the GPU's memory",
            f"--cuda-graph-max-bs-decode, or {GIVE_GPU}",
        )
        return
    default, row = table.cuda_graph_max_bs, table.source
    inputs = ["gpu_memory_mib", "tp_size"]
    if default is None:
        sizes = graph_sizes.decode_sizes(
            state.release,
            max_bs=None,
            speculation=algorithm_of(state.text("speculative_algorithm")) is not None,
            padding_disabled=state.flag("disable_cuda_graph_padding"),
            memory_mib=state.get("gpu_memory_mib"),
            hip=platform == "hip",
        )
        state.put(name, sizes[-1], f"rule 2.3: largest of the fixed list ({row})", inputs)
        return
    asked = state.integer("max_running_requests")
    if state.release >= (0, 5, 22) and asked is not None and 0 < asked < default:
        item = state.given["max_running_requests"]
        state.put(
            name,
            asked,
            f"rule 2.2: {default} lowered to max_running_requests ({item.source}; {row})",
            [*inputs, "requested_max_running_requests"],
        )
        return
    state.put(name, default, row, inputs)
    _qwen_vl_remark(state, default, asked)


def _qwen_vl_remark(state: State, default: int, asked: int | None) -> None:
    model = state.model
    if model is None or not model.architecture.startswith("Qwen3VL") or asked is None:
        return
    if default < asked <= 512 and (state.flag("hopper") or gpus.is_hopper(state.text("gpu_name"))):
        state.remark(
            f"some Qwen3-VL launches on Hopper raise the decode graph maximum to "
            f"max_running_requests ({asked}); {default} is the value without that"
        )
