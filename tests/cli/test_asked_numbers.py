"""Numbers that no trace has: an answer, a refusal or wrong usage, never a fault of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.attribution.events import HEAD, life, numbered
from tests.trace.helpers import write_jsonl

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Ran

    Run = Callable[..., Ran]

S01 = "tests/data/scenarios/S01_use_after_free.jsonl"
NUMBERS = {
    "minus_one": "-1",
    "int64": str(2**63 - 1),
    "above_int64": str(2**63),
    "below_int64": str(-(2**63) - 1),
    "above_uint64": str(10**30),
    "too_many_digits": "9" * 5000,
}
ASKED = {
    **{name: ["inspect", S01, f"--{name}=N"] for name in ("slot", "step", "row", "at")},
    "slot_of_draft": ["inspect", S01, "--slot=N", "--pool=draft"],
    "slot_of_swa": ["inspect", S01, "--slot=N", "--pool=swa"],
    "who_wrote_slot": ["inspect", S01, "--who-wrote=N@2"],
    "who_wrote_step": ["inspect", S01, "--who-wrote=5@N"],
    "replay_slot": ["replay", S01, "--slot=N"],
    "replay_from": ["replay", S01, "--steps=N:"],
    "replay_step": ["replay", S01, "--steps=N"],
    "cut_from": ["trace", "cut", S01, "-o", "-", "--steps=N:"],
}


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("asked", ASKED)
def test_a_number_that_the_trace_lacks(run: Run, asked: str, number: str) -> None:
    ran = run(*(word.replace("N", NUMBERS[number]) for word in ASKED[asked]))
    open_start = number in ("minus_one", "below_int64") and asked in ("replay_from", "cut_from")
    # A range that begins before the first step keeps every step, unless its number is none.
    assert ran.code in ((0, 1, 2) if open_start else (2, 5)), ran.err
    if ran.code in (2, 5):
        assert ran.out == ""


@pytest.mark.parametrize(
    "text", ["5", "5@", "@2", "5@2@3", " 5@2", "5 @2", "1_0@2", "\u0665@2", "+5@2"]
)
def test_who_wrote_takes_plain_numbers_only(run: Run, text: str) -> None:
    ran = run("inspect", S01, "--who-wrote", text)
    assert (ran.code, ran.out) == (2, "")
    assert "SLOT@STEP" in ran.err


@pytest.mark.parametrize("question", [["--slot", "5"], ["--who-wrote", "5@2"]])
def test_a_pool_that_the_trace_lacks(run: Run, question: list[str]) -> None:
    ran = run("inspect", S01, *question, "--pool", "swa")
    assert (ran.code, ran.out) == (5, "")
    assert "the trace has no swa pool" in ran.err


@pytest.mark.parametrize("order", ["empty first", "empty last", "empty only"])
def test_validate_says_which_trace_has_no_events(run: Run, tmp_path: Path, order: str) -> None:
    empty = str(write_jsonl(tmp_path / "empty.jsonl", HEAD, []))
    whole = str(write_jsonl(tmp_path / "t.jsonl", HEAD, numbered(life("A", [1], [1], 1, 1))))
    traces = {"empty first": [empty, whole], "empty last": [whole, empty], "empty only": [empty]}
    ran = run("trace", "validate", *traces[order])
    assert ran.code == 5
    assert f"{empty}: no events" in ran.err
    assert f"{empty}: ok" not in ran.out
    assert (f"{whole}: ok" in ran.out) == (order != "empty only")
