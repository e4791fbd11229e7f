"""Launch capacities: where they come from, and what a recorded batch does to them."""

from __future__ import annotations

from typing import Any

import pytest

from kvcanary_cli.errors import UsageError
from kvcanary_cli.replay.capacity_limits import (
    NOT_CHECKED,
    parse_capacity_option,
    with_overrides,
)
from kvcanary_cli.replay.options import Mode
from kvcanary_cli.replay.result import Capacities, CapacityFinding
from tests.replay.helpers import Event, header, numbered, replay

SMALL = Capacities(verify=6, write_req=3, write_entry=6, source="--capacity")


def _batch(step: int, count: int, prefix: int, written: int, **extra: Any) -> list[Event]:
    """``count`` requests that each write ``written`` tokens behind ``prefix``."""
    events: list[Event] = []
    slots = {r: list(range(1 + 4 * r, 5 + 4 * r)) for r in range(count)}
    if prefix == 0:
        events += [
            {"kind": "map", "row": r + 1, "start": 0, "slots": slots[r]} for r in range(count)
        ]
    place = slice(prefix, prefix + written)
    forward = {
        "kind": "forward",
        "step": step,
        "forward_mode": "EXTEND",
        "reqs": [f"r{r}" for r in range(count)],
        "req_pool_indices": [r + 1 for r in range(count)],
        "seq_lens": [prefix + written] * count,
        "input_ids": [10 + p for _ in range(count) for p in range(prefix, prefix + written)],
        "positions": list(range(prefix, prefix + written)) * count,
        "out_cache_loc": [slot for r in range(count) for slot in slots[r][place]],
        "extend_prefix_lens": [prefix] * count,
        "extend_seq_lens": [written] * count,
    }
    return [*events, forward | extra]


def _padded(step: int, rows: int, raw: int | None) -> list[Event]:
    """An idle decode batch of ``rows`` padding rows."""
    event = {"kind": "forward", "step": step, "forward_mode": "DECODE", "reqs": [None] * rows}
    event |= {name: [0] * rows for name in ("req_pool_indices", "input_ids", "positions")}
    event |= {"seq_lens": [1] * rows, "out_cache_loc": [0] * rows}
    return [event if raw is None else event | {"raw_bs": raw}]


def _findings(
    events: list[Event], capacities: Capacities = SMALL, version: str | None = None, **options: Any
) -> list[tuple[int, str, str]]:
    engine = {"name": "sglang"} | ({} if version is None else {"version": version})
    result = replay(header(engine=engine), numbered(events), capacities=capacities, **options)
    return [(f.step, f.violation.code, f.violation.message) for f in result.capacity_violations]


def test_a_batch_that_fits_exactly_is_fine() -> None:
    result = replay(header(), numbered(_batch(1, 3, 0, 2)), capacities=SMALL)
    assert not result.capacity_violations
    assert result.verdict == "clean"


@pytest.mark.parametrize(
    ("version", "flag"),
    [
        (None, "--cuda-graph-max-bs-decode"),
        ("0.5.23", "--cuda-graph-max-bs-decode"),
        ("0.5.20", "--cuda-graph-max-bs-decode"),
        ("0.5.19", "--cuda-graph-max-bs"),
        ("0.5.12.post1", "--cuda-graph-max-bs"),
    ],
)
def test_batch_size_text_follows_the_engines_version(version: str | None, flag: str) -> None:
    events = [*_batch(1, 3, 0, 1), *_batch(2, 4, 0, 1)]
    assert _findings(events, version=version) == [
        (
            2,
            "KVC-B03",
            "kv-canary: forward_batch.batch_size=4 exceeds pre-allocated write_req_capacity=3; "
            f"raise {flag} or check CanaryLaunchCapacities.from_args",
        )
    ]


def test_token_count_text() -> None:
    assert _findings(_batch(4, 3, 0, 3)) == [
        (
            4,
            "KVC-B04",
            "kv-canary: forward_batch token count=9 exceeds pre-allocated write_entry_capacity=6; "
            "raise --chunked-prefill-size / --max-prefill-tokens or check "
            "CanaryLaunchCapacities.from_args",
        )
    ]


def test_padding_counts_only_against_the_static_capacity() -> None:
    found = _findings([*_padded(1, 3, 1), *_padded(2, 4, 2), *_padded(3, 5, 4)])
    assert [(step, code) for step, code, _ in found] == [
        (2, "KVC-B05"),
        (3, "KVC-B03"),
    ]
    assert found[0][2] == (
        "kv-canary: per-forward batch size 4 exceeds static capacity 3; "
        "raise the buffer size in CanaryLaunchCapacities"
    )


def test_verify_overflow_text_counts_its_forwards() -> None:
    events = [*_batch(1, 3, 0, 2), *_batch(2, 3, 2, 1), *_batch(3, 3, 3, 1), *_batch(5, 3, 3, 1)]
    text = (
        "kv-canary: per-forward verify skipped this step due to overflow "
        "(total={}, capacity=6); check ServerArgs / pool sizing"
    )
    assert _findings(events) == [
        (3, "KVC-B08", text.format(1)),
        (5, "KVC-B08", text.format(2)),
    ]


@pytest.mark.parametrize("rows", [4096, 4097])
def test_plan_rows_are_limited_whatever_the_batch(rows: int) -> None:
    capacities = Capacities(verify=None, write_req=rows, write_entry=None, source="x")
    found = _findings([*_batch(1, 1, 0, 1), *_batch(2, 1, 1, 1)], capacities)
    text = (
        "kv-canary: launch_canary_plan_kernels supports at most bs=4096 reqs per launch, got "
        "bs=4097. Bump _PLAN_BS_BLOCK_SIZE if real workloads need this."
    )
    assert found == ([] if rows == 4096 else [(1, "KVC-C02", text)])


def test_log_mode_verifies_what_would_not_have_fitted() -> None:
    events = [*_batch(1, 3, 0, 3), *_batch(2, 3, 3, 1)]
    result = replay(header(), numbered(events), capacities=SMALL)
    assert [f.violation.code for f in result.capacity_violations] == ["KVC-B04", "KVC-B08"]
    assert result.coverage.entries_verified == 9
    assert result.verdict == "capacity"


def test_strict_upstream_leaves_an_overflowing_forward_unverified() -> None:
    events = [*_batch(1, 3, 0, 3), *_batch(2, 3, 3, 1)]
    for event in events[-1:]:
        event["row_as_read"] = {"1": [2, 1, 3]}
    assert list(replay(header(), numbered(events), capacities=SMALL).violations)
    strict = replay(header(), numbered(events), capacities=SMALL, strict_upstream=True)
    assert not list(strict.violations)
    assert strict.coverage.entries_verified == 0
    assert strict.coverage.skip_reasons == {"verify plan overflow (KVC-B08)": 9}


@pytest.mark.parametrize(
    ("events", "stops"),
    [
        ([*_batch(1, 4, 0, 1), *_batch(2, 1, 1, 1)], 1),
        ([*_batch(1, 3, 0, 3), *_batch(2, 1, 3, 1)], 1),
        ([*_padded(1, 4, 1), *_padded(2, 1, 1)], 1),
        ([*_batch(1, 3, 0, 2), *_batch(2, 3, 2, 1), *_batch(3, 3, 3, 1)], None),
    ],
    ids=["B03", "B04", "B05", "B08"],
)
def test_raise_mode_stops_where_the_server_raises(events: list[Event], stops: int | None) -> None:
    result = replay(header(), numbered(events), capacities=SMALL, mode=Mode.RAISE)
    assert result.coverage.stopped_at_step == stops
    assert len(result.capacity_violations) == 1
    assert result.verdict == "capacity"


def test_unknown_capacities_are_not_checked() -> None:
    events = numbered(_batch(1, 8, 0, 4))
    assert not replay(header(), events).capacity_violations
    only_verify = Capacities(verify=5, write_req=None, write_entry=None, source="--capacity")
    events = numbered([*_batch(1, 8, 0, 3), *_batch(2, 8, 3, 1)])
    found = replay(header(), events, capacities=only_verify).capacity_violations
    assert [f.violation.code for f in found] == ["KVC-B08"]


def test_a_finding_names_its_forward() -> None:
    result = replay(header(), numbered(_batch(7, 4, 0, 1)), capacities=SMALL)
    finding = result.capacity_violations[0]
    assert isinstance(finding, CapacityFinding)
    assert (finding.step, finding.event, finding.forward_mode, finding.worker) == (
        7,
        4,
        "EXTEND",
        "target",
    )
    assert (finding.violation.actual, finding.violation.capacity) == (4, 3)
    suggestion = finding.violation.suggestion
    assert suggestion is not None
    assert suggestion.value == 4


def test_overrides_replace_single_numbers() -> None:
    base = Capacities(verify=300, write_req=16, write_entry=64, source="serving_args")
    changed = with_overrides(base, parse_capacity_option("write_req=3, write-entry=5"))
    assert (changed.verify, changed.write_req, changed.write_entry) == (base.verify, 3, 5)
    assert changed.source == "--capacity, serving_args"
    assert with_overrides(base, {}) is base
    assert with_overrides(NOT_CHECKED, {"verify": 9}).source == "--capacity"


@pytest.mark.parametrize(
    "text", ["", "verify", "verify=0", "verify=-1", "verify=x", "verify=\u00b2", "bs=3", "=4"]
)
def test_bad_overrides_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--capacity"):
        parse_capacity_option(text)
