"""Why a recording ended reaches the trace, however far behind the disk is at that moment."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from kvcanary_cli.record.options import RecordOptions
from kvcanary_cli.record.session import Session, StepIncompleteError
from kvcanary_cli.record.sink import Sink
from tests.record.helpers import HEADER, WAIT_S, events, parts, replay
from tests.record.test_copies import Device

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Event = dict[str, Any]


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Nothing is written before it is set: the queue fills."""
    opened, write = threading.Event(), Sink._write_group

    def later(sink: Sink, group: Any) -> None:
        assert opened.wait(WAIT_S)
        write(sink, group)

    monkeypatch.setattr(Sink, "_write_group", later)
    yield opened
    opened.set()


def _incomplete() -> list[Event]:
    raise StepIncompleteError("its copies do not tell all of it")


def _nothing_pending(_session: Session) -> None:
    return None


def _one_pending(session: Session) -> None:
    session.emit({"kind": "finish", "req": "last"})


def _incomplete_pending(session: Session) -> None:
    _one_pending(session)
    session.defer(_incomplete)


@pytest.mark.parametrize("pending", [_nothing_pending, _one_pending, _incomplete_pending])
@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("asynchronous", [True, False])
def test_the_last_event_says_why_whatever_is_dropped(
    asynchronous: bool, full: bool, pending: Any, gate: threading.Event, tmp_path: Path
) -> None:
    device = Device()
    device.free_running = True
    options = RecordOptions(path=str(tmp_path / "run.kvtrace"), tokens="raw", queue_bytes=4_000)
    session = Session(options, HEADER, mover=device if asynchronous else None)
    for k in range(1000):
        session.emit({"kind": "finish", "req": f"r{k}"})
        session.commit(step=True)
        if session._drainer is not None:
            assert session._drainer.settle(WAIT_S)
        if session.dropped_steps or not full:
            break
    assert bool(session.dropped_steps) == full
    pending(session)
    session.fail(RuntimeError("a fault"))
    if session._drainer is not None:
        session._drainer.close(WAIT_S)
    gate.set()
    session.close()
    (trace,) = parts(tmp_path)
    *before, last = events(trace)
    assert last["kind"] == "recording_ended"
    assert last["reason"] == "RuntimeError: a fault"
    assert [event["i"] for event in before] == list(range(len(before)))
    coverage = replay(trace).replay.coverage
    assert coverage.ended_at_event == last["i"]
    # Nothing was lost but what the queue had no room for.
    assert bool(coverage.lost_events) == (last["i"] > len(before))
    assert bool(coverage.lost_events) == (full or pending is _incomplete_pending)
