"""Which families a SGLang recording has, and why others are missing from it."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any

from kvcanary_cli.record.left_out import scales_of
from kvcanary_cli.record.sglang import KNOWN_VERSIONS

if TYPE_CHECKING:
    from kvcanary_cli.record.patching import Patcher
    from kvcanary_cli.record.sglang.pools import Pools

log = logging.getLogger("kvcanary.record")

_ALWAYS = ("forward", "map", "alloc", "request", "history", "prefix", "transfer", "namespace")
#: Algorithms that judge drafts through the one function that is watched.
_JUDGED = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM", "UNO")


def families(
    version: str,
    arguments: dict[str, Any],
    pools: Pools,
    patcher: Patcher,
    *,
    has_fingerprints: bool,
    has_tokens: bool,
    is_overlapped: bool,
    has_graphs: bool,
) -> list[str]:
    """The header's ``records``; what is left out although the engine has it is logged.

    Args:
        version: SGLang's.
        arguments: Its resolved serving arguments.
        pools: Its pools.
        patcher: The hooks.
        has_fingerprints: Whether KV bytes are fingerprinted.
        has_tokens: Whether tokens are recorded in some form.
        is_overlapped: Whether forwards are queued ahead of results.
        has_graphs: Whether batches may be replayed as captured graphs.
    """
    found = [
        *_ALWAYS,
        *(["lut"] if pools.lut is not None else []),
        *(["kv_hash"] if has_fingerprints else []),
        *(["launch"] if is_overlapped else []),
        *(["graph"] if has_graphs else []),
        *(["spec"] if arguments.get("speculative_algorithm") else []),
        *(["fork"] if _has_any(patcher, "fork") else []),
    ]
    if not has_tokens:
        # There is nothing that a history could say.
        found.remove("history")
    lost = _unplaced(version, patcher)
    if not pools.knows_allocator:
        lost["alloc"] = lost["prefix"] = f"allocator {type(pools.allocator).__name__}"
    lost |= _beyond(arguments, has_tokens=has_tokens)
    if version not in KNOWN_VERSIONS:
        log.warning(
            "kvcanary: SGLang %s is not a version that was tried (%s)",
            version,
            ", ".join(KNOWN_VERSIONS),
        )
    for family, why in lost.items():
        if family in found:
            found.remove(family)
            log.warning("kvcanary: '%s' is not recorded: %s", family, why)
    return found


def _has_any(patcher: Patcher, family: str) -> bool:
    unplaced = patcher.unplaced().values()
    return any(family in hook.families and hook not in unplaced for hook in patcher.hooks)


def _unplaced(version: str, patcher: Patcher) -> dict[str, str]:
    lost: dict[str, str] = {}
    for key, hook in patcher.unplaced().items():
        # A module that was never imported has nothing that could be called.
        if hook.module in sys.modules:
            why = patcher.missing.get(key, "not placed")
            log.warning("kvcanary: SGLang %s: no hook at %s: %s", version, key, why)
            lost |= dict.fromkeys(hook.families, key)
    return lost


def _beyond(arguments: dict[str, Any], *, has_tokens: bool) -> dict[str, str]:
    """What these arguments switch on that is not followed."""
    lost: dict[str, str] = {}
    if arguments.get("enable_hisparse"):
        lost["transfer"] = "sparse KV on the host is not followed"
    if arguments.get("enable_dp_attention"):
        lost["graph"] = "data-parallel attention pads batches that run without a graph, too"
    algorithm = arguments.get("speculative_algorithm")
    if algorithm and not has_tokens:
        lost["spec"] = "accepted drafts are told by their tokens"
    elif algorithm and str(algorithm).rpartition(".")[2].upper() not in _JUDGED:
        lost["spec"] = f"{algorithm} judges drafts in a way that is not followed"
    return lost


def not_recorded(arguments: dict[str, Any], *, has_graphs: bool) -> list[str]:
    """What of the engine's KV no family of the recording tells, in words.

    Args:
        arguments: SGLang's resolved serving arguments.
        has_graphs: Whether batches may be replayed as captured graphs.
    """
    left_out = []
    if arguments.get("speculative_draft_model_path"):
        # More than one token a row and step makes a tree.
        if int(arguments.get("speculative_eagle_topk") or 1) > 1:
            left_out.append("steps of the draft model that propose several tokens for a row")
        if has_graphs:
            left_out.append("steps of the draft model that run within a captured graph")
    storage = arguments.get("hicache_storage_backend")
    if storage:
        left_out.append(f"what the storage backend ({storage}) brings into the host's memory")
    if arguments.get("enable_hisparse"):
        left_out.append("sparse KV on the host")
    left_out += scales_of(arguments.get("kv_cache_dtype"))
    return left_out
