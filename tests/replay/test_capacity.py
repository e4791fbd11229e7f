"""Launch capacities: where they come from, and what a recorded batch does to them."""

from __future__ import annotations

from typing import Any

import pytest

from kvcanary_cli.errors import InputError, UsageError
from kvcanary_cli.replay.capacity import (
    NOT_CHECKED,
    from_serving_args,
    parse_capacity_option,
    with_overrides,
)
from kvcanary_cli.replay.options import Mode
from kvcanary_cli.replay.result import Capacities, CapacityFinding
from kvcanary_cli.trace.header import parse_header
from kvcanary_cli.trace.reader import open_trace
from tests.replay.helpers import Event, header, numbered, replay
from tests.tools.engine_state import CAPTURES

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


# Sources.


def _header(**changes: Any) -> Any:
    return parse_header(header(**changes), "test:1")


def _from(args: Event, **pool: int) -> Capacities:
    return from_serving_args(args, _header(pool=pool), source="serving_args", where="header")


def test_arguments_give_the_three_numbers() -> None:
    found = _from(
        {
            "max_running_requests": 16,
            "cuda_graph_max_bs": 24,
            "speculative_num_draft_tokens": 4,
            "max_prefill_tokens": 512,
            "chunked_prefill_size": 64,
        },
        slots=100,
    )
    assert (found.verify, found.write_req, found.write_entry) == (300, 24, 96)
    assert found.source == "serving_args"
    assert not found.notes


def test_dashes_and_underscores_are_the_same() -> None:
    dashed = {"--max-running-requests": 16, "cuda-graph-max-bs": 8, "chunked-prefill-size": 64}
    plain = {key.lstrip("-").replace("-", "_"): value for key, value in dashed.items()}
    assert _from(dashed) == _from(plain)
    assert _from(dashed).write_req == 16


def test_what_is_assumed_is_said() -> None:
    found = _from({"max_prefill_tokens": 512}, rows=9)
    assert found.write_req == 8
    assert found.write_entry == 512
    assert len(found.notes) == 3
    assert any("request pool size 8" in note for note in found.notes)
    assert any("chunked_prefill_size" in note for note in found.notes)


def test_the_newer_graph_argument_goes_before_the_older() -> None:
    args = {"cuda_graph_max_bs": 30, "cuda_graph_max_bs_decode": 20, "max_running_requests": 10}
    assert _from(args).write_req == 20


def test_unrelated_arguments_are_no_capacities() -> None:
    assert _from({"model_path": "m", "tp_size": 2}) is NOT_CHECKED
    assert not NOT_CHECKED.known


@pytest.mark.parametrize(
    "args",
    [
        {"max_running_requests": "8"},
        {"max_running_requests": True},
        {"chunked_prefill_size": 8.5},
        {"max_prefill_tokens": 0},
        {"max_running_requests": 0},
    ],
)
def test_arguments_that_the_server_refuses(args: Event) -> None:
    with pytest.raises(InputError, match="header: "):
        _from(args)


def test_overrides_replace_single_numbers() -> None:
    base = _from({"max_running_requests": 16})
    changed = with_overrides(base, parse_capacity_option("write_req=3, write-entry=5"))
    assert (changed.verify, changed.write_req, changed.write_entry) == (base.verify, 3, 5)
    assert changed.source == "--capacity, serving_args"
    assert with_overrides(base, {}) is base
    assert with_overrides(NOT_CHECKED, {"verify": 9}).source == "--capacity"


@pytest.mark.parametrize("text", ["", "verify", "verify=0", "verify=-1", "verify=x", "bs=3", "=4"])
def test_bad_overrides_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--capacity"):
        parse_capacity_option(text)


@pytest.mark.parametrize(
    "name", sorted(path.name.split(".")[0] for path in CAPTURES.glob("*.engine.npz"))
)
def test_recorded_servers_had_these_capacities(name: str) -> None:
    head = open_trace(CAPTURES / f"{name}.jsonl.zst").header
    assert head.serving_args is not None
    found = from_serving_args(head.serving_args, head, source="serving_args", where="header")
    engine = head.raw["canary"]
    assert (found.verify, found.write_req, found.write_entry) == (
        engine["verify_capacity"],
        engine["write_req_capacity"],
        engine["write_entry_capacity"],
    )
