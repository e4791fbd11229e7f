"""Recordings of the real vLLM on a CPU, replayed."""

from __future__ import annotations

import subprocess
from collections import Counter
from typing import Any

import numpy as np
import pytest

from kvcanary_cli.trace.reader import open_trace
from tests.engines.driving import KILLS_S
from tests.engines.killed import check
from tests.engines.setup_vllm import ENVIRONMENT, VLLM
from tests.engines.vllm_runs import GROUP_FAULTS, RUNS, Run, engine_env, run_all
from tests.record.helpers import events, replay, sound_verdict, steps

CLEAN = ["prefix", "preemption", "ngram", "eagle"]
STEPS, REQUESTS = 300, 40
#: What the requests' names end in where the second group of layers is told.
GROUP = "/group-1"

#: Planted fault to the class that it must be called.
CLASSES = {
    "free_live_block": "use_after_free",
    "hand_out_twice": "double_alloc",
    "swap_cells": "stale_mapping",
    "kv_bytes": "payload_mutation",
    "shift_position": "position_misalign",
    "shift_slot": "late_write",
}


@pytest.fixture(scope="session")
def runs(scratch: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """The finished runs."""
    return run_all(tmp_path_factory.mktemp("vllm"))


def _kinds(run: Run) -> Counter[str]:
    return Counter(event["kind"] for event in events(run.trace))


def _forwards(run: Run) -> list[dict[str, Any]]:
    return [event for event in events(run.trace) if event["kind"] == "forward"]


@pytest.mark.parametrize("name", [*CLEAN, "paired", "connector", "sends", "no_cache"])
def test_a_healthy_run_replays_clean(name: str, runs: dict[str, Run]) -> None:
    done = runs[name]
    assert done.result["error"] is None
    assert done.result["finished"]
    # A launch in which one request reads what another one writes is told as two.
    assert steps(done.trace) == list(range(len(steps(done.trace))))
    split = len(steps(done.trace)) - done.result["launches"]
    assert 0 <= split <= REQUESTS
    kinds = _kinds(done)
    requests = RUNS[name]["requests"] * RUNS[name].get("waves", 1)
    assert kinds["finish"] + kinds["abort"] == requests
    assert kinds["abort"] == done.result["aborted"]
    assert kinds["retract"] == done.result["preempted"]
    diagnosis = replay(done.trace)
    assert not diagnosis.ownership
    assert not diagnosis.findings
    assert not len(diagnosis.replay.violations)
    assert diagnosis.verdict == "clean"
    if name in CLEAN:
        assert len(steps(done.trace)) >= STEPS
        assert kinds["finish"] + kinds["abort"] == REQUESTS
        assert diagnosis.replay.coverage.entries_verified > 50_000
        told = ("map", "alloc", "free", "own", "publish", "unpublish", "match", "history")
        assert min(kinds[kind] for kind in told) > 0


def test_what_recording_options_leave_replays_clean(runs: dict[str, Run]) -> None:
    for name in ("option_start", "option_gaps"):
        diagnosis = replay(runs[name].trace)
        assert not diagnosis.ownership
        assert not diagnosis.findings
        assert diagnosis.verdict == sound_verdict(diagnosis)
    assert replay(runs["option_start"].trace).verdict == "clean"
    start = runs["option_start"]
    header = open_trace(start.trace).header
    assert (header.tokens, header.starts_mid_run) == ("absent", True)
    assert all("input_ids" not in event for event in _forwards(start))
    assert "wrong_token_fed" in replay(start.trace).replay.coverage.blind_to
    assert steps(start.trace)[0] >= 25
    read = {e["step"] for e in events(start.trace) if e.get("phase") == "before"}
    # Every third launch, which may be told as several forwards; one may read nothing.
    assert 0.2 < len(read) / len(_forwards(start)) < 0.45
    assert start.result["preempted"] > 0
    coverage = replay(runs["option_gaps"].trace).replay.coverage
    assert coverage.lost_events > 0
    assert 0 < coverage.steps < runs["option_gaps"].result["launches"]


def test_the_runs_show_what_they_are_there_for(runs: dict[str, Run]) -> None:
    assert runs["prefix"].result["aborted"] > 0
    assert replay(runs["prefix"].trace).replay.coverage.kv_hashes > 10_000
    assert runs["preemption"].result["preempted"] > 10
    assert {"MIXED", "DECODE"} <= {e["forward_mode"] for e in _forwards(runs["preemption"])}
    assert "TARGET_VERIFY" in {e["forward_mode"] for e in _forwards(runs["ngram"])}
    reasons = {e.get("reason") for e in events(runs["preemption"].trace) if e["kind"] == "free"}
    assert {"evict", "retract", "release"} <= reasons
    assert not {"own", "publish", "match"} & set(_kinds(runs["no_cache"]))
    loaded = Counter(e["kind"] for e in events(runs["connector"].trace))
    assert loaded["transfer_begin"] == loaded["copy"] == loaded["transfer_end"] >= 6
    # Requests that arrive together are served from blocks that are being written.
    assert len(steps(runs["paired"].trace)) - runs["paired"].result["launches"] >= 4


@pytest.mark.parametrize("name", ["ngram", "eagle"])
def test_the_tokens_told_are_those_that_were_answered(name: str, runs: dict[str, Run]) -> None:
    done = runs[name]
    told: dict[str, list[int]] = {}
    for event in events(done.trace):
        if event["kind"] == "history":
            tokens = told.setdefault(event["req"], [])
            assert event["start"] == len(tokens)
            tokens += event["ids"]
    assert told == done.result["tokens"]


@pytest.mark.parametrize("name", ["ngram", "eagle"])
def test_accepted_drafts_are_what_the_request_went_on_with(name: str, runs: dict[str, Run]) -> None:
    done = runs[name]
    tokens = done.result["tokens"]
    accepted = told = 0
    for event in events(done.trace):
        if event["kind"] != "accept":
            continue
        told += 1
        count, end = len(event["nodes"]), event["committed_len"]
        assert event["nodes"] == list(range(count))
        # The last token may lie behind the request's end.
        said = tokens[event["req"]][end - count : end + 1]
        assert event["tokens"][: len(said)] == said
        accepted += count - 1
    assert told > STEPS
    # A draft model with random weights guesses as well as chance.
    assert name == "eagle" or accepted > 100


def test_a_draft_models_own_forwards_are_said_to_be_left_out(runs: dict[str, Run]) -> None:
    (left_out,) = open_trace(runs["eagle"].trace).header.not_recorded
    assert left_out == "forwards of the draft model (eagle) and the KV of its layers"
    assert "TARGET_VERIFY" in {event["forward_mode"] for event in _forwards(runs["eagle"])}


def test_the_last_owners_are_the_engines_own(runs: dict[str, Run]) -> None:
    """What the cache owns at the end is what the block pool still has a hash of."""
    for name in [*CLEAN, "hybrid", "windows"]:
        done = runs[name]
        owned: set[int] = set()
        for event in events(done.trace):
            if event["kind"] == "own" and event["owner"] == "tree":
                owned |= set(event["slots"])
            elif event["kind"] in ("free", "alloc"):
                owned -= set(event["slots"])
        size = open_trace(done.trace).header.pool.page_size
        assert {slot // size for slot in owned} == set(done.result["cached_blocks"])


def test_the_header_says_what_was_recorded(runs: dict[str, Run]) -> None:
    header = open_trace(runs["prefix"].trace).header
    assert (header.engine_name, header.engine_version) == ("vllm", VLLM)
    assert not header.starts_mid_run
    assert header.pool.reserved == tuple(range(32))
    assert (header.pool.slots, header.pool.max_slot) == (63 * 32, 64 * 32 - 1)
    assert header.serving_args is not None
    assert header.serving_args["max_num_seqs"] == 8
    assert header.serving_args["block_size"] == 32
    families = {"forward", "map", "alloc", "request", "history", "prefix", "kv_hash"}
    assert families <= header.records
    assert "spec" not in header.records
    assert "spec" in open_trace(runs["ngram"].trace).header.records
    assert open_trace(runs["preemption"].trace).header.tokens == "salted"


@pytest.mark.parametrize("fault", CLASSES)
def test_a_fault_in_the_live_engine_is_named(fault: str, runs: dict[str, Run]) -> None:
    done = runs[f"fault_{fault}"]
    # Launches and steps of the trace have the same numbers here.
    assert len(steps(done.trace)) == done.result["launches"]
    truth: dict[str, Any] = done.result["truth"]
    finding = replay(done.trace).findings[0]
    assert finding.cls == CLASSES[fault]
    if fault == "shift_slot":
        # Whoever reads the slot that was hit, and who hit it.
        assert finding.victim == truth["other"]
        assert finding.culprit.req == truth["req"]
        assert set(finding.slots) == {truth["target"]}
    else:
        assert finding.victim == truth["req"]
    if fault == "shift_position":
        assert truth["position"] in finding.positions
    if fault in ("kv_bytes", "swap_cells"):
        assert truth["slot"] in finding.slots
    if fault in ("free_live_block", "hand_out_twice"):
        assert {slot // 32 for slot in finding.slots} == {truth["slot"] // 32}
    assert finding.first_bad_step == _first_bad_step(done, fault, truth)


def test_each_group_of_layers_is_told_and_replays_clean(runs: dict[str, Run]) -> None:
    """The second group, which looks back a window, under names of its own."""
    done = runs["hybrid"]
    assert done.result["error"] is None
    assert done.result["finished"]
    found = events(done.trace)
    fed: dict[bool, dict[str, list[int]]] = {False: {}, True: {}}
    for event in found:
        if event["kind"] == "forward":
            of_group = {req.endswith(GROUP) for req in event["reqs"]}
            assert len(of_group) == 1
            starts = [0, *np.cumsum(_counts(event))]
            for b, req in enumerate(event["reqs"]):
                tokens = fed[of_group == {True}].setdefault(req.removesuffix(GROUP), [])
                tokens += event["input_ids"][starts[b] : starts[b + 1]]
    # Both are fed the same, and it all.
    assert fed[False] == fed[True]
    assert len(fed[True]) == REQUESTS
    assert len(steps(done.trace)) >= 2 * STEPS
    for kind in ("alloc", "free", "own", "match", "publish", "finish", "row_release"):
        names = {e.get("req") or e.get("owner") or "" for e in found if e["kind"] == kind}
        names |= {e["from"] for e in found if e["kind"] == "own" == kind}
        assert any(name.endswith(GROUP) for name in names), kind
        assert any(name.startswith("req-") and GROUP not in name for name in names), kind
    # What a window has left behind is given back, while the request goes on.
    assert any(e.get("reason") == "window" for e in found if e["kind"] == "free")
    gone = [e for e in found if e["kind"] == "map" and not any(e["slots"])]
    assert gone
    assert not open_trace(done.trace).header.not_recorded
    diagnosis = replay(done.trace)
    assert not diagnosis.ownership
    assert not diagnosis.findings
    assert not len(diagnosis.replay.violations)
    assert diagnosis.verdict == "clean"
    coverage = diagnosis.replay.coverage
    assert min(coverage.entries_verified, coverage.kv_hashes) > 50_000


@pytest.mark.parametrize("name", ["hybrid_preemption", "windows"])
def test_windows_replay_clean_whatever_else_happens(name: str, runs: dict[str, Run]) -> None:
    """Under preemption, from the middle on; and where all layers look back a window only."""
    done = runs[name]
    assert done.result["finished"]
    diagnosis = replay(done.trace)
    assert not diagnosis.ownership
    assert not diagnosis.findings
    assert diagnosis.verdict == "clean"
    assert diagnosis.replay.coverage.entries_verified > 10_000
    assert {"forward", "map"} <= open_trace(done.trace).header.records
    names = {req for event in _forwards(done) for req in event["reqs"]}
    assert any(name.endswith(GROUP) for name in names) == (name == "hybrid_preemption")
    assert (done.result["preempted"] > 0) == (name == "hybrid_preemption")


@pytest.mark.parametrize("fault", GROUP_FAULTS)
def test_a_fault_in_a_further_group_of_layers_is_named(fault: str, runs: dict[str, Run]) -> None:
    done = runs[f"fault_group_{fault}"]
    truth = done.result["truth"]
    finding = replay(done.trace).findings[0]
    assert (finding.cls, finding.victim) == (CLASSES[fault], truth["req"] + GROUP)
    assert truth["slot"] // 32 in {slot // 32 for slot in finding.slots}
    if fault in ("kv_bytes", "swap_cells"):
        # Two forwards for each launch.
        assert finding.first_bad_step in (2 * truth["launch"], 2 * truth["launch"] + 1)


def test_what_a_connector_keeps_blocks_for_is_told(runs: dict[str, Run]) -> None:
    """From every request's end on until the engine is told that it was sent, several at a time."""
    told = events(runs["sends"].trace)
    open_now: dict[str, str] = {}
    most, sent = 0, set()
    for event in told:
        if event["kind"] == "transfer_begin":
            assert event["via"] == "store"
            assert event["slots"]
            open_now[event["req"]] = event["id"]
        elif event["kind"] == "transfer_end":
            assert open_now.pop(event["req"]) == event["id"]
            sent.add(event["req"])
        elif event["kind"] in ("free", "own"):
            assert event.get("from", event["owner"]) not in open_now
        most = max(most, len(open_now))
    assert not open_now
    # A request that was aborted before it had blocks has nothing to send.
    assert {e["req"] for e in told if e["kind"] == "finish"} <= sent
    assert runs["sends"].result["aborted"] > 0
    assert most > 1
    (left_out,) = open_trace(runs["sends"].trace).header.not_recorded
    assert "HoldingConnector" in left_out


def test_blocks_freed_while_they_are_sent_are_named(runs: dict[str, Run]) -> None:
    done = runs["fault_free_while_sending"]
    truth = done.result["truth"]
    (finding,) = replay(done.trace).findings
    assert (finding.cls, finding.subtype) == ("transfer_race", "store_read_after_free")
    assert finding.culprit.req == truth["req"]
    assert {slot // 32 for slot in finding.slots} <= set(truth["blocks"])
    told = events(done.trace)
    freed = [e for e in told if e["kind"] == "free" and e["owner"] == truth["req"]]
    assert finding.cause_event in {e["i"] for e in freed}


def _first_bad_step(done: Run, fault: str, truth: dict[str, Any]) -> int:
    """The first forward that reads the damage, from the trace and what was planted."""
    launched = [
        e for e in _forwards(done) if truth["req"] in e["reqs"] and e["step"] >= truth["launch"]
    ]
    if fault not in ("free_live_block", "hand_out_twice"):
        return int(launched[0]["step"])
    block = truth["slot"] // 32
    spoiled = [
        e["step"]
        for e in _forwards(done)
        if e["step"] >= truth["launch"]
        and any(
            slot // 32 == block and req != truth["req"]
            for slot, req in zip(e["out_cache_loc"], _writers(e), strict=True)
        )
    ]
    # In one launch layers write before they read.
    return int(min(e["step"] for e in launched if e["step"] >= spoiled[0]))


def _counts(forward: dict[str, Any]) -> list[int]:
    """Tokens that each row writes."""
    return forward.get("extend_seq_lens") or [1] * len(forward["reqs"])


def _writers(forward: dict[str, Any]) -> list[str]:
    rows = zip(forward["reqs"], _counts(forward), strict=True)
    return [req for req, count in rows for _ in range(count)]


@pytest.mark.parametrize("k", range(len(KILLS_S)))
def test_a_killed_engine_core_leaves_what_was_sealed(
    k: int, runs: dict[str, Run], capsys: pytest.CaptureFixture[str]
) -> None:
    done = runs[f"killed_{k}"]
    check(done.folder, done.trace, capsys)


def test_without_the_variable_the_engine_is_not_touched() -> None:
    code = (
        "from vllm.plugins import load_general_plugins\n"
        "load_general_plugins()\n"
        "import vllm.v1.core.block_pool as p\n"
        "import sys\n"
        "print('loaded', 'kvcanary_cli.record.vllm' in sys.modules)\n"
        "print('hooked', hasattr(p.BlockPool.get_new_blocks, '__kvcanary_original__'))\n"
    )
    env = {k: v for k, v in engine_env().items() if not k.startswith("KVCANARY_RECORD")}
    done = subprocess.run(
        [str(ENVIRONMENT.python), "-c", code], env=env, capture_output=True, text=True, check=False
    )
    assert "loaded True" in done.stdout, done.stderr[-2000:]
    assert "hooked False" in done.stdout
