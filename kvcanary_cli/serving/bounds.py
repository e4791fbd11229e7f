"""Bounds of a capacity that is not known: a maximum is bounded by what is known of its parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcanary_cli.serving.narrow import FIRST_WITH_BOUNDED_POOL, largest_pool
from kvcanary_cli.serving.versions import parse_version

if TYPE_CHECKING:
    from kvcanary_cli.serving.values import CapacityPart, Resolution

_ROWS = "per_forward_write_req_capacity"
_ENTRIES = "per_forward_write_entry_capacity"


def at_least(resolution: Resolution, part: CapacityPart) -> int | None:
    """A bound below a capacity that is not known: both are maxima, so each known part is one."""
    rows = [
        int(value)
        for name in ("cuda_graph_max_bs", "req_to_token_pool_size")
        if (value := resolution.value(name)) is not None
    ]
    if part.name == _ROWS:
        return max(rows, default=None)
    if part.name != _ENTRIES:
        return None
    draft = max(1, int(resolution.value("speculative_num_draft_tokens", 0) or 0))
    bounds = [max(rows) * draft] if rows else []
    limit, chunk = resolution.value("max_prefill_tokens"), resolution.value("chunked_prefill_size")
    if limit is not None and "chunked_prefill_size" in resolution.values:
        bounds.append(limit if chunk is None or chunk < 0 else min(limit, chunk))
    return max(bounds, default=None)


def at_most(resolution: Resolution, part: CapacityPart) -> int | None:
    """A bound above a capacity with unknown inputs, or None if there is none.

    A chunk only ever lowers what ``max_prefill_tokens`` allows, so that alone bounds the entries
    from above (SPEC_SERVING_ARGS 0); the request pool is bounded as in ``narrow``.
    """
    if part.value is not None or not part.unknown or part.name not in (_ROWS, _ENTRIES):
        return None
    graph = resolution.value("cuda_graph_max_bs")
    pool = resolution.value("req_to_token_pool_size")
    if pool is None and parse_version(resolution.version).release >= FIRST_WITH_BOUNDED_POOL:
        pool = largest_pool(resolution)
    if pool is None or "cuda_graph_max_bs" in part.unknown:
        return None
    rows = max(int(graph or 0), int(pool))
    if part.name == _ROWS:
        return rows
    limit = resolution.value("max_prefill_tokens")
    if limit is None or "speculative_num_draft_tokens" in part.unknown:
        return None
    draft = max(1, int(resolution.value("speculative_num_draft_tokens", 0) or 0))
    chunk = resolution.value("chunked_prefill_size")
    tokens = int(limit) if chunk is None or chunk < 0 else min(int(limit), int(chunk))
    return max(rows * draft, tokens)
