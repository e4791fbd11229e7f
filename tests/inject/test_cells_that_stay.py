"""Slots that a fault gives to somebody else: the rows name them, as an engine's would."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kvcanary_cli.inject.clean_run import CleanRun, rows_of
from kvcanary_cli.inject.inject import inject_faults, load_run
from kvcanary_cli.inject.kinds import KINDS
from tests.attribution.events import HEAD, decode, life, numbered
from tests.attribution.helpers import CAPTURES, diagnose

Event = dict[str, Any]
LIFETIME = ("double_free", "early_free", "free_by_non_owner", "double_alloc")


def _beside(events: list[Event]) -> list[tuple[int, int]]:
    """Event and position of every token that was written beside what its row names."""
    cells: dict[tuple[int, int], int] = {}
    out = []
    for event in events:
        if event["kind"] == "map":
            for position, slot in enumerate(event["slots"], start=event["start"]):
                cells[event["row"], position] = slot
        if event["kind"] != "forward":
            continue
        for row in rows_of(event):
            for k in range(row.count):
                position = row.prefix + k
                if cells.get((row.row, position)) != event["out_cache_loc"][row.first + k]:
                    out.append((event["i"], position))
    return out


@pytest.fixture(scope="module")
def vllm() -> CleanRun:
    """Blocks come back to the rows that had them, and a cell that stays is not mapped again."""
    return load_run(str(CAPTURES / "vllm_clean.jsonl.zst"))


@pytest.mark.parametrize("kind", LIFETIME)
def test_rows_name_what_is_written_in_a_captured_run(kind: str, vllm: CleanRun) -> None:
    assert _beside(vllm.events) == []
    for seed in range(4):
        events, _ = inject_faults(
            vllm, KINDS[kind], step=None, seed=seed, count=1, name="vllm_clean"
        )
        assert _beside(events) == []


def _again(req: str, first: int, step: int) -> list[Event]:
    """``req`` runs in row 2 with slots 4 to 6, which the row names already, and gives them back."""
    ids = [first, first + 1, first + 2]
    events = life(req, ids, [4, 5, 6], row=2, step=step)
    kept = [event for event in events if event["kind"] != "map" or step == 2]
    end = {"kind": "finish", "req": req}
    return [*kept, {"kind": "free", "owner": req, "slots": [4, 5, 6]}, end]


@pytest.mark.parametrize("kind", ["early_free", "free_by_non_owner", "double_alloc"])
def test_a_row_that_stayed_is_set_and_set_back(kind: str) -> None:
    """A reads all along; B, C and D get the same slots in the same row, one behind the other."""
    events = life("A", [11, 12, 13], [1, 2, 3], row=1, step=1)
    for number, req in enumerate("BCDE"):
        events += _again(req, 20 + 10 * number, step=2 + 2 * number)
        slot = 10 + number
        events += decode("A", 14 + number, slot, row=1, position=3 + number, step=3 + 2 * number)
    run = CleanRun(HEAD, numbered(events))
    assert _beside(run.events) == []
    assert diagnose(HEAD, run.events).verdict == "clean"
    planted = [KINDS[kind].plant(run, random.Random(seed)) for seed in range(24)]
    assert any(one is not None for one in planted)
    for seed, one in enumerate(planted):
        if one is None:
            continue
        tail, _ = one.edits.tail()
        assert _beside(numbered([*run.events[: one.edits.first], *tail])) == [], seed
