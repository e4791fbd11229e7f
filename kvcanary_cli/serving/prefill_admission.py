"""How many new tokens one prefill forward may bring (SPEC_SERVING_ARGS 0.2).

The way in which the scheduler spends its two budgets changed with the release that introduced the
canary: before, max_prefill_tokens capped a batch; since, with chunking on, it only ends admission
once it is used up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvcanary_cli.serving.versions import Release

FIRST_WITH_CHUNK_BUDGET: Release = (0, 5, 13)


def admitted_tokens(
    release: Release,
    lengths: Iterable[int],
    *,
    max_prefill_tokens: int,
    chunked_prefill_size: int | None,
) -> int:
    """New tokens of the first prefill batch that waiting requests make.

    Args:
        release: Version of the rules.
        lengths: Uncached tokens of the waiting requests, in queue order.
        max_prefill_tokens: M.
        chunked_prefill_size: C; None or negative = not chunked.
    """
    chunk = chunked_prefill_size
    if chunk is not None and chunk < 0:
        chunk = None
    refuses_long = release < FIRST_WITH_CHUNK_BUDGET or chunk is None
    taken = 0
    for length in lengths:
        left = max_prefill_tokens - taken
        if taken and (left <= 0 or (refuses_long and length >= left)):
            break
        if chunk is None:
            taken += length
            continue
        part = min(length, chunk - taken)
        if part <= 0:
            break
        taken += part
        if part < length:
            break
    return taken


def largest_prefill(
    *,
    max_prefill_tokens: int,
    chunked_prefill_size: int | None,
    longest_prompt: int | None,
    dynamic_chunking: bool = False,
    pp_size: int = 1,
) -> int | None:
    """Largest number of new tokens that one prefill forward can bring, 0.5.13 and later.

    Args:
        max_prefill_tokens: M.
        chunked_prefill_size: C after the DP division; None or negative = not chunked.
        longest_prompt: Longest uncached prompt, or None if there is no bound.
        dynamic_chunking: ``--enable-dynamic-chunking``, which counts with several pipeline stages.
        pp_size: Pipeline stages.

    Returns:
        Tokens, or None if nothing bounds them.
    """
    if chunked_prefill_size is None or chunked_prefill_size < 0:
        if longest_prompt is None:
            return None
        # The first request is admitted whole; others join while they fit below M.
        return max(longest_prompt, max_prefill_tokens)
    if dynamic_chunking and pp_size > 1:
        grown = -(-5 * chunked_prefill_size // 4)
        return max(chunked_prefill_size, max_prefill_tokens, grown)
    return chunked_prefill_size
