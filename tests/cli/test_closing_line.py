"""The closing line holds what the rest of the output says, and all that makes a verdict less."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.attribution.events import HEAD, decode, life, numbered
from tests.attribution.helpers import CAPTURES, events_of
from tests.cli.conftest import SCENARIOS, Ran
from tests.trace.helpers import write_jsonl

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Run = Callable[..., Ran]

S01 = "tests/data/scenarios/S01_use_after_free.jsonl"
DOUBLE_FREE = "tests/data/captures/bug_double_free.jsonl.zst"
ALL_SCENARIOS = sorted(p for p in SCENARIOS.iterdir() if p.suffix == ".jsonl" or p.is_dir())


def _numbers(line: str) -> dict[str, int]:
    """``4 violations`` and its like in a closing line, by noun."""
    plain = line.replace(",", "")
    found = re.findall(r"(\d+) (finding|violation|capacity violation|broken ownership rule)", plain)
    return {noun: int(number) for number, noun in found}


@pytest.mark.parametrize("path", ALL_SCENARIOS, ids=lambda p: p.stem)
def test_it_says_what_the_json_says(run: Run, path: Path) -> None:
    line = run("replay", str(path), "-q").out.strip()
    data = json.loads(run("replay", str(path), "--format", "json").out)
    numbers = _numbers(line)
    assert numbers["finding"] == len(data["findings"])
    assert numbers["violation"] == len(data["violations"])
    assert numbers.get("broken ownership rule", 0) == len(data["ownership"])
    steps = [v["step"] for v in data["violations"]]
    steps += [f["first_bad_step"] for f in data["findings"] if f["first_bad_step"] is not None]
    first = re.search(r"first at step (\d+)", line)
    assert (None if first is None else int(first[1])) == min(steps, default=None)
    skipped = re.search(r"([\d,]+) entr\w+ not checked", line)
    told = 0 if skipped is None else int(skipped[1].replace(",", ""))
    assert told == data["coverage"]["entries_skipped"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--steps", "1:10"), "only steps 1:10 checked"),
        (("--steps", ":10"), "only steps :10 checked"),
        (("--steps", "50:"), "only steps 50: checked"),
        (("--req", "req-003"), "only requests req-003: 85 violations elsewhere"),
        (("--slot", "1"), "only slots 1: 85 violations elsewhere"),
        (
            ("--steps", "41:42", "--slot", "129"),
            "only steps 41:42 checked, only slots 129: 2 violations elsewhere",
        ),
    ],
)
def test_nothing_is_said_of_steps_that_were_not_looked_at(
    run: Run, options: tuple[str, ...], says: str
) -> None:
    line = run("replay", DOUBLE_FREE, "-q", *options).out.strip()
    assert line.endswith(f", {says}")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--mode", "raise"), "stopped at step 41"),
        (("--ring-capacity", "3"), "violations beyond the ring"),
    ],
)
def test_what_an_option_leaves_out_is_said(run: Run, options: tuple[str, ...], says: str) -> None:
    assert says in run("replay", DOUBLE_FREE, "-q", *options).out


def _life(records: list[str]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    events = [
        *life("A", [11, 12, 13], [1, 2, 3], row=1, step=1),
        *decode("A", 14, 4, row=1, position=3, step=2),
    ]
    kept = [e for e in events if e["kind"] != "map" or "map" in records]
    return HEAD | {"records": records}, numbered(kept)


def test_what_was_read_and_not_checked_is_said(run: Run, tmp_path: Path) -> None:
    head, events = _life(["forward", "alloc", "request", "history"])
    ran = run("replay", str(write_jsonl(tmp_path / "t.jsonl", head, events)), "-q")
    assert ran.code == 5
    assert "NOT CHECKED" in ran.out
    assert "0 entries checked, 3 entries not checked" in ran.out


def test_swept_entries_alone_are_no_clean_verdict(run: Run, tmp_path: Path) -> None:
    """The sweeps say something of the prefix cache, nothing of what the requests read."""
    head, events = events_of(CAPTURES / "canary_clean_all.jsonl.zst")
    head["records"] = [family for family in head["records"] if family != "map"]
    kept = numbered([e for e in events if e["kind"] != "map"])
    path = write_jsonl(tmp_path / "t.jsonl", head, kept)
    ran = run("replay", str(path), "--format", "json")
    coverage = json.loads(ran.out)["coverage"]
    assert coverage["sweep_entries"] > 0
    assert coverage["entries_verified"] == 0
    assert coverage["entries_skipped"] > 0
    assert (ran.code, json.loads(ran.out)["verdict"]) == (5, "not_checked")


def test_log_lines_count_the_findings_that_have_none(run: Run) -> None:
    err = run("replay", "tests/data/scenarios/S20_key_aliasing.jsonl", "--log-lines").err
    assert "1 finding shows no violation" in err
