"""Incremental verification says what full verification says: whole documents are compared."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from kvcanary_cli.errors import NothingCheckedError, UsageError
from kvcanary_cli.inject.inject import inject_faults, load_run
from kvcanary_cli.inject.kinds import KINDS
from kvcanary_cli.replay.options import Verify
from tests.replay import transforms
from tests.replay.documents import assert_incremental_is_full, disturbed, document
from tests.replay.faults import FAULTS, plant
from tests.replay.simulator import Settings, simulate
from tests.replay.test_properties import engine_settings
from tests.trace.helpers import read_events

Event = dict[str, Any]
DATA = Path(__file__).parents[1] / "data"
CAPTURES = sorted((DATA / "captures").glob("*.jsonl.zst"))
SCENARIOS = sorted((DATA / "scenarios").glob("*.jsonl"))
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture]
SWEEPS = st.sampled_from([None, 0, 1, 3])


def _trace(path: Path) -> tuple[Event, list[Event]]:
    from kvcanary_cli.trace.reader import open_trace

    return dict(open_trace(str(path)).header.raw), read_events(str(path))


@pytest.mark.parametrize("path", [*CAPTURES, *SCENARIOS], ids=lambda path: path.name)
def test_shipped_traces(path: Path) -> None:
    head, events = _trace(path)
    assert_incremental_is_full(head, events)


@pytest.mark.parametrize("kind", [name for name, kind in KINDS.items() if not kind.several_ranks])
def test_injected_faults(kind: str) -> None:
    for name in ("canary_clean_all", "swa_canary_clean", "ngram_clean", "vllm_clean"):
        run = load_run(str(DATA / "captures" / f"{name}.jsonl.zst"))
        try:
            events, _ = inject_faults(run, KINDS[kind], step=None, seed=3, count=1, name=name)
        except NothingCheckedError:
            continue
        assert_incremental_is_full(dict(run.header), events)
        return


@given(engine_settings(steps=20), SWEEPS)
@settings(max_examples=12, suppress_health_check=SLOW)
def test_clean_runs(engine: Settings, sweep: int | None) -> None:
    head, events = simulate(engine)
    assert_incremental_is_full(head, events, sweep_interval=sweep)


@given(engine_settings(), st.sampled_from(sorted(FAULTS)), st.integers(0, 1 << 32), SWEEPS)
@settings(max_examples=25, suppress_health_check=SLOW)
def test_planted_faults(engine: Settings, fault: str, seed: int, sweep: int | None) -> None:
    head, events = simulate(engine)
    planted = plant(fault, random.Random(seed), head, events)
    assume(planted is not None)
    assert planted is not None
    assert_incremental_is_full(head, planted[0], sweep_interval=sweep)


@given(
    engine_settings(),
    st.integers(0, 1 << 32),
    st.integers(1, 30),
    st.booleans(),
    st.booleans(),
    st.sampled_from([None, 2]),
    st.sampled_from([None, (3, 9), (5, None)]),
)
@settings(max_examples=40, suppress_health_check=SLOW)
# A request goes on behind its end.
@example(
    Settings(
        seed=7, window=3, draft_worker=True, draft_tokens=3, padding="end", kv_hash_every=1,
        share=True, steps=14, slots=48, rows=5, row_len=40, chunk=7,
    ),
    858746774, 12, False, False, None, None,
)  # fmt: skip
def test_soups(
    engine: Settings,
    seed: int,
    count: int,
    mid_run: bool,
    v_half: bool,
    ring: int | None,
    steps: tuple[int | None, int | None] | None,
) -> None:
    head, events = simulate(engine)
    rng = random.Random(seed)
    events = disturbed(rng, head, events, count)
    if mid_run:
        head, events = transforms.start_mid_run(head, events, rng.randrange(len(events) // 2))
    assert_incremental_is_full(
        head, events, v_half=v_half, ring_capacity=ring, steps=steps, segment_events=17
    )


@given(
    engine_settings(),
    st.integers(0, 1 << 32),
    st.sets(st.sampled_from(["map", "alloc", "request", "history", "prefix", "lut", "kv_hash"])),
)
@settings(max_examples=12, suppress_health_check=SLOW)
def test_families_that_were_not_recorded(engine: Settings, seed: int, gone: set[str]) -> None:
    head, events = simulate(engine)
    events = disturbed(random.Random(seed), head, events, 6)
    head, events = transforms.drop_families(head, events, gone)
    assert_incremental_is_full(head, events)


@pytest.mark.parametrize(
    "options",
    [{"backend": "triton"}, {"backend": "auto"}, {"backend": "cpu", "strict_upstream": True}],
    ids=str,
)
def test_it_is_refused_where_it_cannot_be_had(
    options: Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a machine with a GPU, where auto is triton.
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    with pytest.raises(UsageError, match="--verify incremental runs on the host"):
        document(*_trace(SCENARIOS[0]), verify=Verify.INCREMENTAL, **options)
