"""SARIF and JUnit: the findings of the JSON, whole and well-formed, and never green unchecked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as Xml

import pytest

from kvcanary_cli.attribution.diagnose import diagnose_trace
from kvcanary_cli.attribution.report import Failed, Report
from kvcanary_cli.replay.options import ReplayOptions
from kvcanary_cli.replay.result import Capacities
from kvcanary_cli.report.replay_json import json_parts
from kvcanary_cli.report.replay_junit import junit_parts
from kvcanary_cli.report.replay_sarif import sarif_parts
from kvcanary_cli.trace.reader import open_trace
from tests.attribution.events import HEAD, decode, extend, life, numbered
from tests.replay.helpers import UNCHECKED, MemoryReader

if TYPE_CHECKING:
    from syrupy.assertion import SnapshotAssertion

    from kvcanary_cli.trace.reader import TraceReader

SCENARIOS = sorted((Path(__file__).parents[1] / "data" / "scenarios").glob("*.jsonl"))
TIGHT = Capacities(verify=1, write_req=1, write_entry=1, source="--capacity")


def _report(
    reader: TraceReader | MemoryReader, capacities: Capacities = UNCHECKED, **options: Any
) -> Report:
    chosen = ReplayOptions(backend="cpu", **options)
    return Report.of([diagnose_trace(reader, chosen, capacities)])  # type: ignore[arg-type]


def _sarif(report: Report, code: int = 1) -> dict[str, Any]:
    (run,) = json.loads("".join(sarif_parts(report, code)))["runs"]
    found: dict[str, Any] = run
    return found


def _junit(report: Report) -> Xml.Element:
    return Xml.fromstring("".join(junit_parts(report)))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda p: p.name[:3])
def test_both_carry_the_findings_of_the_json(path: Path) -> None:
    report = _report(open_trace(path), TIGHT)
    whole = json.loads("".join(json_parts(report)))
    run, root = _sarif(report), _junit(report)
    capacity = whole["capacity_violations"]
    findings = [r["properties"] for r in run["results"] if "class" in r["properties"]]
    assert findings == whole["findings"]
    overflows = [r["ruleId"] for r in run["results"] if "capacity" in r["properties"]]
    assert overflows == [c["code"] for c in capacity]
    assert {r["ruleId"] for r in run["results"]} == {
        rule["id"] for rule in run["tool"]["driver"]["rules"]
    }
    failures = [failure.get("type") for failure in root.iter("failure")]
    assert failures == [*overflows, *(f["class"] for f in whole["findings"])]
    assert int(root.get("failures", "")) == len(failures)
    assert int(root.get("tests", "")) == len(list(root.iter("testcase")))


def test_sarif_as_it_is(snapshot: SnapshotAssertion) -> None:
    run = _sarif(_report(MemoryReader(HEAD, _use_after_free("B"))))
    run["tool"]["driver"]["version"] = "VERSION"
    for result in run["results"]:
        del result["properties"]
    assert run == snapshot


def test_junit_as_it_is(snapshot: SnapshotAssertion) -> None:
    assert "".join(junit_parts(_report(MemoryReader(HEAD, _use_after_free("B"))))) == snapshot


def _use_after_free(victim: str) -> list[dict[str, Any]]:
    return numbered(
        [
            *life(victim, [11, 12, 13], [1, 2, 3], row=1, step=1),
            {"kind": "free", "owner": victim, "slots": [1, 2, 3], "reason": "dedup"},
            *life("C", [31, 32, 33], [1, 2, 3], row=2, step=2),
            *decode(victim, 14, 4, row=1, position=3, step=3),
        ]
    )


@pytest.mark.parametrize("req", ["\ud800", "<a&b>", '"\\', "\x00", "\u2028", "\ufffe", "🐤", "]]>"])
def test_any_request_id_gives_what_can_be_read(req: str) -> None:
    report = _report(MemoryReader(HEAD, _use_after_free(req)))
    assert len(list(_junit(report).iter("failure"))) == 1
    (result,) = _sarif(report)["results"]
    assert result["properties"]["victim"]["req"] == req
    "".join([*sarif_parts(report, 1), *junit_parts(report)]).encode("ascii")


def test_violations_without_findings_are_told() -> None:
    events = _use_after_free("B")
    # At other positions, which upstream's canary sees, too.
    events[-5]["out_cache_loc"] = [3, 2, 1]
    report = _report(MemoryReader(HEAD, events), strict_upstream=True)
    assert report.traces[0].replay.violations
    assert not report.findings
    (result,) = _sarif(report)["results"]
    assert result["ruleId"] == "canary_violation"
    (failure,) = _junit(report).iter("failure")
    assert failure.get("message") == result["message"]["text"]


def test_what_was_not_checked_is_no_pass() -> None:
    clean = life("A", [11, 12], [1, 2], row=1, step=1)
    second = extend(2, "A", 1, 2, [13], [3])
    one = _report(MemoryReader(HEAD, numbered([*clean, second])))
    assert _junit(one).get("errors") == _junit(one).get("failures") == "0"
    failed = Failed(path="x.pt", message="x.pt: torn", hint=None, exit_code=4)
    both = Report.of(list(one.traces), failed=[failed])
    assert _junit(both).get("errors") == "1"
    (invocation,) = _sarif(both, 4)["invocations"]
    assert invocation["executionSuccessful"] is False
    assert invocation["exitCode"] == 4
    levels = [n["level"] for n in invocation["toolExecutionNotifications"]]
    assert levels.count("error") == 1


@pytest.mark.parametrize("beside", [False, True])
def test_a_trace_of_which_nothing_was_checked_is_no_pass(beside: bool) -> None:
    traces = list(_report(MemoryReader(HEAD, [])).traces)
    if beside:
        clean = numbered(life("A", [11, 12], [1, 2], row=1, step=1))
        traces += _report(MemoryReader(HEAD, clean)).traces
    report = Report.of(traces)
    assert report.verdict == "not_checked"
    assert _junit(report).get("errors") == "1"
    (invocation,) = _sarif(report, 5)["invocations"]
    assert invocation["executionSuccessful"] is False
    errors = [n for n in invocation["toolExecutionNotifications"] if n["level"] == "error"]
    assert [n["message"]["text"] for n in errors] == ["memory: nothing was checked"]
