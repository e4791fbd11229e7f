"""Starts that the canary refuses, by version, in its own words (SPEC_SERVING_ARGS 5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcanary_cli.serving.kv_cell import ACCEPTED_POOLS, element_bytes, pool_class
from kvcanary_cli.serving.options import spelling_of
from kvcanary_cli.serving.refused_values import (
    REMOVED_COMPILED_GRAPH,
    check_kv_dtype,
    refuse_removed_graph,
)
from kvcanary_cli.serving.resolve_phases import PIECEWISE
from kvcanary_cli.serving.values import Refusal
from kvcanary_cli.serving.versions import FIRST_WITH_CANARY

if TYPE_CHECKING:
    from kvcanary_cli.serving.resolve_state import State

MODES = ("none", "log", "raise")
REAL_DATA_LEVELS = ("none", "partial", "all")

_PIECEWISE_HEAD = (
    "kv-canary: piecewise cuda graph is not supported by the current SingleForwardManager design; "
)
_ROW_ALIGNMENT = 16


def resolve_canary(state: State, platform: str) -> None:
    """Canary settings, pool class, buffer groups, and every refusal that follows from them."""
    _settings(state)
    _pool(state, platform)
    if state.get("kv_canary") == "none":
        _sweep_without_canary(state)
        return
    if state.release < FIRST_WITH_CANARY:
        state.remark(f"kv-canary exists since 0.5.13; {state.choice.rules} has none")
        return
    _bad_mode(state)
    _sweep_without_canary(state)
    _piecewise(state)
    _no_kernels(state, platform)
    _pool_class(state)
    _row_width(state)
    _sweep_cache(state)
    _oracle(state)
    _ring(state)


def _settings(state: State) -> None:
    for name, default in (("kv_canary", "none"), ("kv_canary_real_data", "none")):
        item = state.stated(name)
        value = state.text(name, default).strip().lower()
        if item is None or item.value is None:
            state.put(name, default, "default")
        else:
            state.put_stated(name, item, value)
    sweep = state.integer("kv_canary_sweep_interval")
    state.put_default("kv_canary_sweep_interval", "kv_canary_sweep_interval", sweep, 0)


def _pool(state: State, platform: str) -> None:
    item = state.final("pool_class")
    if item is not None:
        state.put_stated("pool_class", item, state.text("pool_class"))
    elif state.flag("prefill_only_disable_kv_cache"):
        state.put(
            "pool_class",
            "NoOpMHATokenToKVPool",
            state.given["prefill_only_disable_kv_cache"].source,
        )
    elif state.model is not None:
        dtype = state.text("kv_cache_dtype", "auto")
        chosen = pool_class(state.release, state.model, dtype, npu=platform == "npu")
        state.put(
            "pool_class", chosen, f"rule 5: {state.model.architecture or state.model.kind} model"
        )
    else:
        state.miss("pool_class", "the model is not known", "--model-config config.json")
    groups = state.final("canary_buffer_groups")
    if groups is not None:
        count = state.integer("canary_buffer_groups", least=1)
        state.put_stated("buffer_groups", groups, count)
    elif "pool_class" in state.values:
        two = state.get("pool_class") == "SWAKVPool"
        state.put("buffer_groups", 2 if two else 1, "rule 0.3", ("pool_class",))
    else:
        state.miss("buffer_groups", "the model is not known", "--model-config config.json")


def _where(state: State, name: str) -> str:
    item = state.stated(name)
    return item.source if item is not None else state.values[name].source


def _bad_mode(state: State) -> None:
    mode = state.get("kv_canary")
    if mode not in MODES:
        state.refuse(
            Refusal(
                "KVC-A01",
                f"kv-canary: kv_canary must be one of none/log/raise, got {mode!r}",
                _where(state, "kv_canary"),
                "use --kv-canary log or --kv-canary raise",
            )
        )
    level = state.get("kv_canary_real_data")
    if level not in REAL_DATA_LEVELS:
        state.refuse(
            Refusal(
                "KVC-A05",
                repr(level.upper()),
                _where(state, "kv_canary_real_data"),
                "use --kv-canary-real-data partial or all",
            )
        )


def _sweep_without_canary(state: State) -> None:
    if state.get("kv_canary_sweep_interval") > 0 and state.get("kv_canary") == "none":
        state.refuse(
            Refusal(
                "KVC-A02",
                "--kv-canary-sweep-interval requires --kv-canary in {log, raise}",
                _where(state, "kv_canary_sweep_interval"),
                "add --kv-canary log, or drop --kv-canary-sweep-interval",
            )
        )


def _piecewise(state: State) -> None:
    if state.release >= REMOVED_COMPILED_GRAPH:
        # The server itself refuses that back end, before the canary sees it.
        return
    if state.get("prefill_graph_backend") not in PIECEWISE:
        return
    old = state.release < (0, 5, 14)
    option = "--disable-piecewise-cuda-graph" if old else "--cuda-graph-backend-prefill=disabled"
    tail = (
        "pass --disable-piecewise-cuda-graph when canary is enabled"
        if old
        else "set --cuda-graph-backend-prefill=disabled (or =breakable) when canary is enabled"
    )
    source = state.values["prefill_graph_backend"].source
    by_default = source == "default"
    if by_default:
        source = f"default prefill graph of {state.choice.rules}"
        if state.model is None:
            source += "; a multimodal model would turn it off"
    state.refuse(
        Refusal(
            "KVC-Z01" if old else "KVC-A03",
            _PIECEWISE_HEAD + tail,
            source,
            f"add {option}",
            certain=not by_default or state.model is not None,
        )
    )


def _no_kernels(state: State, platform: str) -> None:
    stated = state.stated("device_has_kernels")
    lacks = platform in ("xpu", "npu", "musa", "cpu") if stated is None else not stated.value
    if not lacks or state.release < (0, 5, 23) or not state.get("decode_graph"):
        return
    state.refuse(
        Refusal(
            "KVC-A04",
            f"kv-canary: {platform} has no canary CUDA kernels and its torch reference cannot be "
            "graph-captured; pass --disable-cuda-graph (or --cuda-graph-backend-decode=disabled) "
            "when canary is enabled",
            f"platform {platform} with decode graphs",
            "add --cuda-graph-backend-decode=disabled",
        )
    )


def _pool_class(state: State) -> None:
    found = state.get("pool_class")
    if found is None or found in ACCEPTED_POOLS:
        return
    state.refuse(
        Refusal(
            "KVC-A06",
            f"kv-canary: no attacher registered for pool class {found}; "
            f"supported: {list(ACCEPTED_POOLS)}",
            state.values["pool_class"].source,
            "no flag helps: the canary runs with models that have plain or sliding-window "
            "attention pools; turn it off for this model (--kv-canary none)",
        )
    )


def _row_width(state: State) -> None:
    """Real data is read in words of 16 bytes, so a token's row must be a multiple of that."""
    model = state.model
    if state.get("kv_canary_real_data") == "none" or model is None:
        return
    if state.get("pool_class") not in ("MHATokenToKVPool", "MHATokenToKVPoolFP4", "SWAKVPool"):
        return
    elem = element_bytes(state.text("kv_cache_dtype", "auto"), model, state.text("dtype", "auto"))
    if elem is None:
        return
    if state.get("pool_class") == "MHATokenToKVPoolFP4":
        # The block scales lie in buffers of their own.
        elem = elem * 8 / 9
    heads = max(1, model.kv_heads // max(1, state.get("tp_size") // state.get("attn_dp_size")))
    for width in (model.head_dim, model.v_head_dim):
        row = int(heads * width * elem)
        if row <= 0 or row % _ROW_ALIGNMENT:
            state.refuse(
                Refusal(
                    "KVC-S08",
                    f"kv-canary: num_bytes_per_token must be a positive multiple of 16, got {row}",
                    f"{heads} heads * {width} * {elem} B per rank",
                    "use --kv-canary-real-data none, or fewer tensor parallel ranks",
                )
            )
            return


def _sweep_cache(state: State) -> None:
    if state.get("kv_canary_sweep_interval") <= 0:
        return
    decode = state.text("disaggregation_mode", "null") == "decode"
    if state.flag("disable_radix_cache"):
        source, fix = state.given["disable_radix_cache"].source, "drop --disable-radix-cache"
    elif decode and not state.flag("disaggregation_decode_enable_radix_cache"):
        source, fix = "a PD decode server has no prefix cache", "do not sweep on the decode server"
    else:
        return
    state.refuse(
        Refusal(
            "KVC-R06",
            "walk_radix_cache_for_canary does not support ChunkCache",
            source,
            f"{fix}, or set --kv-canary-sweep-interval 0",
            when="first sweep",
        )
    )


def _oracle(state: State) -> None:
    if not state.flag("SGLANG_KV_CANARY_ENABLE_WRITE_INPUT_ASSERT"):
        return
    if state.text("sampling_backend").lower() == "token_oracle":
        return
    state.refuse(
        Refusal(
            "KVC-W05",
            "kv-canary: enable_write_input_assert=True requires a TokenOracleManager; pass "
            "token_oracle_manager=install_oracle_sampler(oracle=...) into install_canary(...)",
            state.given["SGLANG_KV_CANARY_ENABLE_WRITE_INPUT_ASSERT"].source,
            "set SGLANG_KV_CANARY_ENABLE_TOKEN_ORACLE=1 and --sampling-backend token_oracle",
            when="first forward",
        )
    )


def _ring(state: State) -> None:
    ring = state.integer("SGLANG_KV_CANARY_RING_CAPACITY")
    if ring is not None and ring <= 0:
        state.refuse(
            Refusal(
                "KVC-A09",
                f"kv-canary: ViolationLog ring_capacity must be positive, got {ring}",
                state.given["SGLANG_KV_CANARY_RING_CAPACITY"].source,
                "set a positive SGLANG_KV_CANARY_RING_CAPACITY, 1024 is the default",
            )
        )


def server_refusals(state: State) -> None:
    """Starts that the server refuses by itself, canary or not (1.4, 2.2, 3.1, 3.2)."""
    refuse_removed_graph(state)
    check_kv_dtype(state)
    chunk, page = state.get("chunked_prefill_size"), state.get("page_size")
    decode = state.text("disaggregation_mode", "null") == "decode"
    if chunk is not None and chunk > 0 and page and chunk % page and not decode:
        state.refuse(
            Refusal(
                "",
                "chunked_prefill_size must be divisible by page_size",
                f"{chunk} ({state.values['chunked_prefill_size'].source}) and "
                f"page_size {page} ({state.values['page_size'].source})",
                f"set --chunked-prefill-size to a multiple of {page}",
            )
        )
    tokens = state.get("pool_slot_count")
    if tokens is not None and tokens <= 0:
        _no_memory(state)
    window = state.get("swa_pool_slot_count")
    size = state.model.window if state.model is not None else None
    if window is not None and size and page and 0 < window <= size + page:
        state.refuse(
            Refusal(
                "",
                f"SWA pool ({window} tokens) cannot hold even one request: ...",
                f"the pool must exceed window {size} + page {page}",
                "raise --swa-full-tokens-ratio or --mem-fraction-static",
            )
        )


def _no_memory(state: State) -> None:
    fraction = state.get("mem_fraction_static")
    shown = "..." if fraction is None else f"{fraction:g}"
    if state.release >= (0, 5, 18):
        text = (
            f"Loaded weights leave no GPU memory for the KV cache under "
            f"--mem-fraction-static={shown}. Raise --mem-fraction-static above ..."
        )
    else:
        text = (
            "Not enough memory. Please try to increase --mem-fraction-static. "
            f"Current value: {shown}"
        )
    option = spelling_of("mem_fraction_static", str(state.choice.rules))
    state.refuse(
        Refusal(
            "", text, state.values["pool_slot_count"].source, f"raise {option}, or use more GPUs"
        )
    )
