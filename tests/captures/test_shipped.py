"""The shipped captures hold what their runs did: healthy runs are consistent, planted bugs show."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kvcanary_cli.trace.reader import open_trace
from tests.captures.audit import Audit, Finding
from tests.tools.engine_state import CAPTURES, load_engine_state

if TYPE_CHECKING:
    from kvcanary_cli.trace.header import TraceHeader

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
CLEAN_WITH_OWNERS = (
    "canary_clean_all",
    "clean_mixed_chunk",
    "clean_radix",
    "ngram_clean",
    "swa_canary_clean",
    "vllm_clean",
)
BUGS = (
    "bug_double_free",
    "bug_kv_bytes",
    "bug_shift_position",
    "bug_swap_rows",
    "bug_wrong_token",
)
ALL = (*BUGS, *CLEAN_WITH_OWNERS, "clean_page16")
WITH_CANARY = (*BUGS, "canary_clean_all", "swa_canary_clean")
#: Violations and the first step with one, as the engine's own canary counted them.
ENGINE_VERDICTS = {
    "canary_clean_all": (0, None),
    "swa_canary_clean": (0, None),
    "bug_double_free": (163, 41),
    "bug_swap_rows": (328, 40),
    "bug_shift_position": (86, 40),
    "bug_wrong_token": (80, 41),
    "bug_kv_bytes": (67, 40),
}


@cache
def _load(name: str) -> tuple[TraceHeader, list[dict[str, Any]]]:
    with_notes = open_trace(CAPTURES / f"{name}.jsonl.zst")
    events = [event for segment in with_notes.segments() for event in segment.events()]
    notes = with_notes.notes
    odd = (notes.unknown_kinds, notes.unknown_fields, notes.undeclared, notes.gaps)
    assert not any(odd)
    return with_notes.header, events


@cache
def _audit(name: str) -> Audit:
    header, events = _load(name)
    return Audit(events, owners="alloc" in header.records)


def _truth(name: str) -> dict[str, Any]:
    truth: dict[str, Any] = _load(name)[0].raw["ground_truth"]
    return truth


@pytest.mark.parametrize("name", ALL)
def test_trace_is_valid_and_holds_what_its_header_promises(name: str) -> None:
    header, events = _load(name)
    assert [event["i"] for event in events] == list(range(len(events)))
    kinds = {event["kind"] for event in events}
    assert {"forward", "map", "history", "finish", "row_release"} <= kinds
    assert ("alloc" in kinds) == ("alloc" in header.records) == (name != "clean_page16")
    assert ("kv_hash" in kinds) == ("kv_hash" in header.records) == (name in WITH_CANARY)
    assert ("canary" in header.raw) == (name in WITH_CANARY)


@pytest.mark.parametrize("name", ALL)
def test_every_request_finishes_once_and_gives_its_row_back(name: str) -> None:
    _, events = _load(name)
    started = {req for event in events if event["kind"] == "forward" for req in event["reqs"]}
    finished = [event["req"] for event in events if event["kind"] == "finish"]
    released = [event["req"] for event in events if event["kind"] == "row_release"]
    assert sorted(finished) == sorted(released) == sorted(started)


@pytest.mark.parametrize("name", CLEAN_WITH_OWNERS)
def test_healthy_run_has_a_consistent_ownership_history(name: str) -> None:
    assert _audit(name).findings == []


@pytest.mark.parametrize("name", [b for b in BUGS if b != "bug_double_free"])
def test_bugs_that_leave_the_allocator_alone_have_consistent_ownership(name: str) -> None:
    assert _audit(name).findings == []


def test_double_free_shows_the_planted_slot_at_the_planted_step() -> None:
    truth, findings = _truth("bug_double_free"), _audit("bug_double_free").findings
    step, slot, req = truth["step"], truth["slot"], truth["rid"]
    assert findings[:2] == [
        Finding("freed by another", step, slot, req),
        Finding("read without owning", step, slot, req),
    ]
    assert {finding.slot for finding in findings} == {slot}


@pytest.mark.parametrize("name", ALL)
def test_forwards_feed_the_true_tokens_except_where_a_bug_was_planted(name: str) -> None:
    audit = _audit(name)
    assert audit.matched_tokens > 600
    expected = []
    if name in ("bug_shift_position", "bug_wrong_token"):
        truth = _truth(name)
        position = truth.get("position_given", truth.get("position"))
        expected = [(truth["step"], truth["rid"], position)]
    assert audit.wrong_tokens == expected


@pytest.mark.parametrize("name", WITH_CANARY)
def test_fingerprints_change_only_where_a_bug_was_planted(name: str) -> None:
    expected = []
    if name == "bug_kv_bytes":
        expected = [(_truth(name)["step"], _truth(name)["slot"])]
    assert _audit(name).changed_hashes == expected


@pytest.mark.parametrize("name", [c for c in WITH_CANARY if c != "swa_canary_clean"])
def test_index_holds_what_each_sweep_walked(name: str) -> None:
    _, events = _load(name)
    interval = _load(name)[0].raw["canary"]["sweep_interval"]
    steps = [event["step"] for event in events if event["kind"] == "forward"]
    sweeps = [e["step"] for e in events if e["kind"] == "kv_hash" and e["phase"] == "sweep"]
    assert sweeps == [step for step in steps if step % interval == 0]
    assert _audit(name).sweep_differences == []


@pytest.mark.parametrize("name", [c for c in WITH_CANARY if c != "swa_canary_clean"])
def test_sweeps_confirm_the_derived_owners(name: str) -> None:
    """The tree owns exactly what the engine's sweep walked, whatever rule derived it."""
    planted = {_truth(name)["slot"]} if name == "bug_double_free" else set()
    assert {s for _, slots in _audit(name).tree_differences for s in slots} <= planted


def test_swapped_row_entries_show_in_the_table() -> None:
    truth = _truth("bug_swap_rows")
    before: dict[int, int] = {}
    changed: dict[int, tuple[int | None, int]] = {}
    for event in _load("bug_swap_rows")[1]:
        if event["kind"] == "forward" and event["step"] == truth["step"]:
            break
        if event["kind"] == "forward":
            changed = {}
        if event["kind"] == "map" and event["row"] == truth["row"]:
            for cell, slot in enumerate(event["slots"], event["start"]):
                changed[cell] = (before.get(cell), slot)
                before[cell] = slot
    swapped = {cell: pair for cell, pair in changed.items() if pair[0] is not None}
    first, second = truth["positions"]
    assert swapped[first] == swapped[second][::-1]


def test_swa_translations_end_as_the_engine_left_them() -> None:
    lut = load_engine_state("swa_canary_clean").lut_final
    assert lut is not None
    expected = {full: int(swa) for full, swa in enumerate(lut[:-1]) if swa}
    assert _audit("swa_canary_clean").lut == expected


def test_accepted_drafts_are_paths_that_the_next_forward_builds_on() -> None:
    lengths: dict[str, int] = {}
    last: dict[str, Any] = {}
    moves = accepted = 0
    for event in _load("ngram_clean")[1]:
        if event["kind"] == "forward":
            for req, length in zip(event["reqs"], event["seq_lens"], strict=True):
                if req in lengths:
                    assert lengths.pop(req) == length
            last = event
        elif event["kind"] == "copy":
            moves += len(event["dst"])
            assert event["canary"]
            assert set(event["src"] + event["dst"]) <= set(last["out_cache_loc"])
        elif event["kind"] == "accept":
            k = last["reqs"].index(event["req"])
            width = last["draft_token_num"]
            block = slice(k * width, (k + 1) * width)
            parents = last["tree"]["parent"][block]
            assert [parents[node] for node in event["nodes"]] == [-1, *event["nodes"][:-1]]
            assert [last["input_ids"][block][node] for node in event["nodes"]] == event["tokens"]
            lengths[event["req"]] = event["committed_len"]
            assert event["committed_len"] == last["seq_lens"][k] + len(event["nodes"])
            accepted += 1
        elif event["kind"] == "finish":
            lengths.pop(event["req"], None)
    assert accepted > 100
    assert moves > 0
    assert not lengths


@pytest.mark.parametrize("name", WITH_CANARY)
def test_engine_state_belongs_to_its_trace(name: str) -> None:
    header, events = _load(name)
    state = load_engine_state(name)
    steps = sum(event["kind"] == "forward" for event in events)
    violations, first = ENGINE_VERDICTS[name]
    assert state.config == header.raw["canary"]
    assert state.k_head.shape == (header.pool.slots + 1, 32)
    assert state.violation_ring.shape == (violations, 8)
    assert state.violation_write_index.shape == (steps,)
    assert state.violation_write_index[-1] == violations
    assert state.slot_run_counters.shape == state.kernel_run_counters.shape == (steps, 12)
    positive = state.violation_write_index.nonzero()[0]
    assert (int(positive[0]) if len(positive) else None) == first
    if first is not None:
        assert first - 1 <= _truth(name)["step"] <= first
    assert (state.swa_k_tail is not None) == (header.pool.swa_slots > 0)


@pytest.mark.parametrize("name", WITH_CANARY)
def test_engine_rows_hold_the_last_token_and_fingerprint_of_each_slot(name: str) -> None:
    """Field for field what the engine's canary kept, from the trace alone."""
    written: dict[str, dict[int, tuple[int, int]]] = {"full": {}, "swa": {}}
    fingerprint: dict[str, dict[int, int]] = {"full": {}, "swa": {}}
    lut: dict[int, int] = {}
    for event in _load(name)[1]:
        if event["kind"] == "lut":
            lut.update(zip(event["full"], event["swa"], strict=True))
        elif event["kind"] == "forward":
            rows = list(zip(event["input_ids"], event["positions"], strict=True))
            written["full"].update(zip(event["out_cache_loc"], rows, strict=True))
            landed = [lut.get(slot, 0) for slot in event["out_cache_loc"]]
            written["swa"].update(zip(landed, rows, strict=True))
        elif event["kind"] == "kv_hash" and event["phase"] == "after":
            pool = event.get("pool", "full")
            fingerprint[pool].update(zip(event["slots"], event["hash"], strict=True))
    state = load_engine_state(name)
    groups = {"full": (state.k_head, state.k_tail)}
    if state.swa_k_head is not None and state.swa_k_tail is not None:
        groups["swa"] = (state.swa_k_head, state.swa_k_tail)
    for pool, (head, tail) in groups.items():
        head_rows, tail_rows = head.view(np.int64), tail.view(np.int64)
        assert len(written[pool]) > 300
        assert {s: tuple(head_rows[s, :2].tolist()) for s in written[pool]} == written[pool]
        assert {s: tuple(tail_rows[s, :2].tolist()) for s in written[pool]} == written[pool]
        assert {s: int(tail_rows[s, 3]) for s in fingerprint[pool]} == fingerprint[pool]


@pytest.mark.parametrize(
    ("example", "name"),
    [
        ("clean_radix.pt", "clean_radix"),
        ("bug_double_free.pt", "bug_double_free"),
        ("bug_swap_rows.jsonl.zst", "bug_swap_rows"),
        ("vllm_clean.kvtrace", "vllm_clean"),
    ],
)
def test_examples_are_these_captures_in_other_forms(example: str, name: str) -> None:
    trace = open_trace(EXAMPLES / example)
    events = [event for segment in trace.segments() for event in segment.events()]
    assert (trace.header.raw, events) == (_load(name)[0].raw, _load(name)[1])
