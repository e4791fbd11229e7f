"""How much one forward may bring: the worst case of the arguments, and what was observed.

The worst cases follow SPEC_SERVING_ARGS 0.2: what the scheduler of 0.5.13 and later can put into
one forward.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcanary_cli.serving.observed import Observations
    from kvcanary_cli.serving.values import Resolution

Quantity = Literal["batch_size", "padded_batch_size", "tokens", "verify_entries"]

#: A prompt is at most this much shorter than the context (SPEC_SERVING_ARGS 3.4).
_INPUT_RESERVE = 6
_DYNAMIC_CHUNK_FACTOR = 1.25


@dataclass(frozen=True, slots=True)
class Demand:
    """How much of something one forward brings.

    Attributes:
        quantity: What is counted.
        value: How much.
        source: Where the number comes from.
        observed: Whether it was seen, not derived.
    """

    quantity: Quantity
    value: int
    source: str
    observed: bool


@dataclass(frozen=True, slots=True)
class Demands:
    """All demands, and what could not be derived.

    Attributes:
        items: Demands.
        unknown: Quantity to what would have to be known for its worst case.
    """

    items: tuple[Demand, ...]
    unknown: dict[str, str] = field(default_factory=dict)

    def largest(self, quantity: Quantity) -> Demand | None:
        """The largest demand; an observed one if it is as large as the worst case."""
        found = [item for item in self.items if item.quantity == quantity]
        return max(found, key=lambda item: (item.value, item.observed), default=None)

    def of(self, quantity: Quantity) -> tuple[Demand, ...]:
        return tuple(item for item in self.items if item.quantity == quantity)


def observed_demands(name: str, seen: Observations, draft_tokens: int) -> list[Demand]:
    """Peaks of a log.

    Args:
        name: The log.
        seen: What it shows.
        draft_tokens: Tokens that each running request brings to a decode forward.
    """
    out: list[Demand] = []
    for peak in (seen.decode_requests, seen.prefill_requests):
        if peak is not None:
            out.append(Demand("batch_size", peak.value, peak.source, True))
    if seen.prefill_tokens is not None:
        peak = seen.prefill_tokens
        out.append(Demand("tokens", peak.value, peak.source, True))
    if seen.decode_requests is not None:
        peak = seen.decode_requests
        tokens = peak.value * max(1, draft_tokens)
        out.append(Demand("tokens", tokens, peak.source, True))
    quantities: tuple[tuple[str, Quantity], ...] = (
        ("KVC-B03", "batch_size"),
        ("KVC-B04", "tokens"),
        ("KVC-B05", "padded_batch_size"),
    )
    for code, quantity in quantities:
        error = seen.errors.get(code)
        if error is not None:
            source = f"{error.place} ({code} raised)"
            out.append(Demand(quantity, error.actual, source, True))
    return out


def stated_demands(*, peak_batch_size: int | None, peak_tokens: int | None) -> list[Demand]:
    """Demands of ``--peak-batch-size`` and ``--peak-tokens``."""
    out: list[Demand] = []
    if peak_batch_size is not None:
        out.append(Demand("batch_size", peak_batch_size, "--peak-batch-size", True))
    if peak_tokens is not None:
        out.append(Demand("tokens", peak_tokens, "--peak-tokens", True))
    return out


def all_demands(resolution: Resolution, observed: Sequence[Demand]) -> Demands:
    """Worst cases of these arguments and the observed demands."""
    items = list(observed)
    unknown: dict[str, str] = {}
    _batch_sizes(resolution, items, unknown)
    _tokens(resolution, items, unknown)
    _verify_entries(resolution, items, unknown)
    return Demands(tuple(items), unknown)


def running_limit(resolution: Resolution) -> int | None:
    """Most requests of one batch: the request pool, split over the pipeline's micro batches."""
    rows = resolution.value("req_to_token_pool_size")
    if rows is None:
        return None
    running = min(rows, resolution.value("max_running_requests", rows))
    pipeline = resolution.value("pp_size", 1) or 1
    return max(1, int(running) // int(pipeline))


def row_alignment(resolution: Resolution) -> int:
    """Multiple to which a batch is padded: the attention TP size under DP attention."""
    workers = int(resolution.value("attn_dp_size", 1) or 1)
    if workers <= 1:
        return 1
    return max(1, int(resolution.value("tp_size", 1) or 1) // workers)


def _batch_sizes(resolution: Resolution, items: list[Demand], unknown: dict[str, str]) -> None:
    running = running_limit(resolution)
    alignment = row_alignment(resolution)
    if running is None:
        unknown["batch_size"] = "req_to_token_pool_size"
        unknown["padded_batch_size"] = "req_to_token_pool_size"
    else:
        source = f"worst case: {running} running requests"
        items.append(Demand("batch_size", running, source, False))
    seen = [item for item in items if item.quantity == "batch_size"]
    if not seen:
        return
    largest = max(seen, key=lambda item: (item.value, item.observed))
    padded = -(-largest.value // alignment) * alignment
    why = f", padded to a multiple of {alignment}" if alignment > 1 else ""
    items.append(Demand("padded_batch_size", padded, f"{largest.source}{why}", largest.observed))


def longest_prompt(resolution: Resolution) -> int | None:
    """Longest uncached prompt that the server admits, or None if unknown."""
    bounds = []
    limit = resolution.given.get("max_req_input_len")
    if limit is not None and isinstance(limit.value, int):
        return limit.value
    context = resolution.value("context_length")
    slots = resolution.value("pool_slot_count")
    bounds = [bound - _INPUT_RESERVE for bound in (context, slots) if bound is not None]
    return max(1, min(bounds)) if context is not None else None


def _tokens(resolution: Resolution, items: list[Demand], unknown: dict[str, str]) -> None:
    running = running_limit(resolution)
    draft = max(1, int(resolution.value("speculative_num_draft_tokens", 0) or 0))
    if running is not None:
        what = f"worst case: {running} requests x {draft} token{'s' if draft > 1 else ''}"
        items.append(Demand("tokens", running * draft, what, False))
    branches = int(resolution.value("speculative_eagle_topk", 1) or 1)
    if running is not None and branches > draft:
        what = f"worst case: {running} requests x {branches} branches of a draft step"
        items.append(Demand("tokens", running * branches, what, False))
    if resolution.value("disaggregation_mode") == "decode":
        return
    chunk = resolution.value("chunked_prefill_size")
    limit = resolution.value("max_prefill_tokens")
    if "chunked_prefill_size" not in resolution.values or limit is None:
        unknown["tokens"] = "chunked_prefill_size"
        return
    prompt = longest_prompt(resolution)
    if chunk is None or chunk <= 0:
        if prompt is None:
            unknown["tokens"] = "context_length"
            return
        what = f"worst case: chunking off, one prompt of {prompt} tokens"
        items.append(Demand("tokens", prompt, what, False))
        return
    items.append(_chunk_demand(resolution, int(chunk), int(limit), prompt))


def _chunk_demand(resolution: Resolution, chunk: int, limit: int, prompt: int | None) -> Demand:
    if resolution.value("enable_dynamic_chunking") and int(resolution.value("pp_size", 1) or 1) > 1:
        largest = max(chunk, limit, math.ceil(_DYNAMIC_CHUNK_FACTOR * chunk))
        return Demand(
            "tokens", largest, f"worst case: dynamic chunking grows a chunk to {largest}", False
        )
    # Admission stops once max_prefill_tokens are taken; the request that crosses it is cut by the
    # chunk alone.
    bounded = chunk if prompt is None else min(chunk, limit - 1 + prompt)
    return Demand("tokens", bounded, f"worst case: one chunk of {bounded} tokens", False)


def _verify_entries(resolution: Resolution, items: list[Demand], unknown: dict[str, str]) -> None:
    slots = resolution.value("pool_slot_count")
    if slots is None:
        unknown["verify_entries"] = "pool_slot_count"
        return
    requests = most_requests(resolution, items)
    most = sharing_limit(resolution, requests)
    if most is not None and most < slots:
        what = f"worst case: {requests} requests of full context"
        items.append(Demand("verify_entries", most, what, False))
        return
    items.append(Demand("verify_entries", int(slots), "worst case: a full pool, read once", False))


def most_requests(resolution: Resolution, items: Sequence[Demand]) -> int | None:
    """Most requests of one batch: the limit of the arguments, or more if more were seen."""
    running = running_limit(resolution)
    seen = [item.value for item in items if item.quantity == "batch_size"]
    return None if running is None else max([running, *seen])


def sharing_limit(resolution: Resolution, running: int | None) -> int | None:
    """Verify entries of a batch whose requests all share one prefix of the whole context.

    Args:
        resolution: What the server makes of its arguments.
        running: Requests of the batch, or None if unknown.
    """
    context = resolution.value("context_length")
    if running is None or context is None:
        return None
    if resolution.value("disable_radix_cache"):
        slots = resolution.value("pool_slot_count")
        return None if slots is None else int(slots)
    return running * int(context)
