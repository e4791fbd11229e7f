"""What a selftest draws and counts: different faults, the same for any number of processes."""

from __future__ import annotations

import json
import os
import signal
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from kvcanary_cli.cli.main import main
from kvcanary_cli.inject.inject import inject_faults, load_run
from kvcanary_cli.inject.kinds import KINDS
from kvcanary_cli.report.selftest_text import matrix_json, render_matrix
from kvcanary_cli.selftest import course as course_module
from kvcanary_cli.selftest.course import Course
from kvcanary_cli.selftest.draw import draw_kind
from kvcanary_cli.selftest.matrix import selftest
from tests.attribution.helpers import CAPTURES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kvcanary_cli.inject.clean_run import CleanRun

_NAME = "ngram_clean"
# Few occasions (shifted_position: single-token rows), many, and a second rank.
_FEW = ["shifted_position", "late_write", "divergent_rank"]


@pytest.fixture(scope="module")
def run() -> CleanRun:
    return load_run(str(CAPTURES / f"{_NAME}.jsonl.zst"))


def _tails(run: CleanRun, kind: str, wanted: int) -> list[str]:
    faults = draw_kind(run, KINDS[kind], wanted).faults
    return [json.dumps([one.first, one.unpack().tail], sort_keys=True) for one in faults]


@pytest.mark.parametrize("kind", _FEW)
def test_faults_of_a_kind_differ(run: CleanRun, kind: str) -> None:
    tails = _tails(run, kind, 30)
    assert len(set(tails)) == len(tails)


def test_a_kind_with_few_occasions_says_so(run: CleanRun) -> None:
    drawn = draw_kind(run, KINDS["shifted_position"], 30)
    assert 0 < len(drawn.faults) < 30 < drawn.draws
    matrix = selftest(run, name=_NAME, seeds=30, kinds=["shifted_position"], backend="cpu", jobs=2)
    text = "\n".join(str(part) for part in render_matrix(matrix, width=200))
    assert f"shifted_position: {len(drawn.faults)} different faults in {drawn.draws} draws" in text
    value = json.loads("".join(matrix_json(matrix)))
    line = next(line for line in value["kinds"] if line["fault"] == "shifted_position")
    assert (line["runs"], line["draws"]) == (len(drawn.faults), drawn.draws)


def test_a_larger_draw_begins_with_the_smaller_one(run: CleanRun) -> None:
    assert _tails(run, "late_write", 8)[:3] == _tails(run, "late_write", 3)


def test_inject_plants_what_the_selftest_judged(run: CleanRun) -> None:
    """``inject --seed`` reproduces a fault that a selftest reports."""
    kind = KINDS["stale_cell"]
    for one in draw_kind(run, kind, 4).faults:
        _events, built = inject_faults(run, kind, step=None, seed=one.seed, count=1, name=_NAME)
        told = one.unpack()
        assert (built[0].first, built[0].causes) == (told.first, told.causes)
        assert built[0].planted.slots == told.planted.slots
        assert built[0].tail[: len(told.tail)] == told.tail


@pytest.mark.parametrize("jobs", [2, 3])
def test_the_matrix_does_not_depend_on_jobs(run: CleanRun, jobs: int) -> None:
    one, other = (
        selftest(run, name=_NAME, seeds=3, kinds=_FEW, backend="cpu", jobs=n) for n in (1, jobs)
    )
    assert list(matrix_json(one)) == list(matrix_json(other))
    assert [line.outcomes for line in one.lines] == [line.outcomes for line in other.lines]


def test_forked_and_unforked_replays_agree(run: CleanRun, monkeypatch: pytest.MonkeyPatch) -> None:
    def judged() -> list[str]:
        matrix = selftest(run, name=_NAME, seeds=2, kinds=_FEW, backend="cpu", jobs=2)
        return list(matrix_json(matrix))

    forked = judged()
    monkeypatch.setattr(course_module, "can_fork", lambda: False)
    assert judged() == forked


def test_a_killed_replay_is_counted_and_told(
    run: CleanRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As the kernel does it when memory runs out: the fault is told, the others are judged."""
    finish = Course._finish

    def killed(self: Course, trial: Any, one: Any) -> Any:
        if one.seed == 1 and os.getpid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)
        return finish(self, trial, one)

    parent = os.getpid()
    monkeypatch.setattr(Course, "_finish", killed)
    out = tmp_path / "matrix.json"
    trace = str(CAPTURES / f"{_NAME}.jsonl.zst")
    arguments = ["selftest", trace, "--seeds", "3", "--kinds", "stale_cell", "--jobs", "2", "-q"]
    assert main([*arguments, "--format", "json", "-o", str(out)]) == 3
    value = json.loads(out.read_text(encoding="utf-8"))
    line = next(line for line in value["kinds"] if line["fault"] == "stale_cell")
    assert value["verdict"] == "incomplete"
    assert line["runs"] == 2
    assert [(lost["seed"], "SIGKILL" in lost["why"]) for lost in line["not_judged"]] == [(1, True)]
    text = tmp_path / "matrix.txt"
    assert main([*arguments, "-o", str(text)]) == 3
    assert "not judged: stale_cell, seed 1" in text.read_text(encoding="utf-8")


def test_a_drawing_child_that_dies_is_made_up_for(
    run: CleanRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvcanary_cli.selftest import matrix as matrix_module

    parent = os.getpid()

    def dying(draw: Callable[..., Any], *arguments: Any) -> Any:
        if os.getpid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)
        return draw(*arguments)

    clean = selftest(run, name=_NAME, seeds=2, kinds=["stale_cell"], backend="cpu", jobs=1)
    monkeypatch.setattr(matrix_module, "draw_kind", partial(dying, draw_kind))
    made_up = selftest(run, name=_NAME, seeds=2, kinds=["stale_cell"], backend="cpu", jobs=1)
    assert list(matrix_json(made_up)) == list(matrix_json(clean))
