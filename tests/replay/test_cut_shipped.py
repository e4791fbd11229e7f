"""Cuts of the shipped captures and scenarios show what the whole traces show."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvcanary_cli.cut.make import cut_trace
from kvcanary_cli.trace.convert import convert
from tests.replay.cut_helpers import (
    assert_same_verdict,
    cut_to,
    events_of,
    forward_steps,
    found,
    run,
)

DATA = Path(__file__).parents[1] / "data"
CAPTURES = sorted((DATA / "captures").glob("*.jsonl.zst"))
BUGS = [path for path in CAPTURES if path.name.startswith("bug_")]
SCENARIOS = sorted((DATA / "scenarios").rglob("*.jsonl"))
VICTIM = "req-007"
EXAMPLES = Path(__file__).parents[2] / "examples"
FORMS = (".jsonl", ".jsonl.zst", ".pt", ".kvtrace")


#: The first kinds of each of these end before the cut, so that no event of them is left.
EXAMPLES_OF_CUTS = {
    "clean_radix.pt": (200, 200),
    "bug_double_free.pt": (41, 45),
    "use_after_free.jsonl": (3, 3),
    "bug_swap_rows.jsonl.zst": (41, 41),
    "vllm_clean.kvtrace": (12, 14),
}


def _name(path: Path) -> str:
    return path.name.split(".")[0]


@pytest.mark.parametrize("path", BUGS, ids=_name)
@pytest.mark.parametrize("steps", [(38, 42), (40, 40), (41, 41), (44, 60), (60, None), (None, 41)])
def test_bug_captures_around_the_planted_step(
    path: Path, steps: tuple[int | None, int | None], tmp_path: Path
) -> None:
    assert_same_verdict(path, tmp_path, steps)


@pytest.mark.parametrize("path", [p for p in CAPTURES if p not in BUGS], ids=_name)
def test_clean_captures_stay_clean(path: Path, tmp_path: Path) -> None:
    middle = forward_steps(path)[len(forward_steps(path)) // 2]
    assert_same_verdict(path, tmp_path, (middle, middle + 20))


def test_the_sample_has_both_kinds_of_trace() -> None:
    assert len(BUGS) == 5
    assert len(CAPTURES) == 12
    assert len(SCENARIOS) >= 16
    assert len(EXAMPLES_OF_CUTS) == len([p for p in EXAMPLES.iterdir() if p.suffix != ".md"])


@pytest.mark.parametrize("path", SCENARIOS, ids=_name)
def test_scenarios_cut_at_every_step(path: Path, tmp_path: Path) -> None:
    steps = forward_steps(path)
    for at, first in enumerate(steps):
        assert_same_verdict(path, tmp_path, (first, None))
        for last in steps[at:]:
            assert_same_verdict(path, tmp_path, (first, last))


@pytest.mark.parametrize("path", BUGS, ids=_name)
def test_cut_for_the_victim_shows_its_violations(path: Path, tmp_path: Path) -> None:
    whole = [v for v in found(path, steps=(36, 50)) if v.req == VICTIM]
    target, cut = cut_to(path, tmp_path, (36, 50), [VICTIM])
    assert whole
    assert [v for v in found(target) if v.req == VICTIM] == whole
    assert cut.requests is not None
    assert VICTIM in cut.requests
    assert run(target).coverage.lost_events == 0
    reqs = {r for e in events_of(target) if e["kind"] == "forward" for r in e["reqs"] if r}
    assert reqs <= set(cut.requests)


def test_cut_for_the_victim_leaves_the_others_out(tmp_path: Path) -> None:
    path = DATA / "captures" / "bug_swap_rows.jsonl.zst"
    _, everything = cut_to(path, tmp_path, (36, 50))
    target, cut = cut_to(path, tmp_path, (36, 50), [VICTIM])
    assert cut.requests == (VICTIM,)
    assert cut.events < everything.events
    for event in events_of(target):
        if event["kind"] == "forward":
            assert {req for req in event["reqs"] if req is not None} == {VICTIM}


def test_cutting_again_changes_nothing(tmp_path: Path) -> None:
    path = DATA / "captures" / "bug_kv_bytes.jsonl.zst"
    once, _ = cut_to(path, tmp_path, (38, 50))
    (tmp_path / "deeper").mkdir()
    for steps in ((40, 45), (38, 50), (20, 45), (42, 90)):
        twice, _ = cut_to(once, tmp_path / "deeper", steps)
        first, last = max(steps[0], 38), min(steps[1], 50)
        assert found(twice) == found(path, steps=(first, last))
        assert found(twice)


@pytest.mark.parametrize("name", ["bug_double_free", "swa_canary_clean"])
def test_every_form_gives_the_same_cut(name: str, tmp_path: Path) -> None:
    path = DATA / "captures" / f"{name}.jsonl.zst"
    target, _ = cut_to(path, tmp_path, (40, 44))
    expected = events_of(target)
    assert any(event["kind"] == "canary_rows" for event in expected)
    for suffix in (".jsonl", ".pt", ".kvtrace"):
        whole = tmp_path / f"whole{suffix}"
        convert(path, whole)
        (tmp_path / suffix[1:]).mkdir()
        again, _ = cut_to(whole, tmp_path / suffix[1:], (40, 44))
        assert events_of(again) == expected


@pytest.mark.parametrize("name", EXAMPLES_OF_CUTS)
def test_examples_cut_to_every_form(name: str, tmp_path: Path) -> None:
    source, steps = EXAMPLES / name, EXAMPLES_OF_CUTS[name]
    expected = found(source, steps=steps)
    events = None
    for suffix in FORMS:
        target = tmp_path / f"cut{suffix}"
        cut_trace(source, target, steps=steps)
        assert found(target) == expected
        events = events or events_of(target)
        assert events_of(target) == events
