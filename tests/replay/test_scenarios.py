"""Every hand-checked scenario: what its first violating step shows, on every backend."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvcanary_cli.replay.driver import replay_trace
from kvcanary_cli.replay.options import ReplayOptions
from kvcanary_cli.trace.reader import open_trace

SCENARIOS = Path(__file__).parents[1] / "data" / "scenarios"
EXPECTED = sorted(SCENARIOS.glob("*.expected.json"))
BACKENDS = ["cpu", "reference", "triton"]
FIELDS = ("step", "worker", "pool_kind", "check", "req", "slot", "position", "expected_position")


def _cells(violation: Any) -> dict[str, Any]:
    """The fields that a scenario fixes, of a violation or of its JSON form."""
    get = violation.get if isinstance(violation, dict) else lambda name: getattr(violation, name)
    cells = {name: get(name) for name in (*FIELDS, "role")}
    return cells | {"fail_reasons": list(get("fail_reasons"))}


def _traces(expected: dict[str, Any]) -> list[Path]:
    path = SCENARIOS / expected["trace"]
    return sorted(path.glob("*.jsonl")) if path.is_dir() else [path]


def test_every_scenario_trace_has_its_expectation() -> None:
    named = {path for e in EXPECTED for path in _traces(json.loads(e.read_text()))}
    assert named == set(SCENARIOS.rglob("*.jsonl"))
    assert len(EXPECTED) == 16


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("path", EXPECTED, ids=lambda p: p.name.split("_")[0])
def test_first_violating_step(path: Path, backend: str) -> None:
    expected = json.loads(path.read_text(encoding="utf-8"))
    for trace in _traces(expected):
        reader = open_trace(trace)
        result = replay_trace(reader, ReplayOptions(backend=backend))
        found = list(result.violations)
        first = min((v.step for v in found), default=None)

        assert first == expected["first_violation_step"]
        assert [_cells(v) for v in found if v.step == first] == [
            _cells(v) for v in expected["violations"]
        ]
        assert result.verdict == ("corrupt" if expected["violations"] else "clean")
        if expected["violations"]:
            assert expected["verdict"] == "corrupt"
            assert expected["exit_code"] == 1


@pytest.mark.parametrize("path", EXPECTED, ids=lambda p: p.name.split("_")[0])
def test_backends_agree_on_every_field(path: Path) -> None:
    for trace in _traces(json.loads(path.read_text(encoding="utf-8"))):
        results = [
            replay_trace(open_trace(trace), ReplayOptions(backend=name))
            for name in ("cpu", "reference")
        ]
        assert list(results[0].violations) == list(results[1].violations)
        assert results[0].coverage == results[1].coverage
        assert results[0].kernel_counters == results[1].kernel_counters
        assert results[0].slot_counters == results[1].slot_counters
