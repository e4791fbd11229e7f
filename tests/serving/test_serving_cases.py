"""The rules against 44 real launches: every check that agreed when recorded agrees here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.tools.run_serving_cases import Outcome, check_file, main

if TYPE_CHECKING:
    from collections.abc import Callable

CASES = Path(__file__).parents[1] / "data" / "serving_cases.json"
OUTCOMES = check_file(CASES)


@pytest.mark.parametrize(
    "outcome", OUTCOMES, ids=[f"{each.case}-{at}" for at, each in enumerate(OUTCOMES)]
)
def test_check_is_as_recorded(outcome: Outcome) -> None:
    assert outcome.verdict == outcome.recorded, str(outcome)


def test_counts_are_those_of_the_file() -> None:
    assert len({outcome.case for outcome in OUTCOMES}) == 44
    verdicts = [outcome.verdict for outcome in OUTCOMES]
    assert verdicts.count("agree") == 89
    assert verdicts.count("not_computable") == 0
    disagreeing = [outcome.case for outcome in OUTCOMES if outcome.verdict == "disagree"]
    # The MUSA page default came with a later version than this launch's.
    assert disagreeing == ["C14"]


def _edited(tmp_path: Path, edit: Callable[[list[dict]], None]) -> str:
    raw = json.loads(CASES.read_text("utf-8"))
    edit(raw["cases"])
    path = tmp_path / "cases.json"
    path.write_text(json.dumps(raw), "utf-8")
    return str(path)


def test_another_observation_is_a_new_disagreement(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def edit(cases: list[dict]) -> None:
        check = next(c for case in cases for c in case["checks"] if c["rule"] == "C")
        check["observed"] = 4711

    assert main([_edited(tmp_path, edit)]) == 1
    out = capsys.readouterr().out
    assert "disagree (recorded: agree)" in out
    assert out.splitlines()[-1].endswith("1 new disagreements")


def test_recorded_predictions_are_not_read(tmp_path: Path) -> None:
    def edit(cases: list[dict]) -> None:
        for case in cases:
            for check in case["checks"]:
                check["predicted"] = "nonsense"

    assert main([_edited(tmp_path, edit)]) == 0


def test_a_rule_without_computation_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def edit(cases: list[dict]) -> None:
        cases[0]["checks"][0]["rule"] = "phase of the moon"

    assert main([_edited(tmp_path, edit)]) == 0
    assert "1 not_computable" in capsys.readouterr().out


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"cases": []}', '{"cases": [{"id": 3}]}', '{"cases": [{"id": "A"}]}', "\x00"],
)
def test_bad_file(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text, "utf-8")
    assert main([str(path)]) == 4
    assert capsys.readouterr().err.startswith("error: ")


def test_missing_file(tmp_path: Path) -> None:
    assert main([str(tmp_path / "none.json")]) == 4
