"""Compiled events say what the general path says: whole documents, and all state, are compared."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from kvcanary_cli.replay import compiled
from kvcanary_cli.replay.options import Verify
from tests.replay.documents import disturbed, document
from tests.replay.faults import plant
from tests.replay.helpers import replay_with_state
from tests.replay.simulator import Settings, simulate
from tests.trace.helpers import read_events

if TYPE_CHECKING:
    from kvcanary_cli.replay.driver import Replay
    from kvcanary_cli.replay.result import ReplayResult

Event = dict[str, Any]
CAPTURES = Path(__file__).parents[1] / "data" / "captures"
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture]
#: Faults of ``tests.replay.faults`` that need neither fingerprints nor a SWA pool.
FAULTS = ("swapped_cells", "stale_row", "shifted_position", "wrong_token", "foreign_write",
          "skipped_write", "overwriting_copy")  # fmt: skip


@st.composite
def engine_settings(draw: st.DrawFn, steps: int = 30) -> Settings:
    """Runs that leave most events to compiled code."""
    return Settings(
        seed=draw(st.integers(0, 1 << 32)),
        page_size=draw(st.sampled_from([1, 1, 2, 4])),
        padding=draw(st.sampled_from(["none", "none", "end", "middle"])),
        host_tier=draw(st.booleans()),
        salted=draw(st.booleans()),
        steps=steps,
    )


def assert_compiled_is_general(head: Event, events: list[Event], **options: Any) -> None:
    general = document(head, events, verify=Verify.FULL, compiled=False, **options)
    fast = document(head, events, compiled=True, **options)
    for name, value in general.items():
        assert fast.get(name) == value, name
    assert fast == general


@given(engine_settings(), st.sampled_from([None, 5, 40]))
@settings(max_examples=10, suppress_health_check=SLOW)
def test_clean_runs(engine: Settings, segment_events: int | None) -> None:
    head, events = simulate(engine)
    assert_compiled_is_general(head, events, segment_events=segment_events)


# One row writes what another one of the batch reads; the scene is that of this step.
OVERWRITTEN = Settings(seed=678, page_size=2, padding="none", host_tier=True, salted=True, steps=30)
# A forward that is ordinary by itself reads what a padding row hit.
PADDED = Settings(seed=7216437, padding="middle", host_tier=True, share=True, steps=30, slots=48)


@given(engine_settings(), st.sampled_from(FAULTS), st.integers(0, 1 << 32))
@example(OVERWRITTEN, "foreign_write", 10390938)
@example(PADDED, "foreign_write", 19969265)
@settings(max_examples=15, suppress_health_check=SLOW)
def test_planted_faults(engine: Settings, fault: str, seed: int) -> None:
    head, events = simulate(engine)
    planted = plant(fault, random.Random(seed), head, events)
    assume(planted is not None)
    assert planted is not None
    assert_compiled_is_general(head, planted[0])


# Matches name an entry that other events name, too, and that was never published.
NEVER_PUBLISHED = Settings(
    seed=881, page_size=2, padding="none", host_tier=True, salted=True, steps=30
)


@given(engine_settings(), st.integers(0, 1 << 32), st.integers(1, 25), st.sampled_from([None, 9]))
@example(NEVER_PUBLISHED, 1066, 25, None)
@settings(max_examples=25, suppress_health_check=SLOW)
def test_soups(engine: Settings, seed: int, count: int, segment_events: int | None) -> None:
    head, events = simulate(engine)
    events = disturbed(random.Random(seed), head, events, count)
    assert_compiled_is_general(head, events, segment_events=segment_events)


def _state(run: Replay, result: ReplayResult) -> dict[str, Any]:
    """All that a later event could read, as plain values."""
    histories = run.pool.histories
    assert histories is not None
    out: dict[str, Any] = {
        "violations": list(result.violations),
        "coverage": result.coverage,
        "counters": (result.kernel_counters, result.slot_counters),
        "table": run.pool.table.tobytes(),
        "histories": {req: histories.tokens(req).tolist() for req in histories.requests()},
        "ended": histories.ended(),
        "rows": sorted(run.pool.row_of.items()),
        "requests": (sorted(run.requests), sorted(run.requests_checked)),
        "steps": (run.events, run.forwards, run.steps, *run.last_steps()),
    }
    for name, worker in run.workers.items():
        lane = worker.lanes[0]
        out[name] = (
            lane.serial,
            lane.written_at.tobytes(),
            *(buffer.numpy().tobytes() for buffer in lane.buffers().values()),
        )
    return out


@given(engine_settings(), st.integers(0, 1 << 32), st.integers(0, 25), st.sampled_from([None, 9]))
@settings(max_examples=15, suppress_health_check=SLOW)
def test_state_behind_a_replay(
    engine: Settings, seed: int, count: int, segment_events: int | None
) -> None:
    head, events = simulate(engine)
    events = disturbed(random.Random(seed), head, events, count)
    general = _state(*replay_with_state(head, events, compiled=False))
    fast = _state(*replay_with_state(head, events, compiled=True, segment_events=segment_events))
    for name, value in general.items():
        assert fast[name] == value, name


@pytest.mark.parametrize("name", ["clean_radix", "clean_mixed_chunk", "clean_page16", "vllm_clean"])
def test_captures_without_fingerprints(name: str) -> None:
    from kvcanary_cli.trace.reader import open_trace

    path = str(CAPTURES / f"{name}.jsonl.zst")
    head = dict(open_trace(path).header.raw)
    head["records"] = [family for family in head["records"] if family != "kv_hash"]
    events = [event for event in read_events(path) if event["kind"] != "kv_hash"]
    assert_compiled_is_general(head, events)


def test_few_events_do_not_load_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(self: compiled.CompiledEvents, segment: Any, k: int) -> int:
        raise AssertionError("a short trace waits for no compiler")

    monkeypatch.setattr(compiled.CompiledEvents, "run", run)
    head, events = simulate(Settings(seed=7))
    assert document(head, events)["verdict"] == "clean"


def test_most_of_a_clean_run_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """What keeps a replay from the kernel would show nowhere but in its time."""
    taken = 0
    original = compiled.CompiledEvents.run

    def run(self: compiled.CompiledEvents, segment: Any, k: int) -> int:
        nonlocal taken
        stopped = original(self, segment, k)
        taken += stopped - k
        return stopped

    monkeypatch.setattr(compiled.CompiledEvents, "run", run)
    head, events = simulate(Settings(seed=7, steps=80, share=False))
    assert_compiled_is_general(head, events)
    assert taken > len(events) // 2
