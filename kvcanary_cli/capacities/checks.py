"""What does not fit in one forward, as data and in the server's own words (specification 4, 6.3).

The server raises on B03 to B05 and logs B08. Here each check returns the finding, so that a live
manager raises it and a replay records it and goes on.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvcanary_cli.abi.constants import PLAN_ROWS_LIMIT, VERIFY_CAPACITY_FACTOR

CURRENT_BATCH_SIZE_FLAG = "--cuda-graph-max-bs-decode"
OLD_BATCH_SIZE_FLAG = "--cuda-graph-max-bs"
_FIRST_VERSION_WITH_DECODE_FLAG = (0, 5, 20)


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """What to change so that the same forward would fit.

    Attributes:
        flag: Server option to raise.
        value: Smallest value that is enough.
        also: Further options that must be at least ``value`` as well.
        why: How the option reaches the limit, and what else helps.
    """

    flag: str
    value: int
    also: tuple[str, ...] = ()
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityViolation:
    """One forward that did not fit.

    Attributes:
        code: Catalogue code.
        what: ``batch_size``, ``token_count``, ``padded_batch_size``, ``plan_rows`` or
            ``verify_entries``.
        actual: What the forward brought.
        capacity: What fits.
        message: The server's text, word for word.
        suggestion: What to change, or None.
    """

    code: str
    what: str
    actual: int
    capacity: int
    message: str
    suggestion: Suggestion | None


def _version_tuple(version: str) -> tuple[int, ...]:
    numbers: list[int] = []
    for part in version.strip().removeprefix("v").split("."):
        digits = ""
        for char in part:
            if not char.isdigit():
                break
            digits += char
        if not digits:
            break
        numbers.append(int(digits))
        if len(digits) != len(part):
            break
    return tuple(numbers)


def batch_size_flag(engine_version: str | None = None) -> str:
    """Option that B03 names: ``--cuda-graph-max-bs`` before 0.5.20, the ``-decode`` form since.

    Args:
        engine_version: ``0.5.13``, ``0.5.12.post1``, ...; None or not a number = current.
    """
    numbers = _version_tuple(engine_version) if engine_version else ()
    if numbers and numbers < _FIRST_VERSION_WITH_DECODE_FLAG:
        return OLD_BATCH_SIZE_FLAG
    return CURRENT_BATCH_SIZE_FLAG


def _batch_size_suggestion(actual: int, engine_version: str | None) -> Suggestion:
    return Suggestion(
        flag=batch_size_flag(engine_version),
        value=actual,
        why="request capacity is the larger of this value and the request pool size "
        "(--max-running-requests)",
    )


def check_batch_size(
    *, batch_size: int, capacity: int, engine_version: str | None = None
) -> CapacityViolation | None:
    """KVC-B03: more requests than rows of the write plan."""
    if batch_size <= capacity:
        return None
    flag = batch_size_flag(engine_version)
    return CapacityViolation(
        code="KVC-B03",
        what="batch_size",
        actual=batch_size,
        capacity=capacity,
        message=f"kv-canary: forward_batch.batch_size={batch_size} exceeds pre-allocated "
        f"write_req_capacity={capacity}; raise {flag} or check CanaryLaunchCapacities.from_args",
        suggestion=_batch_size_suggestion(batch_size, engine_version),
    )


def check_token_count(
    *, num_tokens: int, capacity: int, chunked_prefill_size: int | None = None
) -> CapacityViolation | None:
    """KVC-B04: more tokens than expected-input entries.

    Args:
        num_tokens: Length of ``positions``.
        capacity: Entry capacity, max(max_bs * max(1, D), min(M, C)).
        chunked_prefill_size: Known C; negative = unlimited. None = unknown, then the suggestion
            names it along with M, because the smaller of the two is the limit.
    """
    if num_tokens <= capacity:
        return None
    chunk_is_wide = chunked_prefill_size is not None and (
        chunked_prefill_size < 0 or chunked_prefill_size >= num_tokens
    )
    return CapacityViolation(
        code="KVC-B04",
        what="token_count",
        actual=num_tokens,
        capacity=capacity,
        message=f"kv-canary: forward_batch token count={num_tokens} exceeds pre-allocated "
        f"write_entry_capacity={capacity}; raise --chunked-prefill-size / --max-prefill-tokens "
        "or check CanaryLaunchCapacities.from_args",
        suggestion=Suggestion(
            flag="--max-prefill-tokens",
            value=num_tokens,
            also=() if chunk_is_wide else ("--chunked-prefill-size",),
            why="entry capacity is max(max_bs * max(1, draft tokens), "
            "min(max_prefill_tokens, chunked_prefill_size))",
        ),
    )


def check_padded_batch_size(
    *, batch_size: int, capacity: int, engine_version: str | None = None
) -> CapacityViolation | None:
    """KVC-B05: the padded request list does not fit the plan input."""
    if batch_size <= capacity:
        return None
    return CapacityViolation(
        code="KVC-B05",
        what="padded_batch_size",
        actual=batch_size,
        capacity=capacity,
        message=f"kv-canary: per-forward batch size {batch_size} exceeds static capacity "
        f"{capacity}; raise the buffer size in CanaryLaunchCapacities",
        suggestion=_batch_size_suggestion(batch_size, engine_version),
    )


def check_plan_rows(*, write_req_capacity: int) -> CapacityViolation | None:
    """KVC-C02: the plan step, which runs over every row of the capacity, takes 4096 at most."""
    if write_req_capacity <= PLAN_ROWS_LIMIT:
        return None
    return CapacityViolation(
        code="KVC-C02",
        what="plan_rows",
        actual=write_req_capacity,
        capacity=PLAN_ROWS_LIMIT,
        message="kv-canary: launch_canary_plan_kernels supports at most "
        f"bs={PLAN_ROWS_LIMIT} reqs per launch, got bs={write_req_capacity}. "
        "Bump _PLAN_BS_BLOCK_SIZE if real workloads need this.",
        suggestion=Suggestion(
            flag="--max-running-requests",
            value=PLAN_ROWS_LIMIT,
            why="the row count is the request capacity, not the live batch; the captured decode "
            "batch must not be larger either",
        ),
    )


def verify_overflow_text(*, occurrences: int, capacity: int) -> str:
    """The warning of KVC-B08; its ``total`` counts the forwards that were skipped so far."""
    return (
        "kv-canary: per-forward verify skipped this step due to overflow "
        f"(total={occurrences}, capacity={capacity}); check ServerArgs / pool sizing"
    )


def check_verify_entries(
    *, total_entries: int, capacity: int, occurrences: int = 1
) -> CapacityViolation | None:
    """KVC-B08: the prefixes of all rows together are longer than the verify plan.

    Args:
        total_entries: Sum of the verify lengths of one group's active rows.
        capacity: Verify capacity, 3 x pool slots.
        occurrences: How many forwards overflowed so far, this one included.
    """
    if total_entries <= capacity:
        return None
    return CapacityViolation(
        code="KVC-B08",
        what="verify_entries",
        actual=total_entries,
        capacity=capacity,
        message=verify_overflow_text(occurrences=occurrences, capacity=capacity),
        suggestion=Suggestion(
            flag="--max-total-tokens",
            value=-(-total_entries // VERIFY_CAPACITY_FACTOR),
            why="no option sets the verify capacity: it is 3 x max_total_num_tokens; lowering "
            "--max-running-requests shortens the sum of prefixes instead",
        ),
    )
