"""What could make one failing check pass: alternatives in order of preference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvcanary_cli.abi.constants import PLAN_ROWS_LIMIT, VERIFY_CAPACITY_FACTOR
from kvcanary_cli.serving.check_memory import (
    DEFAULT_RING_CAPACITY,
    RING_CAPACITY,
    VERIFY_TOKEN_ASSERT,
)
from kvcanary_cli.serving.checks import HEALTH_PERIOD, SCATTER_LIMIT
from kvcanary_cli.serving.graph_sizes import GENERATED_FROM_MAXIMUM, decode_sizes
from kvcanary_cli.serving.option_facts import DEFAULTS
from kvcanary_cli.serving.options import spelling_of
from kvcanary_cli.serving.versions import parse_version

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvcanary_cli.serving.check_result import Check, CheckReport
    from kvcanary_cli.serving.values import Resolution

#: Largest decode batch that anybody captures; sizes are looked up in the list up to here.
_LARGEST_CAPTURE = 8192


@dataclass(frozen=True, slots=True)
class Alternative:
    """Options with new values, and what they do."""

    values: tuple[tuple[str, Any], ...]
    why: str

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.values)


def alternatives(report: CheckReport, check: Check) -> tuple[Alternative, ...]:
    """Alternatives for a failing check that the version has flags for."""
    version = report.resolution.version
    ways = _WAYS.get(check.name)
    if ways is None:
        return ()
    return tuple(
        way
        for way in ways(report.resolution, check)
        if all(name.startswith("SGLANG_") or spelling_of(name, version) for name in way.names)
    )


def captured_size(resolution: Resolution, at_least: int) -> int:
    """Smallest size of the version's capture list that covers a batch."""
    sizes = decode_sizes(
        parse_version(resolution.version).release,
        max_bs=max(_LARGEST_CAPTURE, at_least),
        speculation=bool(resolution.value("speculative_num_draft_tokens", 0)),
    )
    return min((size for size in sizes if size >= at_least), default=at_least)


def graph_maximum(resolution: Resolution, size: int) -> tuple[str, Any]:
    """The option that decides the largest decode size in this launch, with ``size`` for it.

    JSON settings beat the single options, and a list of sizes beats a maximum; a plain maximum
    beside them would change nothing.
    """
    config = _passed(resolution, "cuda_graph_config")
    decode = config.get("decode") if isinstance(config, dict) else None
    part = decode if isinstance(decode, dict) else {}
    maximum = _passed(resolution, "cuda_graph_max_bs_decode")
    listed = _passed(resolution, "cuda_graph_bs_decode")
    list_counts = (maximum is None and part.get("max_bs") is None) or parse_version(
        resolution.version
    ).release >= GENERATED_FROM_MAXIMUM
    if isinstance(part.get("bs"), list) and part["bs"] and list_counts:
        new = {**part, "bs": _up_to(part["bs"], size)}
        if part.get("max_bs") is not None:
            new["max_bs"] = size
        return "cuda_graph_config", {**config, "decode": new}
    if isinstance(listed, list) and listed and list_counts:
        return "cuda_graph_bs_decode", _up_to(listed, size)
    if part.get("max_bs") is not None:
        return "cuda_graph_config", {**config, "decode": {**part, "max_bs": size}}
    return "cuda_graph_max_bs_decode", size


def _passed(resolution: Resolution, name: str) -> Any:
    """An option's value if somebody passed it; None if a running server resolved it."""
    item = resolution.given.get(name)
    return item.value if item is not None and item.kind in ("argument", "override") else None


def _up_to(sizes: list[int], largest: int) -> list[int]:
    return [*sorted(size for size in sizes if size < largest), largest]


def _workers(resolution: Resolution) -> int:
    return max(1, int(resolution.value("attn_dp_size", 1) or 1))


def _page_multiple(resolution: Resolution, value: int, *, up: bool) -> int:
    page = max(1, int(resolution.value("page_size", 1) or 1))
    return (-(-value // page) if up else value // page) * page


def _batch(resolution: Resolution, check: Check) -> Iterator[Alternative]:
    demand = check.demand or 0
    if demand > PLAN_ROWS_LIMIT:
        return
    size = captured_size(resolution, demand)
    yield Alternative(
        (graph_maximum(resolution, size),),
        f"request capacity is the larger of this and the request pool; {size} is the smallest "
        f"captured size that covers {demand}",
    )
    yield Alternative(
        (("max_running_requests", demand * _workers(resolution)),),
        f"a request pool of {demand} rows holds the batch",
    )


def _tokens(resolution: Resolution, check: Check) -> Iterator[Alternative]:
    demand = check.demand or 0
    limit = check.limit or 0
    chunk = resolution.value("chunked_prefill_size")
    prefill = int(resolution.value("max_prefill_tokens", 0) or 0)
    workers = _workers(resolution)
    unchunked = chunk is None or chunk <= 0
    needed = _page_multiple(resolution, demand, up=True)
    if unchunked or chunk >= demand:
        yield Alternative(
            (("max_prefill_tokens", max(demand, prefill)),),
            "the buffers then hold the largest prefill; with chunking on it only stops admission "
            "later",
        )
    else:
        values: list[tuple[str, Any]] = [("chunked_prefill_size", needed * workers)]
        if needed > prefill:
            values.append(("max_prefill_tokens", needed))
        yield Alternative(
            tuple(values),
            "the buffers hold the smaller of chunked_prefill_size and max_prefill_tokens",
        )
    yield from _more_rows(resolution, demand)
    smaller = _page_multiple(resolution, min(prefill, limit) or limit, up=False)
    observed = not check.demand_source.startswith("worst case")
    if smaller > 0 and (unchunked or chunk > smaller) and not observed:
        yield Alternative(
            (("chunked_prefill_size", smaller * workers),),
            "a chunk is then never larger than the buffers; prefill takes more steps",
        )
    if unchunked and limit and not observed:
        yield Alternative(
            (("context_length", limit),),
            "no prompt is then longer than the buffers; longer requests are refused",
        )


def _more_rows(resolution: Resolution, tokens: int) -> Iterator[Alternative]:
    """With speculation the buffers hold the rows of a batch times the draft tokens as well."""
    draft = int(resolution.value("speculative_num_draft_tokens", 0) or 0)
    if draft <= 1:
        return
    rows = -(-tokens // draft)
    size = captured_size(resolution, rows)
    if size <= PLAN_ROWS_LIMIT:
        yield Alternative(
            (graph_maximum(resolution, size),),
            f"the buffers hold {size} requests of {draft} draft tokens",
        )
    if rows <= PLAN_ROWS_LIMIT:
        yield Alternative(
            (("max_running_requests", rows * _workers(resolution)),),
            f"the buffers hold {rows} requests of {draft} draft tokens",
        )


def _plan_rows(resolution: Resolution, check: Check) -> Iterator[Alternative]:
    values: list[tuple[str, Any]] = []
    if int(resolution.value("cuda_graph_max_bs", 0) or 0) > PLAN_ROWS_LIMIT:
        values.append(graph_maximum(resolution, PLAN_ROWS_LIMIT))
    if int(resolution.value("req_to_token_pool_size", 0) or 0) > PLAN_ROWS_LIMIT:
        values.append(("max_running_requests", PLAN_ROWS_LIMIT * _workers(resolution)))
    if values:
        yield Alternative(tuple(values), f"the plan takes at most {PLAN_ROWS_LIMIT} rows")


def _verify(resolution: Resolution, check: Check) -> Iterator[Alternative]:
    demand = check.demand or 0
    slots = int(resolution.value("pool_slot_count", 0) or 0)
    running = int(resolution.value("req_to_token_pool_size", 0) or 0)
    if check.limit and demand:
        fewer = max(1, running * check.limit // demand)
        yield Alternative(
            (("max_running_requests", fewer * _workers(resolution)),),
            "fewer requests read fewer prefixes; the peak itself must be measured again",
        )
    needed = -(-demand // VERIFY_CAPACITY_FACTOR)
    if needed > slots:
        yield Alternative(
            (("max_total_tokens", needed),),
            f"the verify capacity is {VERIFY_CAPACITY_FACTOR} x KV slots, if the memory is there",
        )


def _scatter(resolution: Resolution, check: Check) -> Iterator[Alternative]:
    yield Alternative(
        (("max_running_requests", SCATTER_LIMIT * _workers(resolution)),),
        f"the token scatter takes at most {SCATTER_LIMIT} requests",
    )
    yield Alternative(
        ((VERIFY_TOKEN_ASSERT, False),), "stored tokens are then not compared with the text"
    )


def _sweep(resolution: Resolution, check: Check) -> Iterator[Alternative]:
    yield Alternative(
        (("kv_canary_sweep_interval", HEALTH_PERIOD),),
        f"each {HEALTH_PERIOD} steps then hold a sweep",
    )
    yield Alternative((("kv_canary_sweep_interval", 0),), "no sweeps, so none is missed")


def _ring(resolution: Resolution, check: Check) -> Iterator[Alternative]:
    yield Alternative(((RING_CAPACITY, DEFAULT_RING_CAPACITY),), "the default")


def _memory(resolution: Resolution, check: Check) -> Iterator[Alternative]:
    fraction = resolution.value("mem_fraction_static")
    total_mib = resolution.value("gpu_memory_mib")
    if fraction is None or not total_mib or check.demand is None or check.limit is None:
        return
    missing = (check.demand - check.limit) / (1 << 20) / float(total_mib)
    # A smaller pool needs smaller buffers as well, so this is more than enough.
    lower = int((float(fraction) - missing) * 1000) / 1000
    if lower > 0:
        yield Alternative(
            (("mem_fraction_static", lower),), "leaves the canary's memory beside the KV cache"
        )


def _refused(resolution: Resolution, check: Check) -> Iterator[Alternative]:
    yield from _REFUSALS.get(check.code, lambda _: iter(()))(resolution)


def _piecewise(resolution: Resolution) -> Iterator[Alternative]:
    why = "the canary does not go with piecewise prefill graphs; prefill runs without"
    yield Alternative((("cuda_graph_backend_prefill", "disabled"),), why)
    if spelling_of("cuda_graph_backend_prefill", resolution.version) is None:
        yield Alternative((("disable_piecewise_cuda_graph", True),), why)


def _nothing_there(resolution: Resolution) -> Iterator[Alternative]:
    """An input of the capacities that came out as 0."""
    pool = resolution.value("req_to_token_pool_size")
    asked = resolution.value("requested_max_running_requests")
    workers = _workers(resolution)
    if pool is not None and pool < 1 and asked is not None and asked < workers:
        yield Alternative(
            (("max_running_requests", workers),),
            f"each of the {workers} attention DP workers then runs a request"
            if workers > 1
            else "the server then runs a request",
        )
    if int(resolution.value("max_prefill_tokens", 1) or 0) < 1:
        yield Alternative((("max_prefill_tokens", DEFAULTS["max_prefill_tokens"]),), "the default")


def _captured_reference(resolution: Resolution) -> Iterator[Alternative]:
    yield Alternative(
        (("cuda_graph_backend_decode", "disabled"),),
        "this device has no canary kernels that a graph can hold; decode runs without graphs",
    )


def _sweep_without_canary(resolution: Resolution) -> Iterator[Alternative]:
    yield Alternative((("kv_canary", "log"),), "sweeps need the canary")
    yield Alternative((("kv_canary_sweep_interval", 0),), "no sweeps without the canary")


def _sweep_without_cache(resolution: Resolution) -> Iterator[Alternative]:
    yield Alternative(
        (("kv_canary_sweep_interval", 0),), "this server has no prefix cache to sweep"
    )


def _no_real_data(resolution: Resolution) -> Iterator[Alternative]:
    yield Alternative((("kv_canary_real_data", "none"),), "KV bytes are then not fingerprinted")


def _no_input_assert(resolution: Resolution) -> Iterator[Alternative]:
    name = "SGLANG_KV_CANARY_ENABLE_WRITE_INPUT_ASSERT"
    yield Alternative(((name, False),), "the assert needs the token oracle")


def _known_mode(resolution: Resolution) -> Iterator[Alternative]:
    yield Alternative((("kv_canary", "log"),), "log and raise are the modes that check")


_REFUSALS = {
    "KVC-A01": _known_mode,
    "KVC-A02": _sweep_without_canary,
    "KVC-A03": _piecewise,
    "KVC-A04": _captured_reference,
    "KVC-B01": _nothing_there,
    "KVC-A05": _no_real_data,
    "KVC-S08": _no_real_data,
    "KVC-W05": _no_input_assert,
    "KVC-Z01": _piecewise,
    "KVC-R06": _sweep_without_cache,
}

_WAYS = {
    "batch_size": _batch,
    "padded_batch_size": _batch,
    "token_count": _tokens,
    "plan_rows": _plan_rows,
    "verify_entries": _verify,
    "token_scatter": _scatter,
    "sweep_interval": _sweep,
    "ring": _ring,
    "memory": _memory,
    "refused": _refused,
}
