"""What SGLang does beside prefill and decode, recorded from its real scheduler and replayed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kvcanary_cli.replay.driver import TARGET, Replay
from kvcanary_cli.replay.options import ReplayOptions
from kvcanary_cli.trace.reader import open_trace
from tests.engines.graph_on_cpu import SIZES
from tests.engines.runs import RUNS
from tests.record.helpers import events, replay

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.engines.runs import Run

STEPS = 300
#: A server that only prefills has fewer steps.
SHORT = {"prefill_server": 90}
CLEAN = (
    "graphs",
    "ngram",
    "eagle",
    "namespaces",
    "beams",
    "host_cache",
    "decode_server",
    "prefill_server",
)


def runs(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("done", names, indirect=True)


def _only(found: list[dict[str, Any]], kind: str, **fields: Any) -> list[dict[str, Any]]:
    return [e for e in found if e["kind"] == kind and fields.items() <= e.items()]


def _records(done: Run) -> frozenset[str]:
    return frozenset(open_trace(done.trace).header.records)


@runs(*CLEAN)
def test_a_healthy_run_replays_clean(done: Run) -> None:
    assert done.result["error"] is None
    assert done.result["finished"]
    found = events(done.trace)
    steps = [e["step"] for e in _only(found, "forward") if e.get("worker") != "draft"]
    assert steps == list(range(done.result["forwards"]))
    assert len(steps) >= SHORT.get(done.name, STEPS)
    ended = {e["req"] for e in _only(found, "finish")}
    assert len([name for name in ended if "beam" not in name]) == RUNS[done.name]["requests"]
    assert len(_only(found, "row_release")) == len(ended)
    diagnosis = replay(done.trace)
    assert not diagnosis.ownership
    assert not diagnosis.findings
    assert not len(diagnosis.replay.violations)
    assert diagnosis.verdict == "clean"


@runs("ngram", "eagle")
def test_accepted_drafts_are_what_the_next_forward_builds_on(done: Run) -> None:
    assert "spec" in _records(done)
    lengths: dict[str, int] = {}
    last: dict[str, Any] = {}
    accepted = several = 0
    for event in events(done.trace):
        if event["kind"] == "forward" and event.get("worker") != "draft":
            for req, length in zip(event["reqs"], event["seq_lens"], strict=True):
                if req in lengths:
                    assert lengths.pop(req) == length
            last = event
        elif event["kind"] == "accept":
            width, row = last["draft_token_num"], last["reqs"].index(event["req"])
            block = slice(row * width, (row + 1) * width)
            linear = [k - 1 for k in range(width)]
            parents = last["tree"]["parent"][block] if "tree" in last else linear
            assert [parents[node] for node in event["nodes"]] == [-1, *event["nodes"][:-1]]
            assert [last["input_ids"][block][node] for node in event["nodes"]] == event["tokens"]
            assert event["committed_len"] == last["seq_lens"][row] + len(event["nodes"])
            lengths[event["req"]] = event["committed_len"]
            accepted, several = accepted + 1, several + (len(event["nodes"]) > 1)
        elif event["kind"] == "finish":
            lengths.pop(event["req"], None)
    assert accepted > 300
    assert not lengths
    # A draft model with random weights guesses as well as chance.
    assert done.name == "eagle" or several > 100


@runs("ngram")
def test_accepted_drafts_move_to_the_front(done: Run) -> None:
    found = events(done.trace)
    forks = [e for e in found if "tree" in e]
    moves = _only(found, "copy", via="d2d")
    assert forks
    assert moves
    written = {slot for e in _only(found, "forward") for slot in e["out_cache_loc"]}
    assert {slot for e in moves for slot in [*e["src"], *e["dst"]]} <= written


@runs("eagle")
def test_the_draft_model_is_a_lane_of_its_own(done: Run) -> None:
    drafts = _only(events(done.trace), "forward", worker="draft")
    modes = {e["forward_mode"] for e in drafts}
    assert {"EXTEND", "DECODE", "DRAFT_EXTEND_V2"} <= modes
    assert max(e["draft_step"] for e in drafts) >= 1
    reader = open_trace(done.trace)
    run = Replay(reader.header, ReplayOptions(backend="cpu"))
    run.run(reader)
    assert run.workers.keys() == {TARGET, "draft"}


@runs("overlap", "canary_overlap_page16")
def test_launches_say_what_was_queued_for_whom(done: Run) -> None:
    assert "launch" in _records(done)
    queued: dict[int, dict[str, list[int]]] = {}
    for event in events(done.trace):
        if event["kind"] == "launch":
            queued.setdefault(event["step"], {})[event["req"]] = event["slots"]
        elif event["kind"] == "forward":
            by_req = queued.pop(event["step"])
            assert list(by_req) == event["reqs"]
            assert [s for slots in by_req.values() for s in slots] == event["out_cache_loc"]
    assert not queued


@runs("radix")
def test_without_overlap_there_is_no_launch_order(done: Run) -> None:
    assert "launch" not in _records(done)
    assert not _only(events(done.trace), "launch")


@runs("graphs")
def test_rows_that_a_graph_adds_are_padding(done: Run) -> None:
    assert "graph" in _records(done)
    padded = 0
    for event in _only(events(done.trace), "forward", forward_mode="DECODE"):
        rows = len(event["reqs"])
        raw = event.get("raw_bs", rows)
        assert rows in SIZES
        assert None not in event["reqs"][:raw]
        assert event["reqs"][raw:] == [None] * (rows - raw)
        assert not any(event["req_pool_indices"][raw:])
        assert not any(event["out_cache_loc"][raw:])
        padded += rows > raw
    assert padded > 50


@runs("radix")
def test_without_graphs_there_is_no_padding(done: Run) -> None:
    assert "graph" not in _records(done)
    assert all("raw_bs" not in e for e in _only(events(done.trace), "forward"))


@runs("namespaces")
def test_a_prefix_is_served_within_its_namespace_only(done: Run) -> None:
    found = events(done.trace)
    of_req: dict[str, set[str]] = {}
    for event in _only(found, "forward"):
        for req, namespace in zip(event["reqs"], event["namespaces"], strict=True):
            of_req.setdefault(req, set()).add(namespace)
    assert all(len(names) == 1 for names in of_req.values())
    assert len(set().union(*of_req.values())) == RUNS["namespaces"]["namespaces"]
    assert not any("tenant" in name for names in of_req.values() for name in names)
    matches = _only(found, "match")
    assert matches
    assert all({e["namespace"]} == of_req[e["req"]] for e in matches)


@runs("beams")
def test_beams_fork_from_their_leader_and_from_each_other(done: Run) -> None:
    assert "fork" in _records(done)
    found = events(done.trace)
    forks = _only(found, "fork")
    members = {e["child"] for e in forks if "/beam-" in e["child"]}
    width, count = RUNS["beams"]["beam_width"], RUNS["beams"]["requests"] // 2
    assert len(members) == count * (width - 1)
    assert all(e["child"].partition("/")[0] == e["parent"].partition("/")[0] for e in forks)
    # Later in a search, beams go on from beams.
    assert any("/beam-" in e["parent"] for e in forks)
    in_batches = {req for e in _only(found, "forward") for req in e["reqs"]}
    assert members <= in_batches
    assert None not in in_batches


@runs("host_cache")
def test_the_cache_on_the_host_gets_and_gives(done: Run) -> None:
    found = events(done.trace)
    backups, loads = _only(found, "copy", via="d2h"), _only(found, "copy", via="h2d")
    assert backups
    assert loads
    stored: set[int] = set()
    for event in _only(found, "copy"):
        if event["via"] == "d2h":
            stored.update(event["dst"])
        else:
            assert set(event["src"]) <= stored
    windows = [e["id"] for e in _only(found, "transfer_begin")]
    assert windows == [e["id"] for e in _only(found, "transfer_end")]
    assert windows == [e["id"] for e in _only(found, "copy")]
    # What was loaded is read by somebody.
    read = {slot for e in _only(found, "match") for slot in e["slots"]}
    assert read & {slot for e in loads for slot in e["dst"]}


@runs("decode_server")
def test_received_prompts_land_before_they_are_read(done: Run) -> None:
    found = events(done.trace)
    begun = {e["id"]: e for e in _only(found, "transfer_begin", via="rdma", direction="in")}
    assert len(begun) == RUNS["decode_server"]["requests"]
    landed: set[str] = set()
    for event in found:
        if event["kind"] == "copy":
            begin = begun[event["id"]]
            assert event["dst"] == begin["slots"]
            assert event["src"]["req"] == begin["req"] == event["by"]
            landed.add(event["by"])
        elif event["kind"] == "forward":
            assert set(event["reqs"]) <= landed
    assert {e["id"] for e in _only(found, "transfer_end")} == begun.keys()


@runs("prefill_server")
def test_sent_prompts_are_kept_until_they_are_gone(done: Run) -> None:
    found = events(done.trace)
    under_way: dict[str, list[int]] = {}
    sent: dict[str, int] = {}
    for event in found:
        if event["kind"] == "transfer_begin":
            assert (event["via"], event["direction"]) == ("rdma", "out")
            under_way[event["id"]] = event["slots"]
            sent[event["req"]] = sent.get(event["req"], 0) + len(event["slots"])
        elif event["kind"] == "transfer_end":
            del under_way[event["id"]]
        elif event["kind"] == "free":
            assert not set(event["slots"]) & set(_flat(under_way.values()))
    assert not under_way
    prompts: dict[str, int] = {}
    for event in _only(found, "forward"):
        for req, length in zip(event["reqs"], event["seq_lens"], strict=True):
            prompts[req] = length
    assert sent == prompts


def _flat(lists: Any) -> Iterator[int]:
    return (slot for slots in lists for slot in slots)
