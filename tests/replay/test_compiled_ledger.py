"""Ledger, prefix index and histories behind compiled events are those behind the general path."""

from __future__ import annotations

import dataclasses
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvcanary_cli.attribution.diagnoser import Diagnoser
from kvcanary_cli.backends.cpu.event_records import LANE, OWNERSHIP, PAST
from kvcanary_cli.backends.cpu.event_state import LIST_ROOM, Stop
from kvcanary_cli.replay import compiled, prefixes, token_store
from kvcanary_cli.replay.driver import Replay
from kvcanary_cli.replay.options import ReplayOptions
from kvcanary_cli.trace.notes import TraceNotes
from tests.attribution.events import HEAD, decode, life, numbered
from tests.replay.documents import disturbed
from tests.replay.helpers import UNCHECKED, MemoryReader
from tests.replay.simulator import Settings, simulate

if TYPE_CHECKING:
    from collections.abc import Sequence

Event = dict[str, Any]
# What is by slot of the owners, without what the lane keeps beside it.
OWNERS = (
    (set(OWNERSHIP.names or ()) - set(LANE.names or ())) | set(PAST.names or ()) | {"bad_event"}
)
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]


def followed(head: Event, events: Sequence[Event], **options: Any) -> dict[str, Any]:
    """All that the ledger and the index know at the end, as plain values."""
    segment_events = options.pop("segment_events", None)
    reader = MemoryReader(head, events, segment_events)
    diagnoser = Diagnoser(reader.header, TraceNotes(), ranks=False)
    run = Replay(reader.header, ReplayOptions(backend="cpu", **options), UNCHECKED, diagnoser)
    diagnoser.replay = run
    run.run(reader)
    follower, index, histories = diagnoser.follower, run.pool.prefixes, run.pool.histories
    assert histories is not None
    context = follower.context
    state, writes = follower.rules.state, follower.lane("target", "FULL")
    names = follower.names
    return {
        "names": [names.name(code) for code in range(2, len(names))],
        "owners": {name: getattr(state, name).tolist() for name in OWNERS},
        "writes": {name: writes.records[name].tolist() for name in writes.records.dtype.names},
        "reads": writes.sound_reads(np.arange(len(writes.records))).tolist(),
        "reasons": state.reasons,
        "ended": context.ended,
        "lives": follower.names._lives,
        "allocs": {code: follower.rules.last_alloc.get(code, -1) for code in range(len(names))},
        "steps": (
            follower.steps_seen(),
            {code: context.last_step_of.get(code, -1) for code in range(len(names))},
        ),
        "rows": {
            row: (facts.tenant, facts.ran, facts.released_event, facts.released_by, facts.maps)
            for row, facts in sorted(context.rows.items())
        },
        "matches": {
            req: [(fact.event, fact.entry, fact.slots.tolist()) for fact in facts]
            for req, facts in context.matches.items()
        },
        "broken": [dataclasses.astuple(found) for found in follower.rules.findings],
        "roots": follower.rules.roots,
        "entries": {
            entry: (*(part.tolist() for part in _parts(places)), index.gone(entry).tolist())
            for entry, places in index.visible().items()
        },
        "swept": [part.tolist() for part in _parts(index.entries())],
        "unplaced": index.unplaced,
        "histories": {req: histories.tokens(req).tolist() for req in histories.requests()},
    }


def _parts(entries: Any) -> tuple[Any, Any, Any]:
    return entries.slots, entries.positions, entries.prev_slots


def assert_same_ledger(head: Event, events: Sequence[Event], segment_events: int | None) -> None:
    general = followed(head, events, compiled=False)
    fast = followed(head, events, compiled=True, segment_events=segment_events)
    for name, value in general.items():
        assert fast[name] == value, name


@given(
    seed=st.integers(0, 1 << 32),
    page_size=st.sampled_from([1, 1, 2, 4]),
    share=st.booleans(),
    count=st.integers(0, 25),
    segment_events=st.sampled_from([None, 9, 60]),
)
@settings(max_examples=40, suppress_health_check=SLOW)
def test_soups(
    seed: int, page_size: int, share: bool, count: int, segment_events: int | None
) -> None:
    head, events = simulate(Settings(seed=seed, page_size=page_size, share=share, steps=40))
    events = disturbed(random.Random(seed), head, events, count)
    assert_same_ledger(head, events, segment_events)


@given(seed=st.integers(0, 1 << 32), segment_events=st.sampled_from([None, 30]))
@settings(max_examples=10, suppress_health_check=SLOW)
def test_names_used_again(seed: int, segment_events: int | None) -> None:
    """Few names for many requests: whoever ends comes back under its name."""
    head, events = simulate(Settings(seed=seed, steps=80))
    names = {f"r{number}": f"r{number % 7}" for number in range(200)}

    def renamed(value: Any) -> Any:
        if isinstance(value, list):
            return [renamed(item) for item in value]
        return names.get(value, value) if isinstance(value, str) else value

    assert_same_ledger(
        head, [{name: renamed(v) for name, v in event.items()} for event in events], segment_events
    )


@pytest.mark.parametrize("share", [False, True])
def test_requests_begin_and_end_in_the_kernel(share: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What keeps these events from the kernel would show nowhere but in time."""
    taken: dict[str, list[int]] = {}
    original = compiled.CompiledEvents.run

    def run(self: compiled.CompiledEvents, segment: Any, k: int) -> int:
        stopped = original(self, segment, k)
        for at in range(k, stopped):
            taken.setdefault(segment.kind_of(at), []).append(at)
        return stopped

    monkeypatch.setattr(compiled.CompiledEvents, "run", run)
    head, events = simulate(Settings(seed=7, steps=200, share=share))
    assert_same_ledger(head, events, None)
    told: dict[str, int] = {}
    for event in events:
        told[event["kind"]] = told.get(event["kind"], 0) + 1
    for kind in ("own", "publish", "free", "finish", "row_release", "history"):
        assert len(taken[kind]) > told[kind] * 0.7, kind


@pytest.fixture
def stops(monkeypatch: pytest.MonkeyPatch) -> set[Stop]:
    """Gets what the kernel stopped for and then went on."""
    met: set[Stop] = set()
    original = compiled.CompiledEvents._help

    def help_out(self: compiled.CompiledEvents, worker: Any, why: int, *rest: Any) -> bool:
        went_on = original(self, worker, why, *rest)
        if went_on:
            met.add(Stop(why))
        return went_on

    monkeypatch.setattr(compiled.CompiledEvents, "_help", help_out)
    return met


def test_full_stores_are_made_larger(stops: set[Stop], monkeypatch: pytest.MonkeyPatch) -> None:
    """They begin so large that nothing else here fills that of the tokens."""
    monkeypatch.setattr(token_store, "_FIRST_ROOM", 4)
    monkeypatch.setattr(prefixes, "_FIRST_PLACES", 4)
    for seed in range(4):
        head, events = simulate(Settings(seed=seed, steps=80))
        assert_same_ledger(head, events, None)
    assert {Stop.STORE_FULL, Stop.PLACES_FULL} <= stops


@pytest.mark.parametrize("kind", ["match", "finish"])
def test_a_full_list_is_emptied(kind: str, stops: set[Stop]) -> None:
    """Whatever the kernel lists for the ledger, there is more of it than the list holds."""
    head = HEAD | {"records": [*HEAD["records"], "prefix"]}
    served = {"match": {"entry": "e", "slots": [1]}, "finish": {}}[kind]
    events = [
        *life("A", [11, 12], [1, 2], row=1, step=1),
        {"kind": "own", "from": "A", "owner": "tree", "slots": [1], "entry": "e"},
        *({"kind": kind, "req": f"r{k % 9}"} | served for k in range(LIST_ROOM + 99)),
        *decode("A", 13, 3, row=1, position=2, step=2),
    ]
    assert_same_ledger(head, numbered(events), None)
    assert stops == {Stop.ROOM}
