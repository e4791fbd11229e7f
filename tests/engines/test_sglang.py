"""Recordings of the real SGLang on a CPU, replayed."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kvcanary_cli.abi.constants import PoolKind
from kvcanary_cli.record.launch import HOOK_FOLDER
from kvcanary_cli.replay.driver import TARGET, Replay
from kvcanary_cli.replay.options import ReplayOptions
from kvcanary_cli.trace.reader import open_trace
from tests.engines.runs import HERE, RUNS, Run, engine_env, run
from tests.engines.setup_sglang import SGLANG, default_folder, interpreter, set_up
from tests.record.helpers import events, replay, steps

if TYPE_CHECKING:
    from pathlib import Path

CLEAN = ["radix", "mixed", "retraction", "page16", "overlap", "swa"]
STEPS, REQUESTS = 300, 40

#: Planted fault to the class that it must be called.
CLASSES = {
    "free_live_slot": "use_after_free",
    "hand_out_twice": "double_alloc",
    "swap_cells": "stale_mapping",
    "kv_bytes": "payload_mutation",
    "shift_position": "position_misalign",
}


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the runs' files go; the engine's environment is there."""
    set_up(default_folder())
    return tmp_path_factory.mktemp("engine")


def _trace(done: Run) -> Path:
    (trace,) = done.trace.glob("*.kvtrace")
    return trace


def _diagnose(done: Run) -> Any:
    return replay(_trace(done))


@pytest.mark.parametrize("name", CLEAN)
def test_a_healthy_run_replays_clean(name: str, base: Path) -> None:
    done = run(name, base)
    assert done.result["error"] is None
    assert done.result["finished"]
    trace = _trace(done)
    assert steps(trace) == list(range(done.result["forwards"]))
    assert len(steps(trace)) >= STEPS
    kinds: dict[str, int] = {}
    for event in events(trace):
        kinds[event["kind"]] = kinds.get(event["kind"], 0) + 1
    assert kinds["finish"] == REQUESTS == RUNS[name]["requests"]
    assert min(kinds[kind] for kind in ("map", "alloc", "free", "own", "match", "history")) > 0
    assert kinds.get("retract", 0) == done.result["retracted"]
    diagnosis = _diagnose(done)
    assert not diagnosis.ownership
    assert not diagnosis.findings
    assert not len(diagnosis.replay.violations)
    assert diagnosis.verdict == "clean"
    assert diagnosis.replay.coverage.entries_verified > 10_000


def test_the_runs_show_what_they_are_there_for(base: Path) -> None:
    assert run("mixed", base).result["modes"]["MIXED"] > 10
    assert run("retraction", base).result["retracted"] > 0
    assert open_trace(_trace(run("page16", base))).header.pool.page_size == 16
    assert open_trace(_trace(run("swa", base))).header.pool.swa_window > 0
    assert "lut" in {event["kind"] for event in events(_trace(run("swa", base)))}
    evicted = [
        event
        for event in events(_trace(run("radix", base)))
        if event["kind"] == "free" and event.get("reason") == "evict"
    ]
    assert evicted


def test_the_header_says_what_was_recorded_and_no_secret(base: Path) -> None:
    header = open_trace(_trace(run("radix", base))).header
    assert (header.engine_name, header.engine_version) == ("sglang", SGLANG)
    assert "sk-not-to-be-recorded" not in json.dumps(header.raw)
    assert header.serving_args is not None
    assert header.serving_args["max_total_tokens"] == 512
    assert header.serving_args["chunked_prefill_size"] == 32
    assert {"forward", "map", "alloc", "request", "history", "prefix"} <= header.records


def test_the_replayed_canary_is_the_engines_own(base: Path) -> None:
    done = run("canary", base)
    assert done.result["error"] is None
    reader = open_trace(_trace(done))
    mine_run = Replay(reader.header, ReplayOptions(backend="cpu"))
    mine_run.run(reader)
    (lane,) = mine_run.workers[TARGET].lanes
    assert lane.kind is PoolKind.FULL
    buffers = lane.buffers()
    with np.load(done.folder / "canary.npz") as engine:
        for end in ("head", "tail"):
            mine, theirs = buffers["k", end].numpy(), engine[f"full_k_{end}"]
            assert np.array_equal(mine, theirs), end
            assert theirs.any()
    assert not len(mine_run.violations)


@pytest.mark.parametrize("fault", CLASSES)
def test_a_fault_in_the_live_engine_is_named(fault: str, base: Path) -> None:
    done = run(f"fault_{fault}", base)
    truth: dict[str, Any] = done.result["truth"]
    finding = _diagnose(done).findings[0]
    assert finding.cls == CLASSES[fault]
    assert finding.victim == truth["req"]
    assert truth["position"] in finding.positions
    if fault not in ("shift_position", "kv_bytes"):
        assert truth["slot"] in finding.slots
    # The first batch behind the fault that has the request reads the damage.
    reads = [
        event["step"]
        for event in events(_trace(done))
        if event["kind"] == "forward"
        and event["step"] >= truth["step"]
        and truth["req"] in event["reqs"]
    ]
    latest = 1 if fault in ("free_live_slot", "hand_out_twice") else 0
    assert reads[0] <= finding.first_bad_step <= reads[latest]


def test_the_command_records_an_engine_with_its_own_processes(base: Path, tmp_path: Path) -> None:
    python = str(interpreter(default_folder()))
    command = [python, "-m", "kvcanary_cli", "record", "-o", str(tmp_path / "run.kvtrace"), "--"]
    done = subprocess.run(
        [*command, python, str(HERE / "engine_script.py"), str(tmp_path)],
        env=engine_env(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "answers 8" in done.stdout, done.stderr[-3000:]
    assert done.returncode == 3
    (trace,) = (tmp_path / "run.kvtrace").glob("*.kvtrace")
    header = open_trace(trace).header
    assert header.tokens == "salted"
    assert not header.starts_mid_run
    assert len(steps(trace)) >= 12
    diagnosis = replay(trace)
    assert not diagnosis.ownership
    assert not diagnosis.findings


def test_without_the_command_the_engine_is_not_touched(base: Path) -> None:
    code = (
        "import sglang.srt.managers.scheduler as s\n"
        "from sglang.srt.plugins import load_plugins\n"
        "load_plugins()\n"
        "print('hooked', hasattr(s.Scheduler.process_batch_result, '__kvcanary_original__'))\n"
    )
    env = {k: v for k, v in engine_env().items() if not k.startswith("KVCANARY_RECORD")}
    assert str(HOOK_FOLDER) not in env["PYTHONPATH"].split(os.pathsep)
    done = subprocess.run(
        [str(interpreter(default_folder())), "-c", code],
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "hooked False" in done.stdout, done.stderr[-2000:]
