"""KV-cache tokens from memory, and back (SPEC_SERVING_ARGS 3.1, 3.2)."""

from __future__ import annotations

from dataclasses import dataclass

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class KvTokens:
    """Size of the KV pool.

    Attributes:
        tokens: T; zero or below = the server does not start.
        profiled: Tokens that memory allows, before the cap.
        capped: ``max_total_tokens`` was the limit.
    """

    tokens: int
    profiled: int
    capped: bool


def rest_gib(*, before: float, after: float, fraction: float, reserved: float = 0.0) -> float:
    """Memory for the KV cache on one rank, GiB.

    Args:
        before: Available before the weights were loaded.
        after: Available after.
        fraction: mem_fraction_static.
        reserved: Taken beforehand (multimodal caches).
    """
    return after - before * (1 - fraction) - reserved


def smallest_fraction(*, before: float, after: float) -> float:
    """mem_fraction_static at and below which nothing is left for the KV cache."""
    return 1 - after / before


def split_state_memory(rest: float, ratio: float) -> tuple[float, float]:
    """Memory of a hybrid model's KV cache and of its states, GiB.

    Args:
        rest: Memory for both.
        ratio: mamba_full_memory_ratio, states over KV cache.
    """
    states = rest * ratio / (1 + ratio)
    return rest - states, states


def tokens_from_memory(
    rest: float, cell_bytes: int, *, max_total_tokens: int | None = None, page_size: int = 1
) -> KvTokens:
    """T from memory.

    Args:
        rest: Memory for the KV cache, GiB.
        cell_bytes: Bytes per token and rank.
        max_total_tokens: ``--max-total-tokens`` or None.
        page_size: Tokens per page; T is rounded down to it.
    """
    profiled = int(rest * GIB / cell_bytes) if rest > 0 else 0
    capped = max_total_tokens is not None and max_total_tokens < profiled
    tokens = max_total_tokens if capped and max_total_tokens is not None else profiled
    return KvTokens(tokens // page_size * page_size, profiled, capped)


def cell_from_sizes(*, kv_gib: float, tokens: int) -> float:
    """Bytes per token and rank from a 'KV Cache is allocated' line; rounded as the line is."""
    return kv_gib * GIB / tokens


def swa_tokens(full_tokens: int, ratio: float, page_size: int) -> int:
    """Slots of the sliding-window pool beside ``full_tokens`` of the full pool."""
    return int(full_tokens * ratio) // page_size * page_size


def tokens_from_usage(used_tokens: int, usage: float) -> int | None:
    """T from a batch line's token count and usage; usage has two decimals, so it is an estimate."""
    return round(used_tokens / usage) if usage > 0 else None
