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
from tests.engines.runs import HERE, RUNS, Run, Runner, engine_env
from tests.engines.setup_sglang import ENVIRONMENT, SGLANG
from tests.record.helpers import events, replay

if TYPE_CHECKING:
    from pathlib import Path

CANARY = ("canary", "canary_overlap_page16", "canary_swa")
CLEAN = ("radix", "mixed", "retraction", "page16", "overlap", "swa", *CANARY)
STEPS, REQUESTS = 300, 40

#: Planted fault to the class that it must be called.
CLASSES = {
    "free_live_slot": "use_after_free",
    "hand_out_twice": "double_alloc",
    "swap_cells": "stale_mapping",
    "kv_bytes": "payload_mutation",
    "shift_position": "position_misalign",
}


def runs(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("done", names, indirect=True)


def _steps(trace: Path) -> list[int]:
    """Steps of the target's forwards."""
    return [
        event["step"]
        for event in events(trace)
        if event["kind"] == "forward" and event.get("worker") != "draft"
    ]


def _events(done: Run, kind: str, **fields: Any) -> list[dict[str, Any]]:
    return [e for e in events(done.trace) if e["kind"] == kind and fields.items() <= e.items()]


@runs(*CLEAN)
def test_a_healthy_run_replays_clean(done: Run) -> None:
    assert done.result["error"] is None
    assert done.result["finished"]
    trace = done.trace
    assert _steps(trace) == list(range(done.result["forwards"]))
    assert len(_steps(trace)) >= STEPS
    kinds: dict[str, int] = {}
    for event in events(trace):
        kinds[event["kind"]] = kinds.get(event["kind"], 0) + 1
    assert kinds["finish"] == REQUESTS == RUNS[done.name]["requests"]
    assert min(kinds[kind] for kind in ("map", "alloc", "free", "own", "match", "history")) > 0
    assert kinds.get("retract", 0) == done.result["retracted"]
    diagnosis = replay(trace)
    assert not diagnosis.ownership
    assert not diagnosis.findings
    assert not len(diagnosis.replay.violations)
    assert diagnosis.verdict == "clean"
    assert diagnosis.replay.coverage.entries_verified > 10_000


@runs("radix")
def test_the_radix_cache_evicts(done: Run) -> None:
    assert _events(done, "free", reason="evict")


@runs("radix", "mixed")
def test_prefills_come_in_chunks(done: Run) -> None:
    """A prompt that does not fit into a chunk goes on in the next step."""
    chunk = open_trace(done.trace).header.serving_args["chunked_prefill_size"]
    longest = max(n for e in _events(done, "match") for n in [len(e["slots"])])
    assert longest > 0
    split = 0
    ends: dict[str, int] = {}
    for event in _events(done, "forward"):
        rows = zip(event["reqs"], event.get("extend_prefix_lens") or [], strict=False)
        for k, (req, prefix) in enumerate(rows):
            split += ends.get(req) == prefix and event["extend_seq_lens"][k] > 1
            ends[req] = prefix + event["extend_seq_lens"][k]
        assert sum(event.get("extend_seq_lens") or []) <= chunk + len(event["reqs"])
    assert split > 5


@runs("mixed")
def test_batches_are_mixed(done: Run) -> None:
    assert done.result["modes"]["MIXED"] > 10


@runs("retraction")
def test_requests_are_retracted(done: Run) -> None:
    assert done.result["retracted"] > 0


@runs("page16", "canary_overlap_page16")
def test_pages_have_16_slots(done: Run) -> None:
    assert open_trace(done.trace).header.pool.page_size == 16


@runs("swa", "canary_swa")
def test_a_sliding_window_has_its_pool(done: Run) -> None:
    assert open_trace(done.trace).header.pool.swa_window > 0
    assert _events(done, "lut")


@runs("radix")
def test_the_header_says_what_was_recorded_and_no_secret(done: Run) -> None:
    header = open_trace(done.trace).header
    assert (header.engine_name, header.engine_version) == ("sglang", SGLANG)
    assert "sk-not-to-be-recorded" not in json.dumps(header.raw)
    assert header.serving_args is not None
    assert header.serving_args["max_total_tokens"] == 512
    assert header.serving_args["chunked_prefill_size"] == 32
    assert {"forward", "map", "alloc", "request", "history", "prefix"} <= header.records


@runs(*CANARY)
def test_the_replayed_canary_is_the_engines_own(done: Run) -> None:
    assert done.result["error"] is None
    reader = open_trace(done.trace)
    mine_run = Replay(reader.header, ReplayOptions(backend="cpu"))
    mine_run.run(reader)
    lanes = {lane.kind: lane.buffers() for lane in mine_run.workers[TARGET].lanes}
    kinds = {PoolKind.FULL, PoolKind.SWA} if RUNS[done.name].get("swa") else {PoolKind.FULL}
    assert lanes.keys() == kinds
    with np.load(done.folder / "canary.npz") as engine:
        assert len(engine.files) == 2 * len(kinds)
        for kind, buffers in lanes.items():
            for end in ("head", "tail"):
                mine = buffers["k", end].numpy()
                theirs = engine[f"{kind.name.lower()}_k_{end}"]
                assert np.array_equal(mine, theirs), (kind, end)
                assert theirs.any()
    assert not len(mine_run.violations)


@pytest.mark.parametrize(
    ("fault", "done"), [(fault, f"fault_{fault}") for fault in CLASSES], indirect=["done"]
)
def test_a_fault_in_the_live_engine_is_named(fault: str, done: Run) -> None:
    truth: dict[str, Any] = done.result["truth"]
    finding = replay(done.trace).findings[0]
    assert finding.cls == CLASSES[fault]
    assert finding.victim == truth["req"]
    assert truth["position"] in finding.positions
    if fault not in ("shift_position", "kv_bytes"):
        assert truth["slot"] in finding.slots
    # The first batch behind the fault that has the request reads the damage.
    reads = [
        event["step"]
        for event in _events(done, "forward")
        if event["step"] >= truth["step"] and truth["req"] in event["reqs"]
    ]
    latest = 1 if fault in ("free_live_slot", "hand_out_twice") else 0
    assert reads[0] <= finding.first_bad_step <= reads[latest]


@runs("canary_logs", "canary_raises")
def test_the_engines_own_canary_has_the_recording_kept(done: Run) -> None:
    raised = done.name == "canary_raises"
    assert ("canary" in (done.result["error"] or "")) == raised
    truth = done.result["truth"]
    (kept,) = (done.folder / "run.kvtrace").glob("*.kept1.kvtrace")
    found = events(kept)
    told = [e for e in found if e["kind"] == "triggered"]
    assert [e["by"] for e in told] == ["canary"]
    assert "kv_canary violation" in told[0]["text"]
    assert "\n" not in told[0]["text"]
    forwards = [e["step"] for e in found if e["kind"] == "forward"]
    # The engine looks a few steps later; what led there is in the trace.
    assert truth["step"] in forwards
    if raised:
        assert forwards[-1] == done.result["forwards"]
    finding = replay(kept).findings[0]
    assert (finding.cls, finding.victim) == ("stale_mapping", truth["req"])


@pytest.fixture(scope="module")
def without_gpu(sglang: Runner) -> dict[str, Any]:
    """What ``graph_script.py`` prints."""
    done = subprocess.run(
        [str(ENVIRONMENT.python), str(HERE / "graph_script.py")],
        env=engine_env(TRITON_INTERPRET="1"),
        capture_output=True,
        text=True,
        check=False,
    )
    lines = (line.partition(" ") for line in done.stdout.splitlines())
    said = {key: json.loads(rest) for key, _, rest in lines if key in ("unplaced", "event")}
    assert said.keys() == {"unplaced", "event"}, done.stderr[-2000:]
    return said


def test_every_hook_has_its_place_in_the_engine(without_gpu: dict[str, Any]) -> None:
    assert not without_gpu["unplaced"]


def test_rows_that_a_gpus_graph_adds_are_what_its_buffers_hold(
    without_gpu: dict[str, Any],
) -> None:
    assert without_gpu["event"] == {
        "reqs": ["a", "b", "c", None],
        "req_pool_indices": [1, 2, 3, 0],
        "seq_lens": [5, 6, 7, 1],
        "positions": [4, 5, 6, 0],
        "out_cache_loc": [11, 12, 13, 0],
        "input_ids": [7, 8, 9, 0],
        "raw_bs": 3,
    }


def test_the_command_records_an_engine_with_its_own_processes(
    sglang: Runner, tmp_path: Path
) -> None:
    python = str(ENVIRONMENT.python)
    command = [python, "-m", "kvcanary_cli", "record", "-o", str(tmp_path / "run.kvtrace"), "--"]
    done = subprocess.run(
        [*command, python, str(HERE / "engine_script.py"), str(tmp_path)],
        env=engine_env(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert "answers 8" in done.stdout, done.stderr[-3000:]
    assert done.returncode == 3
    (trace,) = (tmp_path / "run.kvtrace").glob("*.kvtrace")
    header = open_trace(trace).header
    assert header.tokens == "salted"
    assert not header.starts_mid_run
    assert len(_steps(trace)) >= 12
    diagnosis = replay(trace)
    assert not diagnosis.ownership
    assert not diagnosis.findings


@runs("radix")
def test_without_the_command_the_engine_is_not_touched(done: Run) -> None:
    """The process that does the runs has loaded SGLang and its plugins, and records nothing."""
    env = engine_env()
    assert str(HOOK_FOLDER) not in env["PYTHONPATH"].split(os.pathsep)
    assert "KVCANARY_RECORD" not in env
    assert "hooked False" in (done.folder.parent / "driver.txt").read_text()
