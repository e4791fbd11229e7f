"""What injectors must not plant: faults that are none, or whose truth would be another one."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from kvcanary_cli.inject.clean_run import CleanRun, is_target_forward
from kvcanary_cli.inject.kinds import KINDS
from kvcanary_cli.inject.planting import build
from kvcanary_cli.selftest.draw import plant
from tests.attribution.events import numbered
from tests.attribution.helpers import diagnose
from tests.inject.test_simulated import engine_settings
from tests.replay.simulator import Settings, simulate

if TYPE_CHECKING:
    from kvcanary_cli.inject.planting import Built

Event = dict[str, Any]
FEW = settings(
    max_examples=20, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)


def _changed_cells(events: list[Event]) -> list[Event]:
    """The events as a recorder tells them that compares the request table with what it was."""
    cells: dict[tuple[int, int], int] = {}
    out = []
    for event in events:
        if event["kind"] == "map":
            places = enumerate(event["slots"], start=event["start"])
            new = [p for p, slot in places if cells.get((event["row"], p)) != slot]
            if not new:
                continue
            first, stop = new[0] - event["start"], new[-1] + 1 - event["start"]
            event = event | {"start": new[0], "slots": event["slots"][first:stop]}
            for position, slot in enumerate(event["slots"], start=event["start"]):
                cells[event["row"], position] = slot
        out.append(event)
    return numbered(out)


def _built(
    engine: Settings, kind: str, seed: int, *, changed: bool = False
) -> tuple[CleanRun, list[Event], Built]:
    head, events = simulate(engine)
    run = CleanRun(head, _changed_cells(events) if changed else events)
    planted = plant(run, KINDS[kind], seed)
    assume(planted is not None)
    assert planted is not None
    built = build(run, planted)
    return run, [*run.events[: built.first], *built.tail], built


def _runs_in(event: Event, req: str, row: int) -> bool:
    named = zip(event["reqs"], event["req_pool_indices"], strict=True)
    return (req, row) in list(named)


@given(engine_settings(), st.integers(0, 1 << 16), st.booleans())
@FEW
def test_a_row_is_recycled_only_while_its_request_runs_in_it(
    engine: Settings, seed: int, changed: bool
) -> None:
    _, events, built = _built(engine, "recycled_row", seed, changed=changed)
    (release,) = (e for e in events if e["i"] == built.causes[0])
    row, req = release["row"], release["req"]
    behind = events.index(release)
    (taker,) = built.planted.culprits
    assert taker not in (None, req)
    forwards = [k for k, e in enumerate(events) if is_target_forward(e)]
    before = [k for k in forwards if k < behind and row in events[k]["req_pool_indices"]]
    assert _runs_in(events[before[-1]], req, row)
    bad = next(k for k in forwards if events[k]["step"] == built.planted.step)
    left = [
        e
        for e in events[before[-1] : bad]
        if (
            e["kind"] == "row_release"
            and e["row"] == row
            and e["req"] != taker
            and e is not release
        )
        or (e["kind"] in ("retract", "finish") and e["req"] == req)
    ]
    assert not left
    assert any(_runs_in(events[k], req, row) for k in forwards if k > behind)


@given(engine_settings(), st.integers(0, 1 << 16))
@FEW
def test_cells_of_a_recycled_row_are_the_takers_when_they_are_set(
    engine: Settings, seed: int
) -> None:
    """No engine sets a cell to a slot that it gives to the request only later."""
    _, events, built = _built(engine, "recycled_row", seed)
    release = next(e for e in events if e["i"] == built.causes[0])
    owners: dict[int, str | None] = {}
    parties = {"tree", release["req"], *built.planted.culprits}
    for event in events:
        if event["kind"] in ("alloc", "own", "free"):
            owner = None if event["kind"] == "free" else event["owner"]
            owners.update(dict.fromkeys(event["slots"], owner))
        elif event["kind"] == "map" and event["row"] == release["row"]:
            early = event["i"] < release["i"]
            assert early or {owners.get(slot) for slot in event["slots"]} <= parties
        elif event["kind"] == "forward" and event["step"] >= (built.planted.step or 0):
            break


@given(engine_settings(), st.integers(0, 1 << 16), st.booleans())
@FEW
def test_a_divergent_rank_is_clean_by_itself(engine: Settings, seed: int, changed: bool) -> None:
    """Each rank goes on as if the other did the same: only side by side do they differ.

    ``changed``: the recorder tells cells that change only, so that the next tenant of the row
    counts on what stands there.
    """
    run, events, built = _built(engine, "divergent_rank", seed, changed=changed)
    diagnosis = diagnose(run.header, events)
    assert not diagnosis.findings
    assert not [found for found in diagnosis.ownership if found.what != "leak"]
    (alloc,) = (e for e in events if e["i"] == built.causes[0])
    assert alloc["kind"] == "alloc"


@pytest.mark.parametrize("seed", range(5))
def test_no_divergent_rank_where_a_draft_worker_runs(seed: int) -> None:
    """It would read, on this rank alone, what only the target wrote."""
    run = CleanRun(*simulate(Settings(seed=seed, draft_worker=True)))
    assert any(row.prefix > 1 for f in run.forwards for row in run.rows[f])
    assert KINDS["divergent_rank"].plant(run, random.Random(seed)) is None
