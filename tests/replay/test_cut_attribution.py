"""A cut alone finds the causes that the whole trace finds at the same steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kvcanary_cli.attribution.diagnose import diagnose_trace
from kvcanary_cli.attribution.result import READ_BEFORE_WRITE
from kvcanary_cli.cli.main import main
from kvcanary_cli.replay.capacity_limits import NOT_CHECKED
from kvcanary_cli.replay.options import ReplayOptions
from kvcanary_cli.trace.reader import open_trace
from tests.replay.cut_helpers import cut_to, events_of, forward_steps, write_jsonl

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvcanary_cli.attribution.diagnose import Diagnosis
    from kvcanary_cli.attribution.result import Finding

    Steps = tuple[int | None, int | None]

DATA = Path(__file__).parents[1] / "data"
SCENARIOS = sorted((DATA / "scenarios").rglob("*.jsonl"))


def _diagnose(path: Path, steps: Steps | None = None) -> Diagnosis:
    options = ReplayOptions(backend="cpu", steps=steps)
    return diagnose_trace(open_trace(path), options, NOT_CHECKED)


def _facts(finding: Finding) -> tuple[Any, ...]:
    return finding.cls, finding.victim, finding.first_bad_step, tuple(sorted(finding.slots))


def _damage(findings: Iterable[Finding]) -> set[tuple[str | None, int | None, int]]:
    # Without a step it is an event of the allocator that nobody's read confirms; those right
    # before the first step are part of the state.
    return {
        (f.victim, f.first_bad_step, slot)
        for f in findings
        if f.first_bad_step is not None
        for slot in f.slots
    }


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenarios_keep_their_findings_at_every_step(path: Path, tmp_path: Path) -> None:
    for first in forward_steps(path):
        for steps in ((first, None), (first, first)):
            expected = _diagnose(path, steps).findings
            target, _ = cut_to(path, tmp_path, steps)
            found = _diagnose(target).findings
            # A cause before the cut may look like another one; the damage does not.
            assert _damage(found) == _damage(expected), steps


def test_the_namespace_of_the_past_is_known(tmp_path: Path) -> None:
    whole = DATA / "scenarios" / "S20_key_aliasing.jsonl"
    target, _ = cut_to(whole, tmp_path, (2, None))
    (alone,), (expected,) = _diagnose(target).findings, _diagnose(whole, (2, None)).findings
    assert _facts(alone) == _facts(expected)
    assert alone.culprit == expected.culprit
    # What it rests on lies before the cut, and that is said.
    assert alone.evidence[:-1] == expected.evidence
    assert (alone.confidence, expected.confidence) == ("probable", "certain")
    (tmp_path / "again").mkdir()
    again, _ = cut_to(target, tmp_path / "again", (2, 2))
    assert _diagnose(again).findings[0].culprit == expected.culprit


def test_the_writer_of_the_past_is_named(tmp_path: Path) -> None:
    whole = DATA / "captures" / "bug_swap_rows.jsonl.zst"
    target, _ = cut_to(whole, tmp_path, (41, None))
    rows = [e for e in events_of(target) if e["kind"] == "canary_rows" and e["pool"] == "full"]
    writers = {slot: e["writer"][k] for e in rows for k, slot in enumerate(e["slots"])}
    steps = {slot: e["writer_step"][k] for e in rows for k, slot in enumerate(e["slots"])}
    at = {slot: e["writer_event"][k] for e in rows for k, slot in enumerate(e["slots"])}
    last: dict[int, tuple[str, int, int]] = {}
    for event in events_of(whole):
        if event["kind"] != "forward" or event["step"] >= 41:
            continue
        lens = event.get("extend_seq_lens") or [1] * len(event["reqs"])
        owners = [req for req, n in zip(event["reqs"], lens, strict=True) for _ in range(n)]
        for slot, req in zip(event["out_cache_loc"], owners, strict=True):
            if req is not None:
                last[slot] = req, event["step"], event["i"]
    assert last
    assert {slot: (writers[slot], steps[slot], at[slot]) for slot in last} == last


def test_events_of_the_allocator_keep_their_place(tmp_path: Path) -> None:
    whole = DATA / "captures" / "bug_double_free.jsonl.zst"
    target, _ = cut_to(whole, tmp_path, (41, 41))
    first = min(e["i"] for e in events_of(target) if e["kind"] == "forward")
    allocs: dict[int, int] = {}
    frees: dict[int, tuple[int, str | None]] = {}
    for event in events_of(whole):
        if event["i"] >= first:
            break
        for slot in event.get("slots", ()):
            if event["kind"] == "alloc":
                allocs[slot] = event["i"]
            elif event["kind"] == "free":
                frees[slot] = event["i"], event.get("reason")
    state = [e for e in events_of(target) if e["i"] < first and "at" in e and e["kind"] != "map"]
    kinds = {e["kind"] for e in state}
    assert kinds == {"alloc", "free"}
    for event in state:
        for slot, at in zip(event["slots"], event["at"], strict=True):
            if event["kind"] == "free":
                assert (at, event.get("reason")) == frees[slot]
            elif slot in allocs:
                assert at == allocs[slot]


def test_slots_that_hold_nothing_known_do_not_count_as_written(tmp_path: Path) -> None:
    path = DATA / "scenarios" / "S20_key_aliasing.jsonl"
    target, _ = cut_to(path, tmp_path, (2, None))
    head = json.loads(target.read_text(encoding="utf-8").splitlines()[0])
    events = events_of(target)
    rows = next(e for e in events if e["kind"] == "canary_rows")
    # The slots were given to their owner after that content was written, if it was.
    for event in events:
        if event["kind"] == "alloc":
            event["at"] = [5] * len(event["slots"])
    for change, unwritten in (
        ({}, False),
        ({"unknown": rows["slots"]}, True),
        ({"written_at": [0] * len(rows["slots"])}, True),
    ):
        changed = [
            e | {"writer_event": [6] * len(e["slots"])} | change
            if e["kind"] == "canary_rows"
            else e
            for e in events
        ]
        found = _diagnose(write_jsonl(tmp_path / "a.jsonl", head, changed)).ownership
        assert (READ_BEFORE_WRITE in {o.what for o in found}) == unwritten


def test_fingerprints_behind_the_last_step_are_not_judged(tmp_path: Path) -> None:
    whole = DATA / "scenarios" / "S23_payload_mutation.jsonl"
    target, _ = cut_to(whole, tmp_path, (1, 1))
    assert any(e.get("step") == 2 for e in events_of(target))
    assert main(["replay", "-q", str(target)]) == main(["replay", "-q", str(whole), "--steps", "1"])
    assert not _diagnose(target).findings
    assert _diagnose(whole).findings
