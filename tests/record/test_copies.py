"""Asynchronous copies: order, drops, faults and the end, with a device that the test runs."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcanary_cli.record import drainer, shadows
from kvcanary_cli.record.copies import CudaTurns, HostNow, host_array, mover_of
from kvcanary_cli.record.diffs import RowDiff
from kvcanary_cli.record.ledger import FREE, UNKNOWN, Ledger
from kvcanary_cli.record.options import RecordOptions
from kvcanary_cli.record.session import Session, StepIncompleteError
from kvcanary_cli.record.shadows import LutShadow, TableShadow
from tests.record.helpers import HEADER, SLOTS, WAIT_S, events, parts

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

NOT_THERE = -999


class Device:
    """Copies are there when the test lets the device run, not before."""

    def __init__(self) -> None:
        self._todo: list[_Copy] = []
        self._reached = threading.Semaphore(0)
        self._made = self._ran = 0
        self.clones = 0
        self.free_running = False

    def begin(self, tensor: Any, *, fresh: bool) -> _Copy:
        self.clones += not fresh
        copy = _Copy(host_array(tensor))
        self._todo.append(copy)
        self._made += 1
        if self.free_running:
            self.run()
        return copy

    def fence(self) -> _Fence:
        return _Fence(self, self._made)

    def run(self, copies: int | None = None) -> None:
        """Let the next copies arrive, all by default."""
        count = len(self._todo) if copies is None else copies
        for copy in self._todo[:count]:
            copy.there = True
        del self._todo[:count]
        self._ran += count


class _Copy:
    def __init__(self, values: NDArray[np.int64]) -> None:
        self._values, self.there, self.nbytes = values, False, values.nbytes

    def array(self) -> NDArray[np.int64]:
        # Pinned memory before its fence: anything.
        return self._values if self.there else np.full_like(self._values, NOT_THERE)


class _Fence:
    def __init__(self, device: Device, behind: int) -> None:
        self._device, self._behind = device, behind

    def passed(self) -> bool:
        return self._device._ran >= self._behind


def _session(folder: Path, device: Device | None, **options: Any) -> Session:
    options = {"tokens": "raw", **options}
    pool = {**HEADER["pool"], "swa_slots": 10, "swa_window": 4}
    return Session(
        RecordOptions(path=str(folder / "run.kvtrace"), **options),
        {**HEADER, "pool": pool},
        mover=device,
    )


def _finish(name: str) -> dict[str, Any]:
    return {"kind": "finish", "req": name}


def _told(values: NDArray[np.int64]) -> list[dict[str, Any]]:
    return [_finish(f"copy {value}") for value in values.tolist()]


def _names(folder: Path) -> list[str]:
    (trace,) = parts(folder)
    return [event["req"] for event in events(trace) if event["kind"] == "finish"]


@given(
    steps=st.lists(
        st.lists(st.one_of(st.none(), st.lists(st.integers(0, 9), max_size=3)), max_size=4),
        max_size=8,
    ),
    lag=st.integers(0, 5),
)
@settings(max_examples=25, deadline=None)
def test_events_stand_where_they_were_deferred(
    tmp_path_factory: pytest.TempPathFactory, steps: list[list[list[int] | None]], lag: int
) -> None:
    folder, device, expected = tmp_path_factory.mktemp("t"), Device(), list[str]()
    session = _session(folder, device)
    for number, items in enumerate(steps):
        for values in items:
            if values is None:
                session.emit(_finish(f"plain {number}"))
                expected.append(f"plain {number}")
            else:
                session.defer(_told, np.array(values, dtype=np.int64))
                expected += [f"copy {value}" for value in values]
        session.commit()
        if number >= lag:
            device.run(min(1, len(device._todo)))
    device.run()
    session.close()
    if expected:
        assert _names(folder) == expected
        (trace,) = parts(folder)
        assert [event["i"] for event in events(trace)] == list(range(len(expected)))


def test_the_engine_never_waits_for_the_device(tmp_path: Path) -> None:
    device = Device()
    session = _session(tmp_path, device)
    for number in range(20):
        session.defer(_told, [number])
        session.commit(step=True)
    # Nothing is there yet, and nothing was read too early.
    assert not session._drainer.settle(0.2)  # type: ignore[union-attr]
    device.run()
    assert session._drainer.settle(WAIT_S)  # type: ignore[union-attr]
    session.close()
    assert _names(tmp_path) == [f"copy {number}" for number in range(20)]


@pytest.mark.parametrize("limit", ["MAX_STEPS", "MAX_BYTES"])
def test_what_has_no_room_is_missed_in_whole_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(drainer, limit, 4 if limit == "MAX_STEPS" else 4 * 16)
    device = Device()
    session = _session(tmp_path, device)
    ledger = Ledger(SLOTS + 1)
    session.add_state(ledger)

    def alloc(slots: NDArray[np.int64]) -> list[dict[str, Any]]:
        return ledger.alloc("r", slots)

    for number in range(10):
        session.emit(_finish(f"step {number}"))
        session.defer(alloc, [2 * number + 1, 2 * number + 2])
        session.commit(step=True)
    device.run()
    assert session._drainer.settle(WAIT_S)  # type: ignore[union-attr]
    session.emit(_finish("after"))
    session.commit()
    session.close()
    assert session.dropped_steps == 6
    assert _names(tmp_path) == [*(f"step {number}" for number in range(4)), "after"]
    (trace,) = parts(tmp_path)
    found = events(trace)
    last, behind = found[-2]["i"], found[-1]["i"]
    # At least what the missed steps emitted is missing in the numbers.
    assert behind - last - 1 >= 12
    # The recorder has not seen what they took, so it claims nothing.
    assert (ledger.owner == UNKNOWN).all()


def test_a_full_disk_queue_keeps_the_state_true(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Device()
    device.free_running = True
    session = _session(tmp_path, device)
    ledger = Ledger(SLOTS + 1)
    session.add_state(ledger)
    # Behind a first event, or the trace would have no gap and just begin later.
    session.emit(_finish("first"))
    session.commit()
    assert session._drainer.settle(WAIT_S)  # type: ignore[union-attr]
    offer = session._sink.offer
    monkeypatch.setattr(session._sink, "offer", lambda group: False)
    session.defer(lambda slots: ledger.alloc("lost", slots), [3, 4])
    session.commit(step=True)
    session.defer(lambda slots: ledger.free("lost", slots, "end"), [4])
    session.commit(step=True)
    assert session._drainer.settle(WAIT_S)  # type: ignore[union-attr]
    monkeypatch.setattr(session._sink, "offer", offer)
    session.emit(_finish("after"))
    session.commit()
    session.close()
    assert ledger.owner[4] == FREE
    (trace,) = parts(tmp_path)
    told = [(event["kind"], event.get("owner"), event.get("slots")) for event in events(trace)]
    assert ("own", "lost", [3]) in told
    assert ("free", "kvcanary:gap", [4]) in told


def test_start_after_runs_what_is_deferred_but_records_nothing(tmp_path: Path) -> None:
    device = Device()
    device.free_running = True
    session = _session(tmp_path, device, start_after=2)
    ledger = Ledger(SLOTS + 1)
    session.add_state(ledger)
    for number in range(4):
        session.defer(lambda slots: ledger.alloc("r", slots), [number + 1])
        session.emit(_finish(f"step {number}"))
        session.commit(step=True)
    session.close()
    (trace,) = parts(tmp_path)
    found = events(trace)
    assert found[0]["kind"] == "own"
    assert sorted(found[0]["slots"]) == [1, 2]
    assert _names(tmp_path) == ["step 2", "step 3"]


def test_a_fault_of_a_deferred_function_ends_the_recording(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    device = Device()
    session = _session(tmp_path, device)

    def fail(_values: Any) -> list[dict[str, Any]]:
        raise RuntimeError("a fault")

    session.emit(_finish("before"))
    session.commit()
    session.defer(fail, [1])
    session.commit()
    session.emit(_finish("behind"))
    session.commit()
    device.run()
    assert session._drainer.settle(WAIT_S)  # type: ignore[union-attr]
    assert not session.active
    session.close()
    (trace,) = parts(tmp_path)
    found = events(trace)
    assert [event["kind"] for event in found] == ["finish", "recording_ended"]
    assert "a fault" in found[-1]["reason"]
    assert sum("recording ends" in record.message for record in caplog.records) == 1


def test_a_fault_of_the_adapter_comes_behind_what_is_under_way(tmp_path: Path) -> None:
    device = Device()
    session = _session(tmp_path, device)
    session.defer(_told, [1])
    session.commit()
    session.fail(RuntimeError("later"))
    session.emit(_finish("never"))
    device.run()
    session.close()
    (trace,) = parts(tmp_path)
    assert [event["kind"] for event in events(trace)] == ["finish", "recording_ended"]


def test_a_device_that_hangs_does_not_hang_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvcanary_cli.record import session as session_module

    monkeypatch.setattr(session_module, "_CLOSE_S", 0.2)
    device = Device()
    session = _session(tmp_path, device)
    session.emit(_finish("before"))
    session.commit()
    assert session._drainer.settle(WAIT_S)  # type: ignore[union-attr]
    session.defer(_told, [1])
    session.commit()
    session.close()
    assert _names(tmp_path) == ["before"]


def test_without_a_device_everything_is_made_at_once(tmp_path: Path) -> None:
    session = _session(tmp_path, None)
    assert not session.asynchronous
    made: list[int] = []

    def note(values: NDArray[np.int64]) -> list[dict[str, Any]]:
        made.extend(values.tolist())
        return _told(values)

    session.defer(note, [7])
    assert made == [7]

    def incomplete(_values: Any) -> list[dict[str, Any]]:
        raise StepIncompleteError("too many")

    session.commit()
    session.emit(_finish("dropped"))
    session.defer(incomplete, [1])
    session.commit()
    session.emit(_finish("after"))
    session.commit()
    session.close()
    assert session.dropped_steps == 1
    assert _names(tmp_path) == ["copy 7", "after"]


def test_host_tensors_need_no_mover() -> None:
    assert mover_of(np.zeros(3)) is None
    assert HostNow.of([1, 2]).array().tolist() == [1, 2]


class _Launches(RowDiff):
    """Launches as on a device; few changes fit."""

    def __init__(self, table: Any) -> None:
        super().__init__(table, capacity=2)


def test_tables_are_told_without_waiting_and_overflow_drops_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shadows, "RowDiff", _Launches)
    device = Device()
    session = _session(tmp_path, device)
    table = np.zeros((3, 8), dtype=np.int32)
    shadow = TableShadow(table)
    session.add_state(shadow)
    table[1, :2] = [5, 6]
    shadow.tell(session, [1], [8])
    session.emit(_finish("one"))
    session.commit(step=True)
    # What the engine does next is not in the copy.
    table[1, :6] = [7, 7, 7, 7, 7, 7]
    device.run()
    assert session._drainer.settle(WAIT_S)  # type: ignore[union-attr]
    for name in ("overflow", "after"):
        shadow.tell(session, [1], [8])
        session.emit(_finish(name))
        session.commit(step=True)
        device.run()
        assert session._drainer.settle(WAIT_S)  # type: ignore[union-attr]
    session.close()
    assert device.clones == 0
    assert _names(tmp_path) == ["one", "after"]
    (trace,) = parts(tmp_path)
    maps = [(e["start"], e["slots"]) for e in events(trace) if e["kind"] == "map"]
    # Behind the drop the whole row is told, by now in one go.
    assert maps == [(0, [5, 6]), (0, [7] * 6)]


def test_a_translation_table_is_told_without_waiting(tmp_path: Path) -> None:
    device = Device()
    device.free_running = True
    session = _session(tmp_path, device)
    lut = LutShadow(4)
    table = np.zeros(5, dtype=np.int64)
    for changes in ({1: 9}, {}, {1: 3, 2: 8}):
        for slot, value in changes.items():
            table[slot] = value
        lut.tell(session, table)
        session.commit()
    assert session._drainer.settle(WAIT_S)  # type: ignore[union-attr]
    session.close()
    (trace,) = parts(tmp_path)
    told = [(e["full"], e["swa"]) for e in events(trace)]
    assert told == [([1], [9]), ([1, 2], [3, 8])]


class _Stream:
    def __init__(self) -> None:
        self.waited: list[Any] = []

    def wait_event(self, event: Any) -> None:
        self.waited.append(event)


class _Event:
    recorded_on: Any = None

    def record(self, stream: Any) -> None:
        self.recorded_on = stream


def test_launches_on_two_streams_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    streams, current = [_Stream(), _Stream()], [0]
    monkeypatch.setattr(torch.cuda, "Event", _Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: streams[current[0]])
    turns = CudaTurns(torch.device("cuda", 0))
    for number in (0, 1, 0):
        current[0] = number
        turns.begin()
        turns.end()
    # Each launch runs behind the one before, wherever that was queued.
    assert [event.recorded_on for event in streams[1].waited] == [streams[0]]
    assert [event.recorded_on for event in streams[0].waited] == [streams[1]]


def test_lengths_that_the_host_does_not_know_are_not_looked_at() -> None:
    table = torch.arange(1, 33, dtype=torch.int32).reshape(4, 8)
    diff = RowDiff(table)
    rows, lengths = torch.tensor([2, 1]), torch.tensor([3, 8])
    entries, count = diff.launch(rows, lengths, longest=6)
    cells = [(2, 0), (2, 1), (2, 2), *((1, cell) for cell in range(6))]
    assert entries[: int(count)].tolist() == [[r, c, int(table[r, c])] for r, c in cells]
    assert diff.changes(rows, lengths).tolist() == [[1, 6, 15], [1, 7, 16]]


def test_a_translation_table_whose_changes_were_missed_is_told_as_a_whole(tmp_path: Path) -> None:
    device = Device()
    device.free_running = True
    session = _session(tmp_path, device)
    lut, table = LutShadow(4), np.array([0, 9, 0, 5, -1], dtype=np.int64)
    lut.watch(table)
    lut.tell(session, table)
    session.commit()
    assert session._drainer.settle(WAIT_S)  # type: ignore[union-attr]
    lut.lost()
    table[1] = 0
    lut.tell(session, table)
    session.commit()
    session.close()
    (trace,) = parts(tmp_path)
    told = [(e["full"], e["swa"]) for e in events(trace)]
    assert told == [([1, 3], [9, 5]), ([0, 1, 2, 3], [0, 0, 0, 5])]
