"""The size of a recording is what was asked for, however far apart segments are in time."""

from __future__ import annotations

import random
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from kvcanary_cli.record import sink
from kvcanary_cli.record.sink import Sink
from tests.record.helpers import WAIT_S, Toy, events, parts, steps

if TYPE_CHECKING:
    from pathlib import Path

#: Steps that still go into a part of a ring which has been found to be full.
_LATE = 3


def _sizes(trace: Path) -> list[int]:
    """Sizes of its segments, as far as it is still there."""
    sizes = []
    for segment in trace.glob("*.pt"):
        with suppress(FileNotFoundError):
            sizes.append(segment.stat().st_size)
    return sizes


def _size(trace: Path) -> int:
    return sum(_sizes(trace))


def _largest(traces: list[Path]) -> int:
    return max((size for trace in traces for size in _sizes(trace)), default=0)


def _let_write(toy: Toy) -> None:
    """Wait until the disk has caught up, without having it seal."""
    while toy.session.active and toy.session._sink._queue:
        threading.Event().wait(0.0002)


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer looks again at once: these tests wait for it at each step."""
    monkeypatch.setattr(sink, "_POLL_S", 0.0002)


@pytest.fixture(params=[0.0, 1e9], ids=["sealed at once", "never sealed for time"])
def interval(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink, "SEAL_INTERVAL_S", request.param)
    monkeypatch.setattr(sink, "_SEAL_IDLE_S", 1e9)


@pytest.mark.parametrize("limit", [60_000, 150_000])
def test_a_recording_stays_within_its_size(limit: int, tmp_path: Path, interval: None) -> None:
    toy = Toy(tmp_path, max_bytes=limit)
    while toy.session.active:
        toy.step()
        _let_write(toy)
    toy.session.close()
    (trace,) = parts(tmp_path)
    *before, last = events(trace)
    assert last["kind"] == "recording_ended"
    assert last["reason"] == f"--max-bytes {limit} is reached"
    assert [event["i"] for event in before] == list(range(len(before)))
    # By a step and by the last word more at most, where each is a segment of its own.
    assert limit - limit // 32 <= _size(trace) <= limit + 2 * _largest([trace])


@pytest.mark.parametrize("limit", [120_000, 200_000])
def test_a_ring_stays_within_its_size(
    limit: int, tmp_path: Path, interval: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    full: list[int] = []
    finish = sink._finish

    def finished(writer: Any) -> None:
        finish(writer)
        full.append(_size(writer._target))

    monkeypatch.setattr(sink, "_finish", finished)
    toy, most = Toy(tmp_path, ring_bytes=limit), 0
    while len(full) < 4:
        toy.step()
        _let_write(toy)
        there = parts(tmp_path)
        most = max(most, sum(map(_size, there)) - 2 * _LATE * _largest(there))
    toy.session.close()
    assert min(full[:4]) >= limit // 2 - limit // 64
    assert most <= limit


@pytest.mark.parametrize("seed", range(4))
def test_each_part_of_a_ring_is_full_however_late_the_disk_is(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part that is found to be full again, when the next was asked for, ends no other."""
    monkeypatch.setattr(sink, "SEAL_INTERVAL_S", 0.0)
    allowed, write, finish = threading.Semaphore(0), Sink._write_group, sink._finish
    full: list[int] = []

    def late(self: Sink, group: Any) -> None:
        assert allowed.acquire(timeout=WAIT_S)
        write(self, group)

    def finished(writer: Any) -> None:
        finish(writer)
        full.append(_size(writer._target))

    monkeypatch.setattr(Sink, "_write_group", late)
    monkeypatch.setattr(sink, "_finish", finished)
    toy, chance, ahead = Toy(tmp_path, ring_bytes=100_000), random.Random(seed), 0
    while len(full) < 6:
        for _ in range(chance.randint(1, 6)):
            toy.step()
            ahead += 1
        for _ in range(chance.randint(0, ahead)):
            allowed.release()
            ahead -= 1
        while toy.session._sink._queue and allowed._value:
            threading.Event().wait(0.0002)
    allowed.release(1_000)
    toy.session.close()
    assert min(full[:6]) >= 50_000 - 50_000 // 32
    numbers = [number for trace in parts(tmp_path) for number in steps(trace)]
    assert numbers == list(range(numbers[0], toy.steps))
