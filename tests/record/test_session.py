"""Sessions: what is written, what a full queue costs, rings, limits, faults."""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING, Any

from kvcanary_cli.record import sink
from kvcanary_cli.trace.folder_writer import FolderWriter
from kvcanary_cli.trace.reader import open_trace
from tests.record.helpers import WAIT_S, Toy, events, parts, replay, steps

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def _manifest(trace: Path) -> Any:
    import json

    return json.loads((trace / "manifest.json").read_text())


def test_everything_is_written_and_the_trace_is_finished(tmp_path: Path) -> None:
    toy = Toy(tmp_path)
    for _ in range(100):
        toy.step()
    toy.session.close()
    (trace,) = parts(tmp_path)
    assert trace.name == "tp0-pp0-dp0.kvtrace"
    assert steps(trace) == list(range(100))
    assert [event["i"] for event in events(trace)] == list(range(len(events(trace))))
    assert _manifest(trace)["complete"]
    assert not open_trace(trace).header.starts_mid_run
    diagnosis = replay(trace)
    assert not diagnosis.ownership
    assert diagnosis.verdict == "clean"


def test_a_full_queue_drops_whole_steps_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = threading.Event()
    write = FolderWriter.write_event

    def slow(self: FolderWriter, event: dict[str, Any]) -> None:
        assert disk.wait(WAIT_S)
        write(self, event)

    monkeypatch.setattr(FolderWriter, "write_event", slow)
    toy = Toy(tmp_path, queue_bytes=20_000)
    while toy.session.dropped_steps < 30:
        toy.step()
    disk.set()
    lost = toy.session.dropped_events
    before = toy.steps
    for _ in range(40):
        while toy.session._sink._queue:
            threading.Event().wait(0.001)
        toy.step()
    toy.session.close()

    (trace,) = parts(tmp_path)
    found, numbers = events(trace), steps(trace)
    assert numbers[-40:] == list(range(before, before + 40))
    assert len(numbers) == toy.steps - toy.session.dropped_steps
    indices = [event["i"] for event in found]
    assert indices[-1] + 1 == len(found) + lost
    gaps = [b - a for a, b in itertools.pairwise(indices) if b != a + 1]
    assert sum(gap - 1 for gap in gaps) == lost
    # What the lost steps did to owners and rows is told behind the gap.
    after = indices.index(next(b for a, b in itertools.pairwise(indices) if b > a + 1))
    assert found[after]["kind"] in ("own", "free")
    rules = {finding.what for finding in replay(trace).ownership}
    assert not rules & {"double_alloc", "double_free", "free_by_non_owner", "write_by_non_owner"}


def test_a_ring_keeps_the_end_and_each_part_stands_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink, "SEAL_INTERVAL_S", 0.0)
    toy = Toy(tmp_path, ring_bytes=400_000)
    while toy.session._sink._part_number < 5:
        toy.step()
        if toy.steps % 50 == 0:
            while toy.session._sink._queue:
                threading.Event().wait(0.001)
    toy.session.close()
    kept = parts(tmp_path)
    assert 1 <= len(kept) <= 2
    numbers = [n for trace in kept for n in steps(trace)]
    assert numbers == list(range(toy.steps - len(numbers), toy.steps))
    for trace in kept:
        assert open_trace(trace).header.starts_mid_run
        diagnosis = replay(trace)
        assert not diagnosis.ownership
        assert not diagnosis.findings


def test_max_bytes_ends_the_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink, "SEAL_INTERVAL_S", 0.0)
    toy = Toy(tmp_path, max_bytes=30_000)
    while toy.session.active:
        toy.step()
    at_end = toy.steps
    toy.step()
    toy.session.close()
    (trace,) = parts(tmp_path)
    size = sum(p.stat().st_size for p in trace.glob("*.pt"))
    assert 30_000 <= size < 200_000
    written = steps(trace)
    assert written == list(range(len(written)))
    assert len(written) < at_end + 1
    # The trace says so itself, and was closed in order.
    last = events(trace)[-1]
    assert last["kind"] == "recording_ended"
    assert "--max-bytes 30000" in last["reason"]
    assert _manifest(trace)["complete"]
    coverage = replay(trace).replay.coverage
    assert coverage.ended_at_event == last["i"]
    assert any("ended early" in note and "--max-bytes" in note for note in coverage.notes)


def test_a_ring_of_minutes_begins_anew_by_the_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(sink.time, "monotonic", lambda: now[0])
    toy = Toy(tmp_path, ring_seconds=60)
    for _ in range(10):
        toy.step()
        toy.session._sink.settle(WAIT_S)
        now[0] += 10.0
    toy.session.close()
    # A part is full half the time behind its first step; of steps 0-3, 4-7, 8-9 the last two stay.
    assert [steps(trace) for trace in parts(tmp_path)] == [[4, 5, 6, 7], [8, 9]]


def test_a_ring_of_minutes_stays_within_max_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink, "SEAL_INTERVAL_S", 0.0)
    toy = Toy(tmp_path, ring_seconds=3600, max_bytes=300_000)
    while toy.session._sink._part_number < 4:
        toy.step()
        toy.session._sink.settle(WAIT_S)
    assert toy.session.active
    toy.session.close()
    assert len(parts(tmp_path)) <= 2


def test_a_trace_that_was_not_closed_says_what_a_kill_costs(tmp_path: Path) -> None:
    toy = Toy(tmp_path)
    toy.step()
    toy.session._sink.settle(WAIT_S)
    (trace,) = parts(tmp_path)
    (note,) = [n for n in replay(trace).replay.coverage.notes if "has not closed" in n]
    assert "at most the last 1 s of events" in note
    toy.session.close()


def test_start_after_skips_and_tells_the_state_then(tmp_path: Path) -> None:
    toy = Toy(tmp_path, start_after=45)
    for _ in range(90):
        toy.step()
    toy.session.close()
    (trace,) = parts(tmp_path)
    assert steps(trace) == list(range(45, 90))
    assert open_trace(trace).header.starts_mid_run
    assert events(trace)[0]["kind"] == "own"
    diagnosis = replay(trace)
    assert not diagnosis.ownership
    assert not diagnosis.findings


def test_a_fault_ends_the_trace_there_and_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    toy = Toy(tmp_path)
    for _ in range(5):
        toy.step()
    for _ in range(3):
        toy.session.fail(RuntimeError("a fault"))
    toy.step()
    toy.session.close()
    (trace,) = parts(tmp_path)
    found = events(trace)
    assert found[-1]["kind"] == "recording_ended"
    assert "a fault" in found[-1]["reason"]
    assert steps(trace) == list(range(5))
    assert sum("recording ends" in record.message for record in caplog.records) == 1


def test_an_event_that_the_format_refuses_does_not_reach_the_engine(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    toy = Toy(tmp_path)
    toy.step()
    toy.session.emit({"kind": "free", "owner": 7, "slots": [1]})
    toy.session.commit()
    toy.session._sink._thread.join(WAIT_S)
    toy.step()
    toy.session.close()
    assert not toy.session.active
    assert any("'owner' must be a string" in record.message for record in caplog.records)


def test_an_earlier_recording_is_never_overwritten(tmp_path: Path) -> None:
    for _ in range(2):
        toy = Toy(tmp_path)
        toy.step()
        toy.session.close()
    names = [trace.name for trace in parts(tmp_path)]
    assert names == ["tp0-pp0-dp0.kvtrace", "tp0-pp0-dp0.2.kvtrace"]
