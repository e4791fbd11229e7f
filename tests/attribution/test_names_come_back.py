"""Requests under names that come back are judged as under names of their own."""

from __future__ import annotations

import copy
import random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvcanary_cli.attribution.diagnose import Diagnosis, diagnose_trace
from kvcanary_cli.replay.options import ReplayOptions
from tests.attribution.events import HEAD, decode, extend, life, numbered, rank_head
from tests.attribution.helpers import diagnose
from tests.attribution.small_engine import SLOTS, SmallEngine
from tests.replay.helpers import UNCHECKED, MemoryReader

if TYPE_CHECKING:
    from collections.abc import Callable

Event = dict[str, Any]

ALONE = {key: value for key, value in rank_head(0).items() if key != "rank"}


def _reused(name: str) -> str:
    """At most three requests run at a time: every fifth may have the name of the first."""
    return f"r{int(name[1:]) % 4}" if name[0] == "r" and name[1:].isdigit() else name


def _renamed(events: list[Event], new: Callable[[str], str]) -> list[Event]:
    out = copy.deepcopy(events)
    for event in out:
        for key in ("req", "owner", "from"):
            if key in event:
                event[key] = new(event[key])
        if "reqs" in event:
            event["reqs"] = [new(req) for req in event["reqs"]]
    return numbered(out)


def _broken(events: list[Event], rng: random.Random) -> list[Event]:
    """The events with one fault in them."""
    events = copy.deepcopy(events)

    def some(kind: str) -> Event:
        return rng.choice([event for event in events if event["kind"] == kind])

    match rng.choice(["token", "cell", "position", "free", "slot", "lost", "hit"]):
        case "token":
            fed = some("forward")["input_ids"]
            fed[rng.randrange(len(fed))] = rng.choice([77, -3])
        case "cell":
            cells = some("map")["slots"]
            cells[rng.randrange(len(cells))] = rng.randrange(1, SLOTS)
        case "position":
            forward = some("forward")
            forward["positions"] = [position + 1 for position in forward["positions"]]
        case "free":
            given_out = some("alloc")
            since = events.index(given_out) + 1
            owner = rng.choice([given_out["owner"], "tree"])
            slots = given_out["slots"][: rng.randrange(1, len(given_out["slots"]) + 1)]
            freed = {"kind": "free", "owner": owner, "slots": slots}
            events.insert(rng.randrange(since, min(len(events), since + 14) + 1), freed)
        case "slot":
            written = some("forward")["out_cache_loc"]
            written[rng.randrange(len(written))] = rng.randrange(1, SLOTS)
        case "lost":
            events.remove(some(rng.choice(["map", "alloc", "free", "own"])))
        case "hit":
            hits = [event for event in events if event["kind"] == "match"]
            if hits:
                hit = rng.choice(hits)["slots"]
                hit[rng.randrange(len(hit))] = rng.randrange(1, SLOTS)
    return events


def _verdict(events: list[Event], *, compiled: bool) -> list[tuple[Any, ...]]:
    options = ReplayOptions(backend="cpu", compiled=compiled)
    reader = MemoryReader(ALONE, events)
    # Compiled code takes no events of traces that are kept for a comparison with other ranks.
    diagnosis: Diagnosis = diagnose_trace(reader, options, UNCHECKED, ranks=False)

    def name(req: str | None) -> str:
        return _reused(req or "-")

    told: list[tuple[Any, ...]] = [
        (
            *(f.cls, f.subtype, f.confidence, name(f.victim), name(f.culprit.req)),
            *(f.cause_event, f.corrupting_event, f.first_bad_step),
            *(sorted(f.slots), sorted(f.seam_slots), sorted({name(req) for req in f.blast_radius})),
        )
        for f in diagnosis.findings
    ]
    told += [
        (o.what, o.event, o.step, name(o.owner), name(o.actor), o.slots)
        for o in diagnosis.ownership
    ]
    return sorted(told, key=repr)


@given(seed=st.integers(0, 1 << 20), fault=st.none() | st.integers(0, 1 << 20))
@example(seed=0, fault=391780)  # the next request of the name is there before the slot goes out
@settings(max_examples=25, deadline=None)
def test_a_name_that_comes_back_changes_no_verdict(seed: int, fault: int | None) -> None:
    events = SmallEngine(seed).events
    if fault is not None:
        events = _broken(events, random.Random(fault))
    own, again = _renamed(events, str), _renamed(events, _reused)
    wanted = _verdict(own, compiled=False)
    assert _verdict(again, compiled=False) == wanted
    assert _verdict(again, compiled=True) == wanted
    assert fault is not None or not wanted


@pytest.mark.parametrize("again", ["A", "Z"])
def test_a_hit_before_the_first_slots_is_the_new_requests(again: str) -> None:
    """What it was served wrongly stays known when it gets slots."""
    events = [
        *life("A", [11, 12], [1, 2], 1, 1),
        {"kind": "own", "from": "A", "owner": "tree", "slots": [1, 2], "entry": "P"},
        {"kind": "finish", "req": "A"},
        {"kind": "row_release", "row": 1, "req": "A"},
        {"kind": "history", "req": again, "start": 0, "ids": [21, 22, 23]},
        {"kind": "match", "req": again, "entry": "P", "slots": [1, 2]},
        {"kind": "alloc", "owner": again, "slots": [5]},
        {"kind": "map", "row": 2, "start": 0, "slots": [1, 2, 5]},
        extend(2, again, 2, 2, [23], [5]),
    ]
    (finding,) = diagnose(
        HEAD | {"records": [*HEAD["records"], "prefix"]}, numbered(events)
    ).findings
    assert (finding.cls, finding.victim, finding.cause_event) == ("prefix_index", again, 8)


@pytest.mark.parametrize("again", ["A", "Z"])
def test_a_token_from_the_ring_of_the_former_request(again: str) -> None:
    """Whoever put it had the same name, but was another request."""
    events = [
        *life("A", [11, 12], [1, 2], 1, 1),
        {"kind": "future_put", "ring": 3, "req": "A", "token": 77},
        {"kind": "free", "owner": "A", "slots": [1, 2]},
        {"kind": "finish", "req": "A"},
        {"kind": "row_release", "row": 1, "req": "A"},
        *life(again, [21, 22], [1, 2], 2, 2),
        {"kind": "future_get", "ring": 3, "req": again, "token": 77},
        *decode(again, 23, 3, 2, 2, 3),
    ]
    events[-1]["input_ids"] = [77]
    (finding,) = diagnose(
        HEAD | {"records": [*HEAD["records"], "future"]}, numbered(events)
    ).findings
    assert (finding.cls, finding.subtype) == ("wrong_token_fed", "future_ring_wrap")
    assert (finding.culprit.req, finding.cause_event) == ("A", 4)


@pytest.mark.parametrize("how", ["free", "own"])
def test_a_late_release_is_the_former_requests(how: str) -> None:
    """The new one has begun: what is given back under its name is what the old one had."""
    late: Event = {"kind": "free", "owner": "A", "slots": [1, 2]}
    if how == "own":
        late = {"kind": "own", "from": "A", "owner": "tree", "slots": [1, 2]}
    events = [
        *life("A", [11, 12], [1, 2], 1, 1),
        {"kind": "finish", "req": "A"},
        *life("A", [21, 22], [5, 6], 2, 2),
        late,
        *decode("A", 23, 7, 2, 2, 3),
        {"kind": "free", "owner": "A", "slots": [5, 6, 7]},
        {"kind": "finish", "req": "A"},
        *life("B", [21, 22], [8, 9], 3, 4),
        *decode("B", 23, 10, 3, 2, 5),
        *decode("B", 24, 11, 3, 3, 6),
    ]
    diagnosis = diagnose(HEAD, numbered(events))
    assert not diagnosis.findings
    assert not diagnosis.ownership
