"""The checks of ``check-capacities``: each limit against what one forward may bring."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcanary_cli.abi.constants import PLAN_ROWS_LIMIT, VERIFY_CAPACITY_FACTOR
from kvcanary_cli.capacities.checks import (
    CapacityViolation,
    check_batch_size,
    check_padded_batch_size,
    check_plan_rows,
    check_token_count,
    verify_overflow_text,
)
from kvcanary_cli.serving.bounds import at_least, at_most
from kvcanary_cli.serving.check_memory import (
    DEFAULT_RING_CAPACITY,
    RING_CAPACITY,
    VERIFY_TOKEN_ASSERT,
    variable,
)
from kvcanary_cli.serving.check_result import Check, Status
from kvcanary_cli.serving.demand import most_requests, row_alignment, sharing_limit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvcanary_cli.serving.check_result import MemoryUse
    from kvcanary_cli.serving.demand import Demand, Demands
    from kvcanary_cli.serving.values import CapacityPart, Resolution

SCATTER_LIMIT = 511
"""Requests of one token scatter: 512 offsets."""
HEALTH_PERIOD = 100
"""Steps between two checks that every launch tag ran."""


def run_checks(
    resolution: Resolution,
    parts: tuple[CapacityPart, ...],
    demands: Demands,
    memory: MemoryUse,
    violations: int = 0,
) -> tuple[Check, ...]:
    """All checks in the order of the report; refusals last.

    Args:
        resolution: What the server makes of its arguments.
        parts: The three capacities.
        demands: What one forward may bring.
        memory: What the canary takes.
        violations: Violation lines that a log holds, for the ring.
    """
    verify, rows, entries = parts
    checks = [
        _batch_size(resolution, rows, demands),
        _padded_batch_size(resolution, rows, demands),
        _token_count(resolution, entries, demands),
        _plan_rows(rows),
        _verify_entries(resolution, verify, demands),
        *_token_scatter(resolution, demands),
        _ring(resolution, violations),
        *_sweep(resolution),
        _memory(memory),
        *_refusals(resolution),
    ]
    return tuple(checks)


def _missing(part: CapacityPart) -> str:
    if part.unknown:
        return f"unknown: {', '.join(part.unknown)}"
    return "the canary refuses an input"


def _compare(
    resolution: Resolution,
    code: str,
    name: str,
    part: CapacityPart,
    demand: Demand | None,
    violation: CapacityViolation | None,
    cause: str,
) -> Check:
    """A check of a demand against a capacity."""
    bound = at_least(resolution, part) if part.value is None and part.unknown else None
    most = at_most(resolution, part) if part.value is None and part.unknown else None
    if most is not None and demand is not None and violation is not None:
        return Check(
            code=code,
            name=name,
            status=Status.FAILS,
            limit=most,
            demand=demand.value,
            demand_source=demand.source,
            cause=f"at most {most} fit, whatever {' and '.join(part.unknown)} is",
            message=violation.message.replace(f"capacity={most}", f"capacity=N, N at most {most}"),
        )
    if bound is not None and demand is not None and demand.value <= bound:
        return Check(
            code=code,
            name=name,
            status=Status.OK,
            limit=bound,
            demand=demand.value,
            demand_source=demand.source,
            cause=f"at least {bound} fit, whatever {' and '.join(part.unknown)} is",
        )
    if part.value is None or demand is None:
        cause = _missing(part) if part.value is None else cause
        return Check(
            code=code,
            name=name,
            status=Status.UNKNOWN,
            limit=part.value,
            demand=None if demand is None else demand.value,
            demand_source="" if demand is None else demand.source,
            cause=cause,
        )
    return Check(
        code=code,
        name=name,
        status=Status.OK if violation is None else Status.FAILS,
        limit=part.value,
        demand=demand.value,
        demand_source=demand.source,
        cause=cause,
        message="" if violation is None else violation.message,
    )


def _batch_size(resolution: Resolution, part: CapacityPart, demands: Demands) -> Check:
    demand = demands.largest("batch_size")
    violation = None
    cause = "requests never exceed the request pool"
    if demand is None:
        cause = f"unknown demand: {demands.unknown.get('batch_size', '')}"
    limit = part.value if part.value is not None else at_most(resolution, part)
    if demand is not None and limit is not None:
        violation = check_batch_size(
            batch_size=demand.value, capacity=limit, engine_version=resolution.version
        )
        if violation is not None:
            cause = _batch_cause(resolution, part)
    return _compare(resolution, "KVC-B03", "batch_size", part, demand, violation, cause)


def _batch_cause(resolution: Resolution, part: CapacityPart) -> str:
    graph = resolution.value("cuda_graph_max_bs")
    pool = resolution.value("req_to_token_pool_size")
    if part.source != "formula":
        return f"the server allocated {part.value} rows ({part.source})"
    return f"capacity is max(cuda_graph_max_bs {graph}, request pool {pool})"


def _padded_batch_size(resolution: Resolution, part: CapacityPart, demands: Demands) -> Check:
    demand = demands.largest("padded_batch_size")
    violation = None
    alignment = row_alignment(resolution)
    cause = "batches are not padded beyond it"
    if alignment > 1:
        cause = f"padded to multiples of the attention TP size {alignment}"
    if demand is None:
        cause = f"unknown demand: {demands.unknown.get('padded_batch_size', '')}"
    limit = part.value if part.value is not None else at_most(resolution, part)
    if demand is not None and limit is not None:
        violation = check_padded_batch_size(
            batch_size=demand.value, capacity=limit, engine_version=resolution.version
        )
        if violation is not None and alignment == 1:
            cause = _batch_cause(resolution, part)
    return _compare(resolution, "KVC-B05", "padded_batch_size", part, demand, violation, cause)


def _token_count(resolution: Resolution, part: CapacityPart, demands: Demands) -> Check:
    demand = demands.largest("tokens")
    chunk = resolution.value("chunked_prefill_size")
    missing = demands.unknown.get("tokens")
    violation = None
    cause = "a chunk never exceeds max_prefill_tokens"
    limit = part.value if part.value is not None else at_most(resolution, part)
    if demand is not None and limit is not None:
        violation = check_token_count(
            num_tokens=demand.value, capacity=limit, chunked_prefill_size=chunk
        )
    if violation is not None:
        cause = _token_cause(resolution, demand)
    elif missing is not None:
        # The worst case is not known, and what was seen says nothing about what may come.
        return Check(
            code="KVC-B04",
            name="token_count",
            status=Status.UNKNOWN,
            limit=part.value,
            demand=None if demand is None else demand.value,
            demand_source="" if demand is None else demand.source,
            cause=f"the longest prefill is unknown: {missing} is",
        )
    elif resolution.value("disaggregation_mode") == "decode":
        cause = "a decode server runs no prefill"
    elif chunk is None or chunk <= 0:
        cause = "chunking is off, and the longest prompt fits"
    adaptive = resolution.given.get("speculative_adaptive")
    if violation is None and adaptive is not None and adaptive.value is True:
        cause += "; adaptive speculation may bring more draft tokens than were counted"
    return _compare(resolution, "KVC-B04", "token_count", part, demand, violation, cause)


def _token_cause(resolution: Resolution, demand: Demand | None) -> str:
    chunk = resolution.value("chunked_prefill_size")
    limit = resolution.value("max_prefill_tokens")
    if demand is not None and demand.observed:
        return (
            f"seen at {demand.source}; capacity counts min(max_prefill_tokens {limit}, "
            f"chunked_prefill_size {chunk})"
        )
    if chunk is None or chunk <= 0:
        return f"chunking is off and a prompt may be longer than max_prefill_tokens {limit}"
    if resolution.value("enable_dynamic_chunking"):
        return f"dynamic chunking grows a chunk beyond {min(chunk, limit or chunk)} tokens"
    return f"chunked_prefill_size {chunk} is larger than max_prefill_tokens {limit}"


def _plan_rows(part: CapacityPart) -> Check:
    violation = None if part.value is None else check_plan_rows(write_req_capacity=part.value)
    return Check(
        code="KVC-C02",
        name="plan_rows",
        status=Status.UNKNOWN
        if part.value is None
        else (Status.OK if violation is None else Status.FAILS),
        limit=PLAN_ROWS_LIMIT,
        demand=part.value,
        demand_source="write_req capacity",
        cause=_missing(part) if part.value is None else "a plan runs over all rows of the capacity",
        message="" if violation is None else violation.message,
    )


def _verify_entries(resolution: Resolution, part: CapacityPart, demands: Demands) -> Check:
    demand = demands.largest("verify_entries")
    requests = most_requests(resolution, demands.items)
    most = sharing_limit(resolution, requests)
    failed = demand is not None and part.value is not None and demand.value > part.value
    cause = f"unknown: {demands.unknown.get('verify_entries', '')}"
    if part.value is not None:
        cause = _sharing_cause(resolution, part.value, requests, most)
    if failed:
        cause = f"the server allocated {part.value} entries ({part.source})"
    message = verify_overflow_text(occurrences=1, capacity=part.value or 0) if failed else ""
    status = Status.UNKNOWN if demand is None or part.value is None else Status.OK
    return Check(
        code="KVC-B08",
        name="verify_entries",
        status=Status.FAILS if failed else status,
        limit=part.value,
        demand=None if demand is None else demand.value,
        demand_source="" if demand is None else demand.source,
        cause=cause,
        message=message,
    )


def _sharing_cause(
    resolution: Resolution, capacity: int, requests: int | None, most: int | None
) -> str:
    if resolution.value("disable_radix_cache"):
        return "prefixes are not shared: the radix cache is off"
    if most is not None and most <= capacity:
        return f"never: {requests} requests of full context are {most} entries"
    return (
        f"overflows only if requests share prefixes {VERIFY_CAPACITY_FACTOR}-fold on average "
        "over a full pool"
    )


def _token_scatter(resolution: Resolution, demands: Demands) -> Iterator[Check]:
    if not variable(resolution, VERIFY_TOKEN_ASSERT, 0):
        return
    demand = demands.largest("batch_size")
    failed = demand is not None and demand.value > SCATTER_LIMIT
    size = 0 if demand is None else demand.value + 1
    yield Check(
        code="KVC-E06",
        name="token_scatter",
        status=Status.UNKNOWN if demand is None else Status.FAILS if failed else Status.OK,
        limit=SCATTER_LIMIT,
        demand=None if demand is None else demand.value,
        demand_source="" if demand is None else demand.source,
        cause=f"{VERIFY_TOKEN_ASSERT} is on",
        message=f"kv-canary: scatter_req_token_ids bs+1={size} exceeds "
        f"BATCH_BLOCK={SCATTER_LIMIT + 1}; bump _SCATTER_BATCH_BLOCK if real workloads need this"
        if failed
        else "",
    )


def _ring(resolution: Resolution, violations: int) -> Check:
    rows = variable(resolution, RING_CAPACITY, DEFAULT_RING_CAPACITY)
    if rows <= 0:
        return Check(
            code="KVC-A09",
            name="ring",
            status=Status.FAILS,
            limit=rows,
            demand=1,
            demand_source="one violation",
            cause=f"{RING_CAPACITY} must be positive",
            message=f"kv-canary: ViolationLog ring_capacity must be positive, got {rows}",
        )
    cause = "a full ring counts on and loses detail only"
    if violations >= rows:
        cause = f"{violations} violations were logged: further ones were counted without detail"
    return Check(
        code="KVC-V00",
        name="ring",
        status=Status.OK,
        limit=rows,
        demand=violations or None,
        demand_source="violation lines of the log" if violations else "",
        cause=cause,
    )


def _sweep(resolution: Resolution) -> Iterator[Check]:
    interval = int(resolution.value("kv_canary_sweep_interval", 0) or 0)
    if interval <= 0:
        return
    failed = interval > HEALTH_PERIOD
    step = first_stalled_step(interval) if failed else 0
    groups = ("FULL", "SWA") if int(resolution.value("buffer_groups", 1) or 1) > 1 else ("FULL",)
    tags = ", ".join(f"'SWEEP_K_{group}'" for group in groups)
    yield Check(
        code="KVC-R01",
        name="sweep_interval",
        status=Status.FAILS if failed else Status.OK,
        limit=HEALTH_PERIOD,
        demand=interval,
        demand_source=resolution.source("kv_canary_sweep_interval"),
        cause=f"every {HEALTH_PERIOD} steps each launch tag must have run",
        message="kv-canary: kernel_run_counter did not increase since previous check for "
        f"tags=[{tags}] at step={step}; canary path is not executing"
        if failed
        else "",
    )


def first_stalled_step(interval: int) -> int:
    """Step at which the health check first finds no sweep in its last 100 steps.

    Sweeps run at step 1 and every ``interval`` steps after; the check reports one step late.
    """
    window_end = 2 * HEALTH_PERIOD
    while True:
        begin = window_end - HEALTH_PERIOD
        # Number of the first sweep after the window's begin.
        sweeps = -(-begin // interval)
        if 1 + sweeps * interval > window_end:
            return window_end + 1
        window_end += HEALTH_PERIOD
        if window_end > HEALTH_PERIOD * (interval + 2):
            return window_end + 1


def _memory(memory: MemoryUse) -> Check:
    total = memory.total
    if total is None or memory.available is None:
        cause = (
            "unknown: workspace and buffers" if total is None else "unknown: memory that is left"
        )
        status = Status.UNKNOWN
    else:
        cause = f"left beside weights and KV cache: {memory.available_source}"
        status = Status.FAILS if total > memory.available else Status.OK
    return Check(
        code="",
        name="memory",
        status=status,
        limit=memory.available,
        demand=total,
        demand_source="workspace + buffers + ring",
        cause=cause,
        message="the canary's buffers do not fit: the server would run out of GPU memory"
        if status is Status.FAILS
        else "",
    )


def _refusals(resolution: Resolution) -> Iterator[Check]:
    for refusal in resolution.refusals:
        if refusal.code == "KVC-A09":
            # The ring has a check of its own.
            continue
        cause = refusal.source if refusal.when == "start" else f"{refusal.source}, {refusal.when}"
        yield Check(
            code=refusal.code,
            name="refused",
            status=Status.FAILS if refusal.certain else Status.UNKNOWN,
            cause=cause,
            message=refusal.message,
        )
