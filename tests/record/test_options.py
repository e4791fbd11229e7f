"""Options: their ranges, and their way through the environment."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcanary_cli.cli.record import _bytes, _ring
from kvcanary_cli.errors import UsageError
from kvcanary_cli.record.options import (
    KV_HASH,
    TOKENS,
    TRIGGERS,
    RecordOptions,
    from_env,
    to_env,
)

_HASHES = st.just(("none", 1)) | st.tuples(st.sampled_from(KV_HASH[1:]), st.integers(1, 9))


@given(
    _HASHES,
    st.fixed_dictionaries(
        {
            "tokens": st.sampled_from(TOKENS),
            "max_bytes": st.integers(0, 1 << 40),
            "ring_bytes": st.integers(1, 1 << 40),
            "ring_seconds": st.integers(0, 1 << 20),
            "triggers": st.lists(st.sampled_from(TRIGGERS), unique=True).map(tuple),
            "start_after": st.integers(0, 99),
            "queue_bytes": st.integers(1, 1 << 30),
        }
    ),
)
def test_options_come_through_the_environment(
    hashes: tuple[str, int], others: dict[str, Any]
) -> None:
    kv_hash, every = hashes
    options = RecordOptions(path="/x/run.kvtrace", kv_hash=kv_hash, kv_hash_every=every, **others)
    assert from_env(to_env(options)) == options


def test_a_relative_path_means_the_same_in_every_process() -> None:
    env = to_env(RecordOptions(path="run.kvtrace"))
    assert env["KVCANARY_RECORD"] == os.path.join(os.getcwd(), "run.kvtrace")


@pytest.mark.parametrize("env", [{}, {"KVCANARY_RECORD": ""}])
def test_without_a_path_nothing_is_recorded(env: dict[str, str]) -> None:
    assert from_env(env) is None


def test_the_path_alone_is_enough() -> None:
    assert from_env({"KVCANARY_RECORD": "/x/run.kvtrace"}) == RecordOptions(path="/x/run.kvtrace")


@pytest.mark.parametrize(
    "bad",
    [
        {"path": "run"},
        {"tokens": "plain"},
        {"kv_hash": "some"},
        {"kv_hash_every": 0},
        {"kv_hash_every": 2},
        {"ring_bytes": -1},
        {"ring_seconds": 0.5},
        {"ring_bytes": 1, "triggers": ("luck",)},
        {"triggers": ("signal",)},
        {"start_after": 1.5},
    ],
)
def test_values_out_of_range_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        RecordOptions(**{"path": "run.kvtrace", **bad})


@pytest.mark.parametrize(
    ("text", "ring"),
    [
        ("512MiB", (512 << 20, 0)),
        ("2 GB", (2_000_000_000, 0)),
        ("1000", (1000, 0)),
        ("5M", (5_000_000, 0)),
        ("10min", (0, 600)),
        ("30s", (0, 30)),
        ("30 sec", (0, 30)),
        ("2h", (0, 7200)),
        (None, (0, 0)),
    ],
)
def test_a_ring_is_a_size_or_a_time(text: str | None, ring: tuple[int, int]) -> None:
    assert _ring(text) == ring


@pytest.mark.parametrize(
    "text", ["10m", "5 m", "-1s", "1.5h", "many", "", "10minutes", "0", "0s", "00 MiB"]
)
def test_other_rings_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--ring"):
        _ring(text)


@pytest.mark.parametrize("text", ["10min", "0", "0GB"])
def test_a_size_is_no_time_and_not_nothing(text: str) -> None:
    with pytest.raises(UsageError, match="--max-bytes"):
        _bytes(text, "--max-bytes")


@pytest.mark.parametrize("text", ["[]", "{", '{"unknown": 1}', '{"triggers": 1}'])
def test_a_broken_environment_is_refused(text: str) -> None:
    env = {"KVCANARY_RECORD": "/x/run.kvtrace", "KVCANARY_RECORD_OPTIONS": text}
    with pytest.raises(UsageError, match="KVCANARY_RECORD_OPTIONS"):
        from_env(env)
