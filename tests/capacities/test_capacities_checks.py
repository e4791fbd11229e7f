"""Capacity checks: at the limit silent, one above it the server's exact text and a way out."""

from __future__ import annotations

import pytest

from kvcanary_cli.capacities import (
    batch_size_flag,
    check_batch_size,
    check_padded_batch_size,
    check_plan_rows,
    check_token_count,
    check_verify_entries,
)


def test_everything_fits_at_the_limit() -> None:
    assert check_batch_size(batch_size=8, capacity=8) is None
    assert check_token_count(num_tokens=64, capacity=64) is None
    assert check_padded_batch_size(batch_size=8, capacity=8) is None
    assert check_plan_rows(write_req_capacity=4096) is None
    assert check_verify_entries(total_entries=30, capacity=30) is None


@pytest.mark.parametrize(
    ("version", "flag"),
    [
        (None, "--cuda-graph-max-bs-decode"),
        ("0.5.23", "--cuda-graph-max-bs-decode"),
        ("0.5.20", "--cuda-graph-max-bs-decode"),
        ("0.5.20.post1", "--cuda-graph-max-bs-decode"),
        ("1.0", "--cuda-graph-max-bs-decode"),
        ("main", "--cuda-graph-max-bs-decode"),
        ("0.5.18", "--cuda-graph-max-bs"),
        ("v0.5.13", "--cuda-graph-max-bs"),
        ("0.5.13.post1", "--cuda-graph-max-bs"),
        ("0.5.19rc1", "--cuda-graph-max-bs"),
    ],
)
def test_batch_size_text_follows_the_version(version: str | None, flag: str) -> None:
    assert batch_size_flag(version) == flag
    violation = check_batch_size(batch_size=12, capacity=8, engine_version=version)
    assert violation is not None
    assert (violation.code, violation.what) == ("KVC-B03", "batch_size")
    assert (violation.actual, violation.capacity) == (12, 8)
    assert violation.message == (
        "kv-canary: forward_batch.batch_size=12 exceeds pre-allocated write_req_capacity=8; "
        f"raise {flag} or check CanaryLaunchCapacities.from_args"
    )
    assert violation.suggestion is not None
    assert (violation.suggestion.flag, violation.suggestion.value) == (flag, 12)


@pytest.mark.parametrize(
    ("chunk", "also"),
    [(None, ("--chunked-prefill-size",)), (50, ("--chunked-prefill-size",)), (-1, ()), (100, ())],
)
def test_token_count_names_every_option_that_is_too_small(
    chunk: int | None, also: tuple[str, ...]
) -> None:
    violation = check_token_count(num_tokens=100, capacity=64, chunked_prefill_size=chunk)
    assert violation is not None
    assert violation.message == (
        "kv-canary: forward_batch token count=100 exceeds pre-allocated write_entry_capacity=64; "
        "raise --chunked-prefill-size / --max-prefill-tokens or check "
        "CanaryLaunchCapacities.from_args"
    )
    assert violation.suggestion is not None
    assert violation.suggestion.flag == "--max-prefill-tokens"
    assert violation.suggestion.value == 100
    assert violation.suggestion.also == also


def test_padded_batch_and_plan_rows() -> None:
    padded = check_padded_batch_size(batch_size=9, capacity=8)
    assert padded is not None
    assert padded.message == (
        "kv-canary: per-forward batch size 9 exceeds static capacity 8; "
        "raise the buffer size in CanaryLaunchCapacities"
    )
    rows = check_plan_rows(write_req_capacity=5000)
    assert rows is not None
    assert rows.suggestion is not None
    assert rows.suggestion.value == 4096
    assert rows.message.endswith(
        "bs=4096 reqs per launch, got bs=5000. Bump _PLAN_BS_BLOCK_SIZE if real workloads need "
        "this."
    )


def test_verify_overflow_counts_forwards_in_the_text_and_entries_in_the_data() -> None:
    violation = check_verify_entries(total_entries=31, capacity=30, occurrences=4)
    assert violation is not None
    assert violation.actual == 31
    assert violation.message == (
        "kv-canary: per-forward verify skipped this step due to overflow (total=4, capacity=30); "
        "check ServerArgs / pool sizing"
    )
    assert violation.suggestion is not None
    # 3 x 11 = 33 entries hold 31; 3 x 10 would not.
    assert (violation.suggestion.flag, violation.suggestion.value) == ("--max-total-tokens", 11)
