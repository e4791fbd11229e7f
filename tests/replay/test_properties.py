"""Replays of simulated runs: silent on clean ones, exact on planted faults, blind to names."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from kvcanary_cli.replay.options import Mode
from kvcanary_cli.replay.violations import CHAIN_POSITION
from kvcanary_cli.report.log_lines import ring_rows
from tests.replay import transforms
from tests.replay.faults import FAULTS, plant
from tests.replay.helpers import replay, without_event
from tests.replay.oracle import predict, seen
from tests.replay.simulator import Settings, simulate
from tests.trace.helpers import SUFFIXES, read_events, write_trace

if TYPE_CHECKING:
    from pathlib import Path

    from kvcanary_cli.replay.result import ReplayResult
    from kvcanary_cli.replay.violations import Violation

Event = dict[str, Any]
# Not every engine offers an occasion for every fault.
SLOW = [
    HealthCheck.too_slow,
    HealthCheck.filter_too_much,
    HealthCheck.function_scoped_fixture,
]


@st.composite
def engine_settings(draw: st.DrawFn, steps: int = 14) -> Settings:
    window = draw(st.sampled_from([0, 0, 3, 6]))
    draft_tokens = draw(st.sampled_from([0, 0, 3, 4]))
    return Settings(
        seed=draw(st.integers(0, 1 << 32)),
        page_size=1 if window else draw(st.sampled_from([1, 1, 2, 4])),
        window=window,
        draft_worker=draw(st.booleans()),
        draft_tokens=draft_tokens,
        tree=bool(draft_tokens) and draw(st.booleans()),
        padding=draw(st.sampled_from(["none", "end", "middle"])),
        host_tier=not window and draw(st.booleans()),
        kv_hash_every=draw(st.sampled_from([0, 1, 1, 3])),
        salted=draw(st.booleans()),
        steps=steps,
    )


SWEEPS = st.sampled_from([0, 1, 3])


# Clean runs.


@given(engine_settings(steps=24), SWEEPS)
@settings(max_examples=25, suppress_health_check=SLOW)
def test_clean_runs_are_clean(engine: Settings, sweep: int) -> None:
    head, events = simulate(engine)
    result = replay(head, events, sweep_interval=sweep)
    assert not list(result.violations)
    assert result.verdict == "clean"
    assert result.coverage.entries_verified
    assert result.coverage.entries_skipped == 0


@given(engine_settings(), SWEEPS, st.sets(st.sampled_from(["map", "alloc", "request", "history",
    "prefix", "transfer", "graph", "lut", "spec", "kv_hash"])), st.booleans())  # fmt: skip
@settings(max_examples=50, suppress_health_check=SLOW)
def test_what_was_not_recorded_raises_no_alarm(
    engine: Settings, sweep: int, families: set[str], no_tokens: bool
) -> None:
    head, events = simulate(engine)
    if any(event["kind"] == "copy" for event in events):
        # KV that moved unseen cannot be told from corruption; the coverage notes say so.
        families = families - {"transfer"}
    head, events = transforms.drop_families(head, events, families)
    if no_tokens:
        head, events = transforms.drop_tokens(head, events)
    result = replay(head, events, sweep_interval=sweep)
    assert not list(result.violations)


@given(engine_settings(), SWEEPS, st.floats(0, 1), st.booleans())
@settings(max_examples=50, suppress_health_check=SLOW)
def test_a_recording_that_starts_mid_run_raises_no_alarm(
    engine: Settings, sweep: int, where: float, no_tokens: bool
) -> None:
    head, events = simulate(engine)
    head, events = transforms.start_mid_run(head, events, int(where * len(events)))
    if no_tokens:
        head, events = transforms.drop_tokens(head, events)
    assert not list(replay(head, events, sweep_interval=sweep).violations)


# Planted faults.


@pytest.mark.parametrize("fault", FAULTS)
@given(engine=engine_settings(), seed=st.integers(0, 1 << 32))
# A row writes a slot whose fingerprint was never recorded while another row of the batch reads it.
@example(engine=Settings(seed=334, page_size=4, kv_hash_every=3, share=True, steps=14), seed=167)
@settings(max_examples=12, suppress_health_check=SLOW)
def test_a_planted_fault_shows_exactly_where_it_must(
    fault: str, engine: Settings, seed: int
) -> None:
    head, events = simulate(engine)
    planted = plant(fault, random.Random(seed), head, events)
    assume(planted is not None)
    assert planted is not None
    changed, _, step = planted
    result = replay(head, changed, sweep_interval=0)
    found = list(result.violations)

    assert seen(found) == predict(head, changed, check_kv=True)
    assert all(violation.step >= step for violation in found)
    assert result.verdict == ("corrupt" if found else "clean")


@pytest.mark.parametrize(
    ("fault", "checks"),
    [
        ("swapped_cells", {"verify"}),
        ("changed_bytes", {"verify"}),
        ("stale_lut", {"verify"}),
        ("overwriting_copy", {"verify"}),
        ("shifted_position", {"chain_position", "verify"}),
        ("wrong_token", {"input_assert"}),
    ],
)
@given(engine=engine_settings(), seed=st.integers(0, 1 << 32))
@settings(max_examples=8, suppress_health_check=SLOW)
def test_a_fault_that_must_show_at_once_does(
    fault: str, checks: set[str], engine: Settings, seed: int
) -> None:
    rng = random.Random(seed)
    head, events = simulate(engine)
    planted = plant(fault, rng, head, events)
    assume(planted is not None)
    assert planted is not None
    changed, first, step = planted
    event = changed[first]
    proposals = event["forward_mode"] == "TARGET_VERIFY" or (
        event["forward_mode"] == "DECODE" and "worker" in event
    )
    # Proposals have no true token; a first token without prefix has no predecessor to follow; a
    # copy may bring what was there, and a padding row's values mean nothing.
    assume(not (fault == "wrong_token" and proposals))
    assume(fault != "shifted_position" or engine.padding == "none")
    assume(fault != "wrong_token" or engine.padding == "none")
    # The first fingerprint of a slot that has none yet is taken as the right one.
    assume(fault != "changed_bytes" or engine.kv_hash_every == 1)
    at_step = [v for v in replay(head, changed, sweep_interval=0).violations if v.step == step]
    if fault == "overwriting_copy":
        copied = next(e for e in changed[first - 2 : first + 1] if e["kind"] == "copy")
        assume(copied["src"] != copied["dst"])
        assume(predict(head, changed, check_kv=False))
    if fault == "shifted_position":
        assume(min(event["positions"]) > 1)
    assert at_step
    assert {v.check for v in at_step} & checks


# Backends.


def _same(one: ReplayResult, other: ReplayResult) -> None:
    assert list(one.violations) == list(other.violations)
    assert one.coverage == other.coverage
    assert one.kernel_counters == other.kernel_counters
    assert one.slot_counters == other.slot_counters
    assert one.verdict == other.verdict


def _faulty(engine: Settings, fault: str, seed: int) -> tuple[Event, list[Event]]:
    head, events = simulate(engine)
    planted = plant(fault, random.Random(seed), head, events)
    return head, events if planted is None else planted[0]


@given(engine_settings(), st.sampled_from(sorted(FAULTS)), SWEEPS, st.booleans())
@settings(max_examples=15, suppress_health_check=SLOW)
def test_cpu_and_reference_agree_field_by_field(
    engine: Settings, fault: str, sweep: int, v_half: bool
) -> None:
    head, events = _faulty(engine, fault, engine.seed)
    options = {"sweep_interval": sweep, "v_half": v_half}
    _same(
        replay(head, events, backend="cpu", **options),
        replay(head, events, backend="reference", **options),
    )


@pytest.mark.parametrize("fault", ["changed_bytes", "stale_lut"])
def test_the_interpreted_kernels_agree_field_by_field(fault: str) -> None:
    engine = Settings(
        seed=5, steps=5, window=4 if fault == "stale_lut" else 0, padding="middle", kv_hash_every=1
    )
    head, events = _faulty(engine, fault, 7)
    one = replay(head, events, sweep_interval=2)
    assert list(one.violations)
    _same(one, replay(head, events, backend="triton", sweep_interval=2))


# Names and forms.

FAULTY = st.sampled_from(
    ["swapped_cells", "foreign_write", "overwriting_copy", "shifted_position", "changed_bytes"]
)


def _plain(found: list[Violation]) -> list[Violation]:
    return [without_event(violation) for violation in found]


def _found(head: Event, events: list[Event], **options: Any) -> list[Violation]:
    return list(replay(head, events, **({"sweep_interval": 4} | options)).violations)


@given(engine_settings(), FAULTY, st.integers(1, 9), st.integers(-(1 << 40), 1 << 40))
@settings(max_examples=10, suppress_health_check=SLOW)
def test_segments_numbering_and_unknown_parts_change_nothing(
    engine: Settings, fault: str, segment_events: int, first: int
) -> None:
    head, events = _faulty(engine, fault, engine.seed)
    expected = _found(head, events)
    assert _found(head, events, segment_events=segment_events) == expected
    moved = _found(head, transforms.renumber(events, first))
    assert moved == [dataclasses.replace(v, event=v.event + first) for v in expected]
    assert _plain(_found(head, transforms.sprinkle_unknown(events))) == _plain(expected)
    later = head | {"x_header": 1, "records": [*head["records"], "x_family"]}
    assert _found(later, events) == expected


@given(engine_settings(), FAULTY, st.randoms(use_true_random=False))
@settings(max_examples=10, suppress_health_check=SLOW)
def test_names_of_requests_rows_and_slots_do_not_matter(
    engine: Settings, fault: str, rng: random.Random
) -> None:
    head, events = _faulty(engine, fault, engine.seed)
    expected = _found(head, events)

    renamed = transforms.rename_requests(events, lambda name: f"[{name}]\u2028'")
    back = [
        v if v.req is None else dataclasses.replace(v, req=v.req[1:-3])
        for v in _found(head, renamed)
    ]
    assert back == expected

    rows = [0, *rng.sample(range(1, engine.rows), engine.rows - 1)]
    moved = _found(head, transforms.permute_rows(events, lambda row: rows[row]))
    assert [
        v if v.row is None else dataclasses.replace(v, row=rows.index(v.row)) for v in moved
    ] == expected

    top = head["pool"]["max_slot"]
    to = [0, *rng.sample(range(1, top + 1), top)]
    moved = _found(head, transforms.permute_slots(events, lambda s: to[s] if s > 0 else s))
    assert [
        dataclasses.replace(
            v,
            slot=to.index(v.slot),
            prev_slot=to.index(v.prev_slot) if v.prev_slot > 0 else v.prev_slot,
        )
        if v.pool_kind == "FULL"
        else v
        for v in moved
    ] == expected


@pytest.mark.parametrize("seed", range(3))
def test_every_form_of_a_trace_gives_the_same(seed: int, tmp_path: Path) -> None:
    engine = Settings(seed=seed, padding="middle", host_tier=True, kv_hash_every=1, steps=14)
    head, events = _faulty(engine, "swapped_cells", seed)
    expected = _found(head, events)
    assert expected
    for suffix in SUFFIXES:
        path = write_trace(tmp_path / f"t{suffix}", head, events)
        assert _found(head, read_events(path)) == expected


# Options.


@given(engine_settings(), FAULTY, st.integers(0, 14), st.integers(0, 14), SWEEPS)
@settings(max_examples=10, suppress_health_check=SLOW)
def test_filters_give_what_they_name_of_the_whole(
    engine: Settings, fault: str, one: int, other: int, sweep: int
) -> None:
    head, events = _faulty(engine, fault, engine.seed)
    options = {"sweep_interval": sweep}
    whole = _found(head, events, **options)
    first, last = sorted((one, other))
    inside = [v for v in whole if first <= v.step <= last]
    assert _found(head, events, steps=(first, last), **options) == inside
    assert _found(head, events, steps=(first, None), **options) == [
        v for v in whole if v.step >= first
    ]
    assert _found(head, events, steps=(None, last), **options) == [
        v for v in whole if v.step <= last
    ]
    reqs = frozenset({"r1", "r3"})
    assert _found(head, events, reqs=reqs, **options) == [v for v in whole if v.req in reqs]
    slots = frozenset(range(0, 60, 3))
    assert _found(head, events, slots=slots, **options) == [v for v in whole if v.slot in slots]


@given(engine_settings(), FAULTY, SWEEPS)
@settings(max_examples=15, suppress_health_check=SLOW)
def test_raise_mode_stops_at_the_first_violating_forward(
    engine: Settings, fault: str, sweep: int
) -> None:
    head, events = _faulty(engine, fault, engine.seed)
    whole = _found(head, events, sweep_interval=sweep)
    result = replay(head, events, mode=Mode.RAISE, sweep_interval=sweep)
    stopped = list(result.violations)
    if not whole:
        assert not stopped
        assert result.coverage.stopped_at_step is None
        return
    launched = [v for v in whole if v.event == whole[0].event]
    # A sweep behind the forward no longer runs.
    assert stopped == [v for v in launched if (v.forward_mode is None) == (
        launched[0].forward_mode is None)]  # fmt: skip
    assert result.coverage.stopped_at_step == whole[0].step


def _rows(found: list[Violation]) -> Counter[Any]:
    return Counter((v.step, v.event, v.worker, row) for v in found for row in ring_rows(v))


def _is_of_a_tree(violation: Violation) -> bool:
    """Whether no launch reports it: nodes of a tree are held against their parents beside them."""
    return violation.check == CHAIN_POSITION and violation.forward_mode == "TARGET_VERIFY"


# A tree's node stands at a wrong position.
TREE = Settings(seed=0, window=3, draft_tokens=3, tree=True, steps=14)


@given(engine_settings(), FAULTY, st.integers(1, 12))
@example(TREE, "shifted_position", 1)
@settings(max_examples=15, suppress_health_check=SLOW)
def test_a_ring_keeps_its_first_rows(engine: Settings, fault: str, room: int) -> None:
    engine = dataclasses.replace(engine, draft_worker=False)
    head, events = _faulty(engine, fault, engine.seed)
    result = replay(head, events, sweep_interval=4, ring_capacity=room)
    found, reported = _found(head, events), list(result.violations)
    if engine.tree:
        trees = [[v for v in each if _is_of_a_tree(v)] for each in (found, reported)]
        assert trees[0] == trees[1]
        found, reported = ([v for v in each if not _is_of_a_tree(v)] for each in (found, reported))
    whole, kept = _rows(found), _rows(reported)
    assert kept.total() == min(room, whole.total())
    assert not kept - whole
    assert kept.total() + result.ring_lost == whole.total()
    if whole and kept:
        last = max(event for _, event, *_ in kept)
        assert all(kept[row] == n for row, n in whole.items() if row[1] < last)


@given(engine_settings(), FAULTY, SWEEPS)
@settings(max_examples=15, suppress_health_check=SLOW)
def test_strict_upstream_reports_a_part_of_the_whole(
    engine: Settings, fault: str, sweep: int
) -> None:
    head, events = _faulty(engine, fault, engine.seed)
    whole = {
        (v.event, v.worker, v.pool_kind, v.check, v.slot, v.row, v.expected_position): v
        for v in _found(head, events, sweep_interval=sweep)
        if v.forward_mode is not None
    }
    for v in _found(head, events, sweep_interval=sweep, strict_upstream=True):
        key = (v.event, v.worker, v.pool_kind, v.check, v.slot, v.row, v.expected_position)
        assert set(v.fail_reasons) <= set(whole[key].fail_reasons)
        assert not {"verify_token", "verify_real_kv_hash", "write_token"} & set(v.fail_reasons)
        assert v.forward_mode is not None
        assert v.expected_token is None
