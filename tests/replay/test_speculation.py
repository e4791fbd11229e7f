"""A recorded run with tree drafts: silent as it is, and no blinder than any other when damaged."""

from __future__ import annotations

import copy
import random
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from tests.replay.faults import plant
from tests.replay.helpers import replay
from tests.tools.engine_state import CAPTURES
from tests.trace.helpers import read_events

if TYPE_CHECKING:
    from kvcanary_cli.replay.violations import Violation

Event = dict[str, Any]


@cache
def _recorded() -> tuple[Event, list[Event]]:
    from kvcanary_cli.trace.reader import open_trace

    path = CAPTURES / "ngram_clean.jsonl.zst"
    return dict(open_trace(path).header.raw), read_events(path)


def _verifications(events: list[Event]) -> list[int]:
    return [
        at
        for at, event in enumerate(events)
        if event.get("forward_mode") == "TARGET_VERIFY" and event["step"] >= 10
    ]


def _found(head: Event, events: list[Event]) -> list[Violation]:
    return list(replay(head, events).violations)


def test_the_recording_has_trees_and_moves() -> None:
    head, events = _recorded()
    forks = [
        event
        for event in events
        if "tree" in event
        and any(
            p != k % event["draft_token_num"] - 1 for k, p in enumerate(event["tree"]["parent"])
        )
    ]
    assert forks
    assert any(event["kind"] == "copy" for event in events)
    result = replay(head, events)
    assert not list(result.violations)
    assert result.coverage.token_entries > 1000
    # Links are given up only behind siblings, not for the whole run.
    assert result.coverage.chain_unlinked < result.coverage.entries_verified / 10


@pytest.mark.parametrize("which", [0, 5, 20])
def test_a_shifted_node_is_seen_at_once(which: int) -> None:
    head, events = copy.deepcopy(_recorded())
    event = events[_verifications(events)[which]]
    event["positions"][1] += 1
    found = [v for v in _found(head, events) if v.step == event["step"]]
    assert [(v.check, v.slot, v.position, v.expected_position) for v in found] == [
        (
            "chain_position",
            event["out_cache_loc"][1],
            event["positions"][1],
            event["positions"][1] - 1,
        )
    ]


@pytest.mark.parametrize("which", [0, 5, 9])
def test_a_wrong_root_token_is_seen_when_it_is_read(which: int) -> None:
    head, events = copy.deepcopy(_recorded())
    at = _verifications(events)[which]
    event = events[at]
    req = event["reqs"][0]
    event["input_ids"][0] += 1
    later = next((e for e in events[at + 1 :] if e["kind"] == "forward" and req in e["reqs"]), None)
    assert later is not None
    found = _found(head, events)
    assert found[0].step == later["step"]
    assert found[0].slot == event["out_cache_loc"][0]
    assert "verify_token" in found[0].fail_reasons


@pytest.mark.parametrize("fault", ["swapped_cells", "skipped_copy", "overwriting_copy"])
@pytest.mark.parametrize("seed", range(2))
def test_planted_faults_are_seen_and_never_early(fault: str, seed: int) -> None:
    head, events = _recorded()
    head = head | {"pool": {"max_slot": head["pool"]["slots"]} | head["pool"]}
    planted = plant(fault, random.Random(seed), head, events)
    assert planted is not None
    changed, _, step = planted
    found = _found(head, changed)
    assert found
    assert min(v.step for v in found) >= step
    if fault == "swapped_cells":
        assert found[0].step == step
