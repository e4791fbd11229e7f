"""Recording options on the real scheduler: each leaves what it says, and it replays clean."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kvcanary_cli.trace.reader import open_trace
from tests.record.helpers import events, parts, replay, sound_verdict

if TYPE_CHECKING:
    from pathlib import Path

    from tests.engines.runs import Run

OPTIONS = ("absent", "start", "ring", "gaps", "full")


def runs(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("done", [f"option_{name}" for name in names], indirect=True)


def _forwards(trace: Path) -> list[dict[str, Any]]:
    return [event for event in events(trace) if event["kind"] == "forward"]


@runs(*OPTIONS)
def test_whatever_is_left_of_a_healthy_run_replays_clean(done: Run) -> None:
    assert done.result["error"] is None
    for trace in parts(done.folder):
        diagnosis = replay(trace)
        assert not diagnosis.ownership
        assert not diagnosis.findings
        assert diagnosis.verdict == sound_verdict(diagnosis)
        assert diagnosis.replay.coverage.entries_written > 0
        if done.name != "option_gaps":
            assert diagnosis.verdict == "clean"


@runs("absent")
def test_absent_tokens_are_nowhere(done: Run) -> None:
    header = open_trace(done.trace).header
    assert header.tokens == "absent"
    assert "history" not in header.records
    assert all("input_ids" not in event for event in _forwards(done.trace))
    assert "wrong_token_fed" in replay(done.trace).replay.coverage.blind_to


@runs("start")
def test_what_was_to_pass_first_is_not_there(done: Run) -> None:
    assert open_trace(done.trace).header.starts_mid_run
    steps = [event["step"] for event in _forwards(done.trace)]
    assert steps == list(range(20, done.result["forwards"]))
    hashes = [event for event in events(done.trace) if event["kind"] == "kv_hash"]
    assert {event["step"] for event in hashes if event["phase"] == "after"} == set(steps)
    read = {event["step"] for event in hashes if event["phase"] == "before"}
    assert read
    assert not any(step % 3 for step in read)


@runs("ring")
def test_a_ring_has_the_end_in_parts_that_stand_alone(done: Run) -> None:
    traces = parts(done.folder)
    steps = [event["step"] for trace in traces for event in _forwards(trace)]
    assert steps == list(range(steps[0], done.result["forwards"]))
    assert steps[0] > 0
    assert [open_trace(trace).header.starts_mid_run for trace in traces] == [True, True]
    segments = [segment.stat().st_size for trace in traces for segment in trace.glob("*.pt")]
    # Each part may go beyond its half by the segment that fills it, and by a last one.
    assert sum(segments) <= 200_000 + 4 * max(segments)


@runs("gaps")
def test_steps_that_found_no_room_are_counted(done: Run) -> None:
    assert "not recorded in all" in done.log
    coverage = replay(done.trace).replay.coverage
    assert coverage.lost_events > 0
    assert 0 < coverage.steps < done.result["forwards"]


@runs("full")
def test_a_recording_of_the_largest_size_says_why_it_ends(done: Run) -> None:
    last = events(done.trace)[-1]
    assert last["kind"] == "recording_ended"
    assert last["reason"] == "--max-bytes 60000 is reached"
    assert 0 < len(_forwards(done.trace)) < done.result["forwards"]
    segments = [segment.stat().st_size for segment in done.trace.glob("*.pt")]
    assert sum(segments) <= 60_000 + 2 * max(segments)


@runs("fault")
def test_a_fault_is_named_by_salted_tokens_in_a_recording_that_began_late(done: Run) -> None:
    truth = done.result["truth"]
    finding = replay(done.trace).findings[0]
    assert (finding.cls, finding.victim) == ("stale_mapping", truth["req"])
    assert truth["slot"] in finding.slots
