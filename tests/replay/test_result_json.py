"""The JSON contract of ``replay``: keys, types, verdicts, several traces, the same bytes always."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kvcanary_cli.attribution.diagnose import diagnose_trace
from kvcanary_cli.attribution.report import Report
from kvcanary_cli.replay.options import ReplayOptions
from kvcanary_cli.replay.result import Capacities
from kvcanary_cli.report.log_lines import log_lines
from kvcanary_cli.report.replay_json import json_parts, jsonl_parts
from kvcanary_cli.trace.reader import open_trace
from tests.replay.helpers import UNCHECKED, MemoryReader, header, numbered

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcanary_cli.trace.reader import TraceReader

SCENARIOS = Path(__file__).parents[1] / "data" / "scenarios"
TIGHT = Capacities(verify=1, write_req=1, write_entry=1, source="--capacity")
HEX = re.compile(r"0x[0-9a-f]{16}\Z")

KEYS = {
    "schema_version": int,
    "tool": dict,
    "command": str,
    "trace": dict,
    "backend": dict,
    "capacities": dict,
    "capacity_violations": list,
    "violations": list,
    "ownership": list,
    "findings": list,
    "coverage": dict,
    "verdict": str,
}
VIOLATION_KEYS: dict[str, tuple[type, ...]] = {
    "step": (int,),
    "worker": (str,),
    "pool_kind": (str,),
    "launch_tags": (list,),
    "check": (str,),
    "slot": (int,),
    "position": (int,),
    "expected_position": (int,),
    "req": (str, type(None)),
    "row": (int, type(None)),
    "prev_slot": (int,),
    "stored_token": (int,),
    "expected_token": (int, type(None)),
    "stored_chain_hash": (str,),
    "expected_chain_hash": (str, type(None)),
    "stored_kv_hash": (str, type(None)),
    "expected_kv_hash": (str, type(None)),
    "fail_reasons": (list,),
    "role": (str,),
}
COVERAGE_KEYS = (
    "records",
    "blind_to",
    "steps",
    "entries_verified",
    "entries_skipped",
    "entries_written",
    "lost_events",
)
REASONS = {
    "verify_chain_hash",
    "verify_position",
    "verify_real_kv_hash",
    "verify_token",
    "write_token",
    "write_position",
}


def _report(
    readers: Sequence[TraceReader], capacities: Capacities = UNCHECKED, backend: str = "cpu"
) -> Report:
    options = ReplayOptions(backend=backend)
    return Report.of([diagnose_trace(reader, options, capacities) for reader in readers])


def _scenario(name: str) -> Path:
    return next(SCENARIOS.glob(f"{name}_*.jsonl"))


def _json(report: Report) -> Any:
    return json.loads("".join(json_parts(report)))


@pytest.mark.parametrize("name", ["S01", "S07", "S12", "S13", "S15", "S16", "S20"])
def test_keys_types_and_vocabulary(name: str) -> None:
    found = _json(_report([open_trace(_scenario(name))], TIGHT))
    assert {key: type(found[key]) for key in KEYS} == KEYS
    assert found["schema_version"] == 1
    assert found["command"] == "replay"
    assert found["tool"]["name"] == "kvcanary"
    assert set(found["trace"]) >= {"path", "sha256", "engine", "steps", "events", "requests"}
    assert re.fullmatch(r"[0-9a-f]{64}", found["trace"]["sha256"])
    assert set(found["backend"]) == {"name", "device"}
    assert found["capacities"]["per_forward_verify_capacity"] == 1
    assert found["capacities"]["source"] == "--capacity"
    assert set(COVERAGE_KEYS) <= set(found["coverage"])
    assert found["verdict"] == "corrupt"
    for violation in found["violations"]:
        for key, kinds in VIOLATION_KEYS.items():
            assert type(violation[key]) in kinds, key
            if key.endswith("_hash") and violation[key] is not None:
                assert HEX.match(violation[key]), key
        assert violation["check"] in ("verify", "input_assert", "chain_position")
        assert violation["role"] in ("primary", "seam")
        assert violation["fail_reasons"]
        assert set(violation["fail_reasons"]) <= REASONS
        assert violation["launch_tags"]
        assert "rank" not in violation
    for overflow in found["capacity_violations"]:
        assert set(overflow) >= {"code", "step", "what", "actual", "capacity", "message"}
        assert set(overflow["suggestion"]) >= {"flag", "value"}
        assert overflow["actual"] > overflow["capacity"]


def test_hashes_are_there_where_they_were_compared_and_null_elsewhere() -> None:
    with_kv = _json(_report([open_trace(_scenario("S13"))]))["violations"]
    assert [v["fail_reasons"] for v in with_kv if v["step"] == 5] != []
    kv = [v for v in with_kv if "verify_real_kv_hash" in v["fail_reasons"]]
    assert kv
    assert all(v["stored_kv_hash"] != v["expected_kv_hash"] for v in kv)
    without = _json(_report([open_trace(_scenario("S01"))]))["violations"]
    assert {v["stored_kv_hash"] for v in without} == {None}
    assert {v["expected_kv_hash"] for v in without} == {None}
    written = _json(_report([open_trace(_scenario("S15"))]))["violations"]
    writes = [v for v in written if v["check"] != "verify"]
    assert writes
    assert {v["expected_chain_hash"] for v in writes} == {None}


_CELLS: dict[str, Any] = {"kind": "map", "row": 1, "start": 0, "slots": [1, 2]}


def _one_forward(tokens: int) -> list[dict[str, Any]]:
    count = list(range(tokens))
    event: dict[str, Any] = {"kind": "forward", "step": 1, "forward_mode": "EXTEND"}
    event |= {"reqs": ["A"], "req_pool_indices": [1], "seq_lens": [tokens], "input_ids": count}
    event |= {"positions": count, "out_cache_loc": [1 + k for k in count]}
    return numbered([event | {"extend_prefix_lens": [0], "extend_seq_lens": [tokens]}])


@pytest.mark.parametrize(
    ("records", "events", "capacities", "verdict"),
    [
        (["forward", "map"], [_CELLS, *_one_forward(2)], UNCHECKED, "clean"),
        (["forward", "map"], _one_forward(2), UNCHECKED, "not_checked"),
        (["forward"], _one_forward(2), UNCHECKED, "not_checked"),
        (["forward"], _one_forward(2), TIGHT, "capacity"),
        (["forward", "map"], [], UNCHECKED, "not_checked"),
    ],
)
def test_verdicts(
    records: list[str], events: list[dict[str, Any]], capacities: Capacities, verdict: str
) -> None:
    head = header(records=records)
    found = _json(_report([MemoryReader(head, numbered(events))], capacities))
    assert found["verdict"] == verdict
    assert not found["violations"]
    if verdict == "clean":
        assert not found["findings"]
        assert not found["ownership"]
    if capacities is UNCHECKED:
        assert found["capacities"]["per_forward_verify_capacity"] is None
        assert found["capacities"]["source"] == "none"


def test_several_traces_carry_their_rank() -> None:
    paths = sorted((SCENARIOS / "S21_rank_divergence").glob("*.jsonl"))
    found = _json(_report([open_trace(path) for path in paths]))
    assert [cell["trace"]["path"] for cell in found["traces"]] == [str(path) for path in paths]
    assert found["verdict"] == "corrupt"
    both = [open_trace(_scenario("S01")), open_trace(_scenario("S03"))]
    found = _json(_report(both))
    assert found["violations"]
    assert all("rank" in violation for violation in found["violations"])
    assert found["coverage"]["steps"] == sum(
        _json(_report([open_trace(_scenario(name))]))["coverage"]["steps"]
        for name in ("S01", "S03")
    )


def test_lines_hold_the_same_as_the_object() -> None:
    report = _report([open_trace(_scenario("S01"))], TIGHT)
    whole = _json(report)
    lines = [json.loads(line) for line in "".join(jsonl_parts(report)).splitlines()]
    by_kind: dict[str, list[Any]] = {}
    for line in lines:
        by_kind.setdefault(line.pop("kind"), []).append(line)
    assert by_kind["violation"] == whole["violations"]
    assert by_kind["capacity_violation"] == whole["capacity_violations"]
    assert by_kind.get("finding", []) == whole["findings"]
    assert by_kind.get("ownership", []) == whole["ownership"]
    (summary,) = by_kind["summary"]
    assert lines[-1] is summary
    assert summary["verdict"] == whole["verdict"]
    assert summary["violations"] == len(whole["violations"])
    assert summary["coverage"] == whole["coverage"]


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.jsonl")), ids=lambda p: p.name[:3])
def test_the_same_bytes_on_every_run_and_backend(path: Path) -> None:
    def text(backend: str) -> str:
        report = _report([open_trace(path)], backend=backend)
        return "".join([*json_parts(report), *jsonl_parts(report), *log_lines(report)])

    first = text("cpu")
    assert text("cpu") == first
    assert text("reference").replace('"name": "reference"', '"name": "cpu"') == first


@pytest.mark.parametrize("req", ["\ud800", "[/x]", '"\\', "\x00", "\u2028", "🐤"])
def test_any_request_id_gives_json_that_can_be_written(req: str) -> None:
    events = _one_forward(3)
    events[0]["reqs"] = [req]
    events[0]["positions"] = [0, 1, 1]
    again = events[0] | {"i": 1, "step": 2, "forward_mode": "DECODE", "seq_lens": [3]}
    again |= {
        "positions": [2],
        "input_ids": [9],
        "out_cache_loc": [7],
        "row_as_read": {"1": [1, 9]},
    }
    del again["extend_prefix_lens"], again["extend_seq_lens"]
    report = _report([MemoryReader(header(records=["forward", "map"]), [*events, again])])
    encoded = "".join(json_parts(report)).encode("utf-8")
    assert {v["req"] for v in json.loads(encoded)["violations"]} == {req}
    for line in "".join(jsonl_parts(report)).encode("utf-8").split(b"\n")[:-1]:
        json.loads(line)


def test_log_lines_are_the_servers() -> None:
    report = _report([open_trace(_scenario("S01"))])
    lines = "".join(log_lines(report)).splitlines()
    assert len(lines) == sum(
        len(violation.launch_tags) for violation in report.traces[0].replay.violations
    )
    assert all(line.startswith("kv_canary violation: launch_tag=") for line in lines)
