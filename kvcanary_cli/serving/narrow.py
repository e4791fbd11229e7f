"""Capacities that are known although one of their inputs is not.

A capacity is a maximum: an unknown input that cannot be the largest does not matter. The request
pool is bounded without knowing the memory, because the server never estimates more than 4096
requests and never gives more than were asked for (SPEC_SERVING_ARGS 3.3).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcanary_cli.serving.versions import parse_version

if TYPE_CHECKING:
    from kvcanary_cli.serving.values import CapacityPart, Resolution

LARGEST_ESTIMATE = 4096
FIRST_WITH_BOUNDED_POOL = (0, 5, 10)
"""First version in which the estimate bounds the request pool."""
_ENTRIES = "per_forward_write_entry_capacity"
_POOL = "req_to_token_pool_size"


def narrowed(resolution: Resolution, parts: tuple[CapacityPart, ...]) -> tuple[CapacityPart, ...]:
    """The parts, the entry capacity with its value where the request pool cannot decide it."""
    return tuple(
        _entries(resolution, part) if part.name == _ENTRIES and part.unknown == (_POOL,) else part
        for part in parts
    )


def _entries(resolution: Resolution, part: CapacityPart) -> CapacityPart:
    if parse_version(resolution.version).release < FIRST_WITH_BOUNDED_POOL:
        return part
    pool = largest_pool(resolution)
    rows = max(pool, int(resolution.value("cuda_graph_max_bs") or 0))
    draft = max(1, int(resolution.value("speculative_num_draft_tokens") or 0))
    limit, chunk = resolution.value("max_prefill_tokens"), resolution.value("chunked_prefill_size")
    tokens = int(limit) if chunk is None or chunk < 0 else min(int(limit), int(chunk))
    if rows * draft > tokens:
        return part
    return replace(
        part,
        value=tokens,
        source=f"formula; the request pool holds {pool} at most, which does not decide",
        unknown=(),
    )


def largest_pool(resolution: Resolution) -> int:
    """Most rows that the request pool can have, whatever the memory."""
    asked = resolution.value("requested_max_running_requests")
    if asked is None:
        return LARGEST_ESTIMATE
    return max(1, int(asked) // max(1, int(resolution.value("attn_dp_size", 1) or 1)))
