"""Every hand-checked scenario: ownership, findings, verdict and exit status."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from kvcanary_cli.attribution.report import Report
from kvcanary_cli.cli.replay import exit_code
from kvcanary_cli.report.finding_dict import finding_dict, ownership_dict
from tests.attribution.helpers import SCENARIOS, diagnose_path

if TYPE_CHECKING:
    from pathlib import Path

EXPECTED = sorted(SCENARIOS.glob("*.expected.json"))
# What a finding may say besides what a scenario fixes.
_NOT_FIXED = {"subtype_needs"}


def _report(expected: dict[str, Any], backend: str = "cpu") -> Report:
    path = SCENARIOS / expected["trace"]
    paths = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    return Report.of([diagnose_path(p, backend) for p in paths])


def _assert_culprit(found: dict[str, Any], expected: dict[str, Any]) -> None:
    expected = dict(expected)
    also_ok = expected.pop("req_also_ok", [])
    assert found["req"] in [expected.pop("req"), *also_ok]
    found = {name: value for name, value in found.items() if name != "req"}
    assert found == expected


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("path", EXPECTED, ids=lambda p: p.name.split("_")[0])
def test_scenario(path: Path, backend: str) -> None:
    expected = json.loads(path.read_text(encoding="utf-8"))
    report = _report(expected, backend)

    owned = [ownership_dict(o) for d in report.traces for o in d.ownership]
    assert owned == expected["ownership"]

    found = [finding_dict(f) for f in report.findings]
    assert len(found) == len(expected["findings"])
    for one, wanted in zip(found, expected["findings"], strict=True):
        for name, value in wanted.items():
            if name == "culprit":
                _assert_culprit(one["culprit"], value)
            elif name not in _NOT_FIXED:
                assert one[name] == value, name
        assert one.get("cause_window") == wanted.get("cause_window")

    assert report.verdict == expected["verdict"]
    assert exit_code(report, exit_zero=False) == expected["exit_code"]


def test_every_class_but_the_exoneration_has_a_scenario() -> None:
    from kvcanary_cli.attribution.result import CLASSES

    named = {json.loads(p.read_text(encoding="utf-8"))["class"] for p in EXPECTED}
    assert named == set(CLASSES) - {"not_corruption"}
