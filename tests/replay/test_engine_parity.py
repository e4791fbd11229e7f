"""Replays of recorded runs against what the engine's own canary held and reported."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kvcanary_cli.abi.constants import PoolKind
from kvcanary_cli.replay.conclude import conclude
from kvcanary_cli.replay.driver import TARGET, Replay, replay_trace
from kvcanary_cli.replay.options import ReplayOptions
from kvcanary_cli.replay.violations import INPUT_ASSERT
from kvcanary_cli.report.log_lines import ring_rows
from kvcanary_cli.trace.reader import open_trace
from tests.replay.helpers import segments_one_by_one
from tests.tools.engine_state import CAPTURES, EngineState, load_engine_state

if TYPE_CHECKING:
    from kvcanary_cli.replay.result import ReplayResult
    from kvcanary_cli.replay.violations import Violation
    from kvcanary_cli.trace.reader import TraceReader

WITH_CANARY = sorted(path.name.split(".")[0] for path in CAPTURES.glob("*.engine.npz"))
PLANTED = [name for name in WITH_CANARY if name.startswith("bug_")]
CLEAN = sorted(
    path.name.split(".")[0]
    for path in CAPTURES.glob("*.jsonl.zst")
    if not path.name.startswith("bug_")
)


def _open(name: str) -> TraceReader:
    return open_trace(CAPTURES / f"{name}.jsonl.zst")


def _v_half(name: str) -> bool:
    return str(_open(name).header.raw["canary"]["enable_mha_v"]) == "1"


@cache
def _replayed(name: str, backend: str = "cpu") -> tuple[Replay, ReplayResult]:
    reader = _open(name)
    run = Replay(reader.header, ReplayOptions(backend=backend, v_half=_v_half(name)))
    run.run(reader)
    return run, conclude(run, reader)


def _engine_buffer(state: EngineState, kind: PoolKind, half: str, end: str) -> Any:
    return getattr(state, f"{'swa_' if kind is PoolKind.SWA else ''}{half}_{end}")


def test_the_captures_are_the_ones_that_are_meant() -> None:
    assert len(WITH_CANARY) == 7
    assert len(PLANTED) == 5
    assert len(CLEAN) == 7


@pytest.mark.parametrize("name", WITH_CANARY)
def test_final_buffers_are_the_engines(name: str) -> None:
    state = load_engine_state(name)
    run, _ = _replayed(name)
    lanes = run.workers[TARGET].lanes
    assert [lane.kind for lane in lanes] == [PoolKind.FULL, PoolKind.SWA][: len(lanes)]
    assert (len(lanes) == 2) == (state.swa_k_head is not None)
    for lane in lanes:
        for (half, end), buffer in lane.buffers().items():
            mine, engine = buffer.numpy(), _engine_buffer(state, lane.kind, half, end)
            assert mine.shape == engine.shape
            if half == "v" and end == "tail":
                # Only K was fingerprinted in the recording.
                mine, engine = mine[:, :24], engine[:, :24]
            assert np.array_equal(mine, engine), (lane.kind, half, end)
            assert engine.any(), "the engine wrote nothing: the comparison would be empty"


@pytest.mark.parametrize("name", WITH_CANARY)
def test_counters_are_the_engines_after_every_step(name: str) -> None:
    state = load_engine_state(name)
    reader = _open(name)
    run = Replay(reader.header, ReplayOptions(backend="cpu", v_half=_v_half(name)))
    kernels, slots = [], []

    def note() -> None:
        run.flush()
        canary = run.workers[TARGET].state
        kernels.append(canary.kernel_run_counters.tolist())
        slots.append(canary.slot_run_counters.tolist())

    for segment in reader.segments():
        for event in segments_one_by_one(segment):
            if event.kind_of(0) == "forward" and run.workers:
                note()
            run.feed(event)
    note()
    assert kernels == state.kernel_run_counters.tolist()
    assert slots == state.slot_run_counters.tolist()


def _ring(violations: list[Violation]) -> Counter[tuple[int, ...]]:
    return Counter(
        (
            row.kernel_kind,
            row.slot,
            row.position,
            row.stored_token,
            row.expected_token,
            row.stored_chain_hash,
            row.expected_aux,
            row.fail_bits,
        )
        for violation in violations
        for row in ring_rows(violation)
    )


@pytest.mark.parametrize("name", WITH_CANARY)
def test_ring_rows_are_the_engines(name: str) -> None:
    state = load_engine_state(name)
    found = list(_replayed(name)[1].violations)
    # The engine ran without a token oracle: only the replay compares written tokens.
    seen_by_engine = [v for v in found if v.check != INPUT_ASSERT]
    assert _ring(seen_by_engine) == Counter(
        tuple(int(value) for value in row) for row in state.violation_ring
    )


@pytest.mark.parametrize("name", WITH_CANARY)
def test_ring_rows_by_step_are_the_engines(name: str) -> None:
    state = load_engine_state(name)
    forwards = np.diff(state.violation_write_index, prepend=0)
    by_step: Counter[int] = Counter()
    for violation in _replayed(name)[1].violations:
        if violation.check != INPUT_ASSERT:
            by_step[violation.step] += len(violation.launch_tags)
    assert {step: int(count) for step, count in enumerate(forwards) if count} == by_step


@pytest.mark.parametrize("name", PLANTED)
def test_planted_bug_is_flagged_at_its_step_and_not_later_than_by_the_engine(name: str) -> None:
    truth = _open(name).header.raw["ground_truth"]
    state = load_engine_state(name)
    engine_step = int(np.flatnonzero(state.violation_write_index)[0])
    result = _replayed(name)[1]
    first = min(v.step for v in result.violations)

    assert truth["step"] <= first <= engine_step
    assert result.verdict == "corrupt"


@pytest.mark.parametrize("name", PLANTED)
def test_both_host_backends_find_the_same(name: str) -> None:
    cpu, reference = _replayed(name)[1], _replayed(name, "reference")[1]
    assert list(cpu.violations) == list(reference.violations)
    assert cpu.coverage == reference.coverage


@pytest.mark.parametrize("name", CLEAN)
def test_clean_runs_are_clean(name: str) -> None:
    result = replay_trace(_open(name), ReplayOptions(backend="cpu"))

    assert not list(result.violations)
    assert result.verdict == "clean"
    assert result.coverage.entries_verified > 1000
    assert result.coverage.lost_events == 0


@pytest.mark.parametrize("name", CLEAN)
def test_clean_runs_are_clean_under_extra_sweeps(name: str) -> None:
    result = replay_trace(_open(name), ReplayOptions(backend="cpu", sweep_interval=3))

    assert not list(result.violations)
    if "prefix" in result.trace.records:
        assert result.coverage.sweep_entries > 0
