"""The figures of docs/selftest.md are made of matrices, and say what was missed."""

from __future__ import annotations

from typing import Any

from tests.tools.selftest_figures import DOCUMENT, HEADING, figures, share, with_figures


def _matrix(*, wrong: list[dict[str, Any]], detected: int, cls_right: int) -> dict[str, Any]:
    counts = {
        "runs": 8,
        "detected": detected,
        "step_right": 8,
        "cls_right": cls_right,
        "subtype_right": 4,
        "culprit_right": 8,
    }
    line: dict[str, Any] = {"fault": "late_write", "class": "late_write", "draws": 60, **counts}
    line["wrong"] = wrong
    idle: dict[str, Any] = dict.fromkeys(counts, 0) | {
        "fault": "stale_lut",
        "class": "bad_translation",
    }
    idle |= {"draws": 0, "wrong": [], "not_planted": "not recorded: lut"}
    return {"seeds": 10, "false_alarms": 0, "kinds": [line, idle], **counts}


def test_misses_and_other_classes_are_counted_by_kind() -> None:
    said = ["", "late_write/x step 1", "transfer_race/y step 2", "transfer_race/y step 3"]
    wrong = [{"seed": k, "said": text, "truth": ""} for k, text in enumerate(said)]
    text = figures({"one": _matrix(wrong=wrong, detected=7, cls_right=4)})
    told = "transfer_race/y (2), no finding (1), late_write/x (1)"
    assert f"| one | late_write | 1 | 3 | {told} |" in text
    assert "| late_write | late_write | 8 | 87.5% | 100% | 50.0% | 50.0% | 100% |" in text
    assert "late_write (8 in 60 draws)" in text
    assert "stale_lut (not recorded: lut)" in text
    assert "| stale_lut |" not in text


def test_nothing_missed_is_said() -> None:
    text = figures({"one": _matrix(wrong=[], detected=8, cls_right=8)})
    assert "Nothing was missed or given another class." in text


def test_shares_are_rounded_down() -> None:
    assert [share(1999, 2000), share(2000, 2000), share(0, 3)] == ["99.9%", "100%", "0.0%"]


def test_only_the_figures_of_the_document_change() -> None:
    document = DOCUMENT.read_text(encoding="utf-8")
    before, _, after = document.partition(HEADING)
    text = with_figures(document, f"{HEADING}\nnew\n")
    assert text.startswith(before)
    assert text.endswith(after[after.index("\n## ") + 1 :])
    assert with_figures(text, f"{HEADING}\nnew\n") == text
