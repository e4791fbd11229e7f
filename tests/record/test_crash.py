"""A process that is killed, and a disk that is full: what was sealed stays readable."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from kvcanary_cli.trace import folder_writer
from tests.record.helpers import WAIT_S, Toy, events, parts, replay, steps

if TYPE_CHECKING:
    from pathlib import Path

KILLS = 50
_SERVERS = """
import os, sys, time
from pathlib import Path
from kvcanary_cli.record import sink
from tests.record import helpers
sink.SEAL_INTERVAL_S = 0.05
# All that a server loads is loaded once, here.
helpers.TableShadow(helpers.np.zeros((2, 2), dtype=helpers.np.int32))
import kvcanary_cli.trace.folder_writer, kvcanary_cli.trace.header
for number in range(int(sys.argv[2])):
    folder = Path(sys.argv[1]) / f"{number:02}"
    folder.mkdir()
    child = os.fork()
    if child == 0:
        toy = helpers.Toy(folder)
        while True:
            toy.step()
            time.sleep(0.001)
    print(child, folder.name, flush=True)
    os.waitpid(child, 0)
"""
_FULL = """
import resource, sys
from pathlib import Path
from tests.record import helpers
from kvcanary_cli.record import sink
sink.SEAL_INTERVAL_S = 0.05
toy = helpers.Toy(Path(sys.argv[1]))
for _ in range(200):
    toy.step()
while not list(Path(sys.argv[1]).glob("run.kvtrace/*/*.pt")):
    toy.step()
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
last = toy.steps
while toy.session.active:
    toy.step()
for _ in range(10):
    toy.step()
print("the engine runs on", flush=True)
"""


def test_kill_at_random_moments_leaves_readable_traces(
    tmp_path: Path, engine_env: dict[str, str]
) -> None:
    # A process imports the recorder once and forks servers, each of which is killed by itself.
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVERS, str(tmp_path), str(KILLS)],
        env=engine_env,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    rng = random.Random(1)
    unclosed = 0
    for line in process.stdout:
        pid, name = line.split()
        folder = tmp_path / name
        while not list(folder.glob("run.kvtrace/*/*.pt")):
            assert process.poll() is None
            time.sleep(0.005)
        time.sleep(rng.random() * 0.25)
        os.kill(int(pid), signal.SIGKILL)
    process.stdout.close()
    assert process.wait(WAIT_S) == 0
    folders = sorted(tmp_path.iterdir())
    assert len(folders) == KILLS
    for number, folder in enumerate(folders):
        (trace,) = parts(folder)
        written = steps(trace)
        assert written
        assert written == list(range(len(written)))
        indices = [event["i"] for event in events(trace)]
        assert indices == list(range(len(indices)))
        # Every 25th goes through a whole replay, which takes the longest of all here.
        if number % 25 == 0:
            diagnosis = replay(trace)
            assert not diagnosis.ownership
            assert not diagnosis.findings
            notes = diagnosis.replay.coverage.notes
            unclosed += any("it still runs, or was killed, which costs at most" in n for n in notes)
    assert unclosed == len(folders[::25])


def test_a_full_disk_ends_the_recording_only(tmp_path: Path, engine_env: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FULL, str(tmp_path)],
        env=engine_env,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "the engine runs on" in done.stdout
    assert done.stderr.count("recording ends, the server runs on") == 1
    (trace,) = parts(tmp_path)
    written = steps(trace)
    assert written == list(range(len(written)))
    assert len(written) > 0


class _FullDisk:
    """Writes of more than so many bytes fail, as on a disk that is nearly full."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room: int | None = None
        save = folder_writer.save

        def limited(arrays: Any, path: Path) -> None:
            save(arrays, path)
            if self.room is not None and path.stat().st_size > self.room:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(folder_writer, "save", limited)


@pytest.mark.parametrize("fits", [True, False])
def test_a_disk_that_fills_up_is_the_last_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fits: bool
) -> None:
    disk = _FullDisk(monkeypatch)
    toy = Toy(tmp_path)
    for _ in range(20):
        toy.step()
    assert toy.session._sink.settle(WAIT_S)
    disk.room = 4000 if fits else 0
    for _ in range(300):
        toy.step()
    toy.session._sink.settle(WAIT_S)
    toy.step()
    assert not toy.session.active
    toy.session.close()
    (trace,) = parts(tmp_path)
    assert steps(trace) == list(range(20))
    coverage = replay(trace).replay.coverage
    if fits:
        # The little that is left is enough to say why.
        last = events(trace)[-1]
        assert last["kind"] == "recording_ended"
        assert "No space left on device" in last["reason"]
        assert coverage.ended_at_event == last["i"]
        assert not list(trace.glob(".*.tmp"))
    else:
        assert any("has not closed this trace" in note for note in coverage.notes)
