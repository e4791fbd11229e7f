"""The header of a worker's recording: which rank it is, and what only its engine core knows."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from kvcanary_cli.record.secrets import scrub, scrub_text
from kvcanary_cli.record.vllm.header import (
    arguments_of,
    context_parallel,
    engine_version,
    not_recorded,
    rank_of,
)

if TYPE_CHECKING:
    from kvcanary_cli.record.vllm.pools import Pools

_GROUPS = "vllm.distributed.parallel_state"
_CORE_KNOWS = (
    "who owns blocks, prefix hits and ends of requests: the trace of the engine core "
    "(core-dp*.kvtrace) tells them"
)


def worker_header_of(
    config: Any, pools: Pools, *, has_fingerprints: bool, has_tokens: bool
) -> dict[str, Any]:
    """The header's fields.

    Args:
        config: The engine's configuration, as the worker has it.
        pools: The runner's.
        has_fingerprints: Whether KV bytes are fingerprinted.
        has_tokens: Whether tokens are recorded.
    """
    told = pools.group is not None and context_parallel(config) == 1
    # Without a connector all that moves is what the scheduler has the worker copy on write.
    families = ["forward", "map", "transfer"] if told else []
    families += ["history"] if told and has_tokens else []
    families += ["kv_hash"] if told and has_fingerprints else []
    return {
        "engine": {"name": "vllm", "version": engine_version()},
        "rank": {**rank_of(config), **_place()},
        "pool": pools.describe(),
        "records": families,
        "not_recorded": [scrub_text(what) for what in (_CORE_KNOWS, *not_recorded(config, pools))],
        "blind_to": [],
        "serving_args": scrub(arguments_of(config)),
    }


def _place() -> dict[str, int]:
    """Which rank this process is."""
    state = sys.modules[_GROUPS]
    groups = {"tp": state.get_tp_group(), "pp": state.get_pp_group()}
    return {axis: int(group.rank_in_group) for axis, group in groups.items()} | {
        f"{axis}_size": int(group.world_size) for axis, group in groups.items()
    }
