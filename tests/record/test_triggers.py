"""Triggers: what is kept, in every rank, and that a storm of them does not fill the disk."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from kvcanary_cli.record import keeping, sink, triggers
from kvcanary_cli.record.triggers import TriggerFile, pull_on_signal
from kvcanary_cli.trace.reader import open_trace
from tests.record.helpers import WAIT_S, Toy, events, kept, parts, replay, steps

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def _until(what: Callable[[], Any], toy: Toy | None = None) -> None:
    """Wait for ``what``; a server that runs goes on stepping meanwhile."""
    for _ in range(int(WAIT_S / 0.01)):
        if what():
            return
        if toy is not None:
            toy.step()
        threading.Event().wait(0.01)
    raise AssertionError("it did not happen")


@pytest.fixture
def no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "_TRIGGER_REST_S", 0.0)


def _told(trace: Path) -> list[dict[str, Any]]:
    return [event for event in events(trace) if event["kind"] == "triggered"]


def test_a_trigger_keeps_the_ring_and_a_new_one_goes_on(tmp_path: Path) -> None:
    toy = Toy(tmp_path, ring_bytes=1 << 20, triggers=("canary",))
    for _ in range(40):
        toy.step()
    toy.session.trigger("canary", "slot 7: [/x] token")
    for _ in range(30):
        toy.step()
    toy.session.close()
    (old,), (new,) = kept(tmp_path), parts(tmp_path)
    assert old.name == "tp0-pp0-dp0.kept1.kvtrace"
    # The trigger ends the kept ring, behind the step that was under way.
    assert steps(old) == list(range(41))
    assert {k: v for k, v in events(old)[-1].items() if k != "i"} == {
        "kind": "triggered",
        "by": "canary",
        "text": "slot 7: [/x] token",
    }
    assert steps(new) == list(range(41, 70))
    assert open_trace(new).header.starts_mid_run
    for trace in (old, new):
        diagnosis = replay(trace)
        assert not diagnosis.findings
        assert not diagnosis.ownership
        assert diagnosis.replay.coverage.ended_at_event is None


def test_both_parts_of_a_ring_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink, "SEAL_INTERVAL_S", 0.0)
    toy = Toy(tmp_path, ring_bytes=100_000, triggers=("canary",))
    _until(lambda: len(parts(tmp_path)) == 2, toy)
    toy.session.trigger("canary")
    _until(lambda: kept(tmp_path), toy)
    while toy.session._sink._part_number < 6:
        toy.step()
        toy.session._sink.settle(WAIT_S)
    toy.session.close()
    assert len(kept(tmp_path)) == 2
    numbers = [n for trace in kept(tmp_path) for n in steps(trace)]
    assert numbers == list(range(numbers[0], numbers[-1] + 1))
    # Nothing that came later took them away, and the new ring is one again.
    assert len(parts(tmp_path)) <= 2


def test_without_the_option_a_trigger_does_nothing(tmp_path: Path) -> None:
    toy = Toy(tmp_path, ring_bytes=1 << 20, triggers=("signal",))
    toy.step()
    toy.session.trigger("canary", "ignored")
    toy.step()
    toy.session.close()
    (trace,) = parts(tmp_path)
    assert not kept(tmp_path)
    assert not _told(trace)


def test_an_engine_that_ends_itself_waits_for_the_disk(tmp_path: Path) -> None:
    toy = Toy(tmp_path, ring_bytes=1 << 20, triggers=("canary",))
    toy.step()
    toy.session.emit({"kind": "finish", "req": "half of a step"})
    toy.session.trigger("canary", "about to raise", wait_s=WAIT_S)
    (old,) = kept(tmp_path)
    assert [event["kind"] for event in events(old)[-2:]] == ["finish", "triggered"]
    toy.session.close()


def test_every_rank_keeps_its_ring(tmp_path: Path, no_rest: None) -> None:
    ranks = [Toy(tmp_path, rank=k, ring_bytes=1 << 20, triggers=("canary",)) for k in range(3)]
    for toy in ranks:
        toy.step()
    ranks[1].session.trigger("canary", "seen by one")
    for k, toy in enumerate(ranks):
        _until(lambda k=k: kept(tmp_path, f"tp{k}"), toy)
    for toy in ranks:
        toy.session.close()
    for k in range(3):
        (old,) = kept(tmp_path, f"tp{k}")
        assert [event["text"] for event in _told(old)] == ["seen by one"]


def test_triggers_of_an_earlier_recording_are_past(tmp_path: Path) -> None:
    (tmp_path / "run.kvtrace").mkdir()
    TriggerFile(tmp_path / "run.kvtrace").pull("signal", "yesterday")
    toy = Toy(tmp_path, ring_bytes=1 << 20, triggers=("signal",))
    for _ in range(3):
        toy.step()
        threading.Event().wait(0.2)
    toy.session.close()
    assert not kept(tmp_path)


def test_a_storm_of_triggers_keeps_a_few_rings(tmp_path: Path, no_rest: None) -> None:
    toy = Toy(tmp_path, ring_bytes=1 << 20, triggers=("canary",))
    for number in range(sink.KEPT_RINGS + 5):
        toy.session.trigger("canary", f"report {number}")
        toy.step()
        toy.session._sink.settle(WAIT_S)
    toy.session.close()
    assert len(kept(tmp_path)) == sink.KEPT_RINGS
    # Later ones are told, and the recording goes on.
    (last,) = parts(tmp_path)
    assert len(_told(last)) == 5


def test_reports_of_every_step_keep_one_ring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "_TRIGGER_REST_S", WAIT_S)
    toy = Toy(tmp_path, ring_bytes=1 << 20, triggers=("canary",))
    for number in range(5):
        toy.session.trigger("canary", f"report {number}")
        toy.step()
    toy.session.close()
    assert len(kept(tmp_path)) == 1
    (last,) = parts(tmp_path)
    assert len(_told(last)) == 4


def test_a_dropped_step_does_not_lose_the_trigger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = Toy(tmp_path, ring_bytes=1 << 20, triggers=("canary",))
    toy.step()
    offer = toy.session._sink.offer
    monkeypatch.setattr(toy.session._sink, "offer", lambda group: False)
    toy.session.trigger("canary", "while the queue is full")
    toy.step()
    assert toy.session.dropped_steps == 1
    monkeypatch.setattr(toy.session._sink, "offer", offer)
    toy.step()
    toy.session.close()
    (old,) = kept(tmp_path)
    assert [event["text"] for event in _told(old)] == ["while the queue is full"]


def test_half_a_line_waits(tmp_path: Path) -> None:
    reader, writer = TriggerFile(tmp_path), TriggerFile(tmp_path)
    writer.pull("signal", "one")
    path = tmp_path / ".triggers"
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"by": "canary", "te')
    assert [t.text for t in reader.fresh()] == ["one"]
    assert reader.fresh() == []
    path.write_bytes(whole + b'{"by": "canary", "text": "two", "origin": "x"}\nno json\n')
    assert [t.text for t in reader.fresh()] == ["two"]
    assert writer.fresh()[0].text == "two"


def test_a_signal_pulls_the_trigger_and_passes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triggers, "_handled", set())
    seen: list[int] = []
    before = signal.signal(signal.SIGUSR2, lambda number, _frame: seen.append(number))
    try:
        file = TriggerFile(tmp_path)
        for _ in range(2):
            pull_on_signal(str(tmp_path))
        os.kill(os.getpid(), signal.SIGUSR2)
        (trigger,) = file.fresh()
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert trigger.by == "signal"
    assert str(os.getpid()) in trigger.text
    assert seen == [signal.SIGUSR2]


def test_sigusr2_to_the_recording_process_keeps_the_ring(
    tmp_path: Path, engine_env: dict[str, str]
) -> None:
    code = (
        "import sys\n"
        "from kvcanary_cli.cli.main import main\n"
        "sys.exit(main(['record', '-o', sys.argv[1], '--ring', '1h', '--trigger', 'signal', '--',"
        " sys.executable, '-m', 'tests.record.fake_server', '10000000', '0.01']))\n"
    )
    folder = tmp_path / "run.kvtrace"
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(folder)],
        env=engine_env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _until(lambda: list(folder.glob("*/*.pt")) or process.poll() is not None)
        assert process.poll() is None
        process.send_signal(signal.SIGUSR2)
        _until(lambda: kept(tmp_path))
        # The server knows no such signal and runs on.
        assert process.poll() is None
    finally:
        process.terminate()
        process.wait(WAIT_S)
    (old,) = kept(tmp_path)
    assert _told(old)[0]["by"] == "signal"
    assert str(process.pid) in _told(old)[0]["text"]
