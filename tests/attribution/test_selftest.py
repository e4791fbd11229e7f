"""The selftest: known faults in real clean batches are found, dated, classified and pinned down."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from kvcanary_cli.cli.main import main
from kvcanary_cli.errors import NothingCheckedError
from kvcanary_cli.inject.inject import load_run
from kvcanary_cli.inject.kinds import KINDS
from kvcanary_cli.report.selftest_text import matrix_json, render_matrix
from kvcanary_cli.selftest.matrix import Matrix, selftest
from tests.attribution.helpers import CAPTURES

if TYPE_CHECKING:
    from pathlib import Path

SEEDS = 3
# Between them they record every family that real engines gave here.
TRACES = ["canary_clean_all", "swa_canary_clean", "ngram_clean"]
_SMALL = "ngram_clean"


@pytest.fixture(scope="module")
def matrices() -> dict[str, Matrix]:
    return {
        name: selftest(
            load_run(str(CAPTURES / f"{name}.jsonl.zst")), name=name, seeds=SEEDS, backend="cpu"
        )
        for name in TRACES
    }


@pytest.mark.parametrize("name", TRACES)
def test_everything_that_can_be_shown_is_found(matrices: dict[str, Matrix], name: str) -> None:
    matrix = matrices[name]
    missed = [o.truth for line in matrix.lines for o in line.outcomes if not o.detected]
    assert missed == []
    assert matrix.false_alarms == 0
    assert matrix.runs >= 12 * SEEDS


@pytest.mark.parametrize("name", TRACES)
def test_classes_are_right(matrices: dict[str, Matrix], name: str) -> None:
    matrix = matrices[name]
    wrong = [
        (o.kind, o.said, o.truth) for line in matrix.lines for o in line.outcomes if not o.cls_right
    ]
    assert matrix.total("cls_right") >= 0.95 * matrix.runs, wrong


@pytest.mark.parametrize("name", TRACES)
def test_steps_and_culprits_are_right(matrices: dict[str, Matrix], name: str) -> None:
    matrix = matrices[name]
    assert matrix.total("step_right") >= 0.95 * matrix.runs
    assert matrix.total("culprit_right") >= 0.95 * matrix.runs


def test_a_kind_says_what_it_lacks(matrices: dict[str, Matrix]) -> None:
    lines = {line.kind.name: line for line in matrices["canary_clean_all"].lines}
    assert set(lines) == set(KINDS)
    assert lines["stale_lut"].why_none == "not recorded: lut"
    assert lines["early_free"].why_none is None


def test_text_and_json_tell_the_same(matrices: dict[str, Matrix]) -> None:
    matrix = matrices[_SMALL]
    value = json.loads("".join(matrix_json(matrix)))
    assert value["runs"] == matrix.runs
    assert value["detected"] == matrix.total("detected")
    assert value["verdict"] == "all_detected"
    text = str(list(render_matrix(matrix, width=200))[-1])
    assert text.startswith("SUMMARY: selftest")
    assert f"{matrix.total('detected')} detected" in text


def test_the_same_seeds_give_the_same_matrix() -> None:
    run = load_run(str(CAPTURES / f"{_SMALL}.jsonl.zst"))
    one, other = (
        selftest(run, name=_SMALL, seeds=2, kinds=["late_write", "stale_cell"], backend="cpu")
        for _ in range(2)
    )
    assert [line.outcomes for line in one.lines] == [line.outcomes for line in other.lines]


def test_a_corrupt_trace_is_refused() -> None:
    run = load_run(str(CAPTURES / "bug_swap_rows.jsonl.zst"))
    with pytest.raises(NothingCheckedError, match="not clean"):
        selftest(run, name="bug", seeds=1, backend="cpu")


@pytest.mark.parametrize(
    ("kinds", "code"), [("swapped_cells", 0), ("stale_lut", 5), ("no_such_kind", 2)]
)
def test_exit_status(kinds: str, code: int, tmp_path: Path) -> None:
    out = tmp_path / "matrix.txt"
    trace = str(CAPTURES / f"{_SMALL}.jsonl.zst")
    arguments = ["selftest", trace, "--seeds", "1", "--kinds", kinds, "-q", "-o", str(out)]
    assert main(arguments) == code
