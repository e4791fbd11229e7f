"""Requests that run at once, and the request table (SPEC_SERVING_ARGS 2.9, 3.3, 3.4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvcanary_cli.serving.versions import Release

_LEAST, _MOST = 2048, 4096
_FIRST_WITH_STATE_CAP: Release = (0, 5, 2)
_SMALL_POOL = 32
_INPUT_MARGIN = 5


@dataclass(frozen=True, slots=True)
class RequestPool:
    """Sizes per DP worker.

    Attributes:
        size: R, rows of the request table without padding.
        max_running: max_running_requests in effect.
        rule: How R came about, for people.
        needs_tokens: Fewest KV tokens for which R holds; 0 if it does not depend on them, or if
            they were known.
    """

    size: int
    max_running: int
    rule: str
    needs_tokens: int = 0


def estimate_requests(tokens: int, context_len: int) -> int:
    """Requests that the server expects to fit: 512 per context of KV cache, 2048 to 4096."""
    return max(min(int(tokens / context_len * 512), _MOST), _LEAST)


def request_pool(
    release: Release,
    *,
    tokens: int | None,
    context_len: int | None,
    requested: int | None,
    dp_size: int = 1,
    state_cap: int | None = None,
) -> RequestPool | None:
    """R and max_running_requests.

    Args:
        release: Version of the rules.
        tokens: T, or None if unknown.
        context_len: ctx, or None if unknown; read only without ``requested``.
        requested: max_running_requests after the speculation default, all workers together;
            None = none.
        dp_size: Attention DP size.
        state_cap: Requests for which there is state memory (hybrid models), or None.

    Returns:
        The sizes, or None if they depend on something unknown.
    """
    pool = (
        _requested_pool(release, tokens, context_len, requested, dp_size)
        if requested is not None
        else _estimated_pool(release, tokens, context_len)
    )
    if pool is None or state_cap is None or release < _FIRST_WITH_STATE_CAP:
        return pool
    if state_cap >= pool.size:
        return pool
    return RequestPool(
        state_cap,
        min(pool.max_running, state_cap),
        f"rule 3.3: state memory for {state_cap} requests",
        pool.needs_tokens if pool.needs_tokens <= 2 * state_cap else 2 * state_cap,
    )


def _requested_pool(
    release: Release, tokens: int | None, context_len: int | None, requested: int, dp_size: int
) -> RequestPool | None:
    per_worker = requested // dp_size
    share = f"{requested}" if dp_size == 1 else f"{requested} // dp {dp_size}"
    if release < (0, 5, 10):
        size = requested + 1 if release < (0, 4, 7) else requested
        plus = " + 1" if release < (0, 4, 7) else ""
        return RequestPool(size, min(per_worker, size), f"rule 3.3: {requested}{plus}")
    if release >= (0, 5, 23):
        per_worker = max(1, per_worker)
    if release < (0, 5, 14):
        if per_worker <= _LEAST:
            return RequestPool(per_worker, per_worker, f"rule 3.3: {share}")
        if tokens is None or context_len is None:
            return None
        size = min(per_worker, estimate_requests(tokens, context_len))
        return RequestPool(size, size, f"rule 3.3: min({share}, estimate)")
    if tokens is None:
        return RequestPool(per_worker, per_worker, f"rule 3.3: {share}", 2 * per_worker)
    size = min(per_worker, tokens // 2)
    return RequestPool(size, size, f"rule 3.3: min({share}, {tokens} // 2)")


def _estimated_pool(
    release: Release, tokens: int | None, context_len: int | None
) -> RequestPool | None:
    if tokens is None or context_len is None:
        return None
    estimate = estimate_requests(tokens, context_len)
    rule = f"rule 3.3: estimate of {tokens} tokens over context {context_len}"
    if release < (0, 5, 10):
        size = estimate + 1 if release < (0, 4, 7) else estimate
        return RequestPool(size, min(tokens // 2, size), rule)
    size = min(estimate, tokens // 2)
    return RequestPool(size, size, rule)


def state_slots_per_request(
    *, radix_cache: bool, strategy: str | None, overlap: bool
) -> int | None:
    """State slots that one request of a hybrid model takes.

    Args:
        radix_cache: The prefix cache is on.
        strategy: ``no_buffer``, ``extra_buffer``, ``extra_buffer_lazy``; ``auto`` or None = the
            server chooses, which is not known.
        overlap: Overlap scheduling is on.
    """
    if not radix_cache:
        return 1
    if strategy == "no_buffer":
        return 3
    if strategy == "extra_buffer_lazy":
        return 4
    if strategy == "extra_buffer":
        return 5 if overlap else 4
    return None


def extra_request_rows(
    release: Release,
    *,
    mode: str,
    size: int,
    requested: bool,
    extra_slots: int | None,
    preallocated: int = 0,
) -> int:
    """Rows that a PD decode server allocates in advance; they never count in R.

    Args:
        release: Version of the rules.
        mode: Disaggregation mode.
        size: R.
        requested: max_running_requests was given.
        extra_slots: ``--disaggregation-decode-extra-slots`` or None.
        preallocated: ``SGLANG_DISAGGREGATION_NUM_PRE_ALLOCATE_REQS``.
    """
    if mode != "decode":
        return 0
    if release < (0, 5, 16):
        if size <= _SMALL_POOL:
            return 2 * size
        return preallocated if release >= (0, 5, 10) else 0
    if extra_slots is not None:
        return extra_slots
    return 2 * size if requested and size <= _SMALL_POOL else 0


def request_table_columns(
    release: Release,
    *,
    context_len: int,
    draft_tokens: int,
    num_steps: int | None,
    topk: int | None,
    page_size: int,
    uno: bool = False,
) -> int:
    """Width of the request table in tokens.

    Args:
        release: Version of the rules.
        context_len: ctx.
        draft_tokens: D; 0 without speculation.
        num_steps: Speculation steps or None.
        topk: Speculation topk or None.
        page_size: Tokens per page.
        uno: The algorithm is UNO, which counts as paged.
    """
    if release < (0, 5, 0):
        return context_len + 4
    extra = 4 + draft_tokens
    if release < (0, 5, 13) or draft_tokens == 0:
        return context_len + extra
    width = topk or 1
    tree = page_size > 1 and width > 1
    alloc = max((num_steps or 0) * width, draft_tokens)
    if tree:
        alloc = -(-alloc // page_size) * page_size
    reserve = 2 * alloc
    if release < (0, 5, 16):
        return context_len + (max(extra, reserve) if tree else extra)
    if page_size > 1 or (uno and release >= (0, 5, 20)):
        extra = max(extra, reserve + page_size - 1)
    return context_len + extra


def input_limit(*, tokens: int, context_len: int) -> int:
    """Longest input that the server takes, as its refusal states it."""
    return min(context_len - 1, tokens - 1) - _INPUT_MARGIN


def tokens_from_input_limit(limit: int, *, context_len: int) -> int | None:
    """T from the limit that a refused input states; None if the context was the limit."""
    return limit + _INPUT_MARGIN + 1 if limit < context_len - _INPUT_MARGIN - 1 else None
