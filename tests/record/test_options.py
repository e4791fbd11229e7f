"""Options: their ranges, and their way through the environment."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcanary_cli.errors import UsageError
from kvcanary_cli.record.options import KV_HASH, TOKENS, RecordOptions, from_env, to_env


@given(
    st.builds(
        RecordOptions,
        path=st.just("/x/run.kvtrace"),
        tokens=st.sampled_from(TOKENS),
        kv_hash=st.sampled_from(KV_HASH),
        kv_hash_every=st.integers(1, 9),
        max_bytes=st.integers(0, 1 << 40),
        ring_bytes=st.integers(0, 1 << 40),
        start_after=st.integers(0, 99),
        queue_bytes=st.integers(1, 1 << 30),
    )
)
def test_options_come_through_the_environment(options: RecordOptions) -> None:
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
        {"ring_bytes": -1},
        {"start_after": 1.5},
    ],
)
def test_values_out_of_range_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        RecordOptions(**{"path": "run.kvtrace", **bad})


@pytest.mark.parametrize("text", ["[]", "{", '{"unknown": 1}'])
def test_a_broken_environment_is_refused(text: str) -> None:
    env = {"KVCANARY_RECORD": "/x/run.kvtrace", "KVCANARY_RECORD_OPTIONS": text}
    with pytest.raises(UsageError, match="KVCANARY_RECORD_OPTIONS"):
        from_env(env)
