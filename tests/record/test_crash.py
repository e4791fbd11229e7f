"""A process that is killed, and a disk that is full: what was sealed stays readable."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from tests.record.helpers import events, parts, replay, steps

if TYPE_CHECKING:
    from pathlib import Path

KILLS = 20
_WRITER = """
import sys, time
from pathlib import Path
from tests.record.helpers import Toy
toys = [Toy(Path(name)) for name in sys.argv[1:]]
while True:
    for toy in toys:
        toy.step()
    if toys[0].steps % 20 == 0:
        print(toys[0].steps, flush=True)
    time.sleep(0.002)
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
    # Four ranks of a process end together, so that fewer processes have to be started.
    ranks, rng = 4, random.Random(1)
    for kill in range(KILLS // ranks):
        folders = [tmp_path / f"{kill}-{rank}" for rank in range(ranks)]
        for folder in folders:
            folder.mkdir()
        process = subprocess.Popen(
            [sys.executable, "-c", _WRITER, *map(str, folders)],
            env=engine_env,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        while not all(list(folder.glob("run.kvtrace/*/*.pt")) for folder in folders):
            process.stdout.readline()
        time.sleep(rng.random() * 1.5)
        process.kill()
        process.wait()
        process.stdout.close()
        for folder in folders:
            (trace,) = parts(folder)
            written = steps(trace)
            assert written
            assert written == list(range(len(written)))
            indices = [event["i"] for event in events(trace)]
            assert indices == list(range(len(indices)))
        assert not replay(trace).ownership


def test_a_full_disk_ends_the_recording_only(tmp_path: Path, engine_env: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FULL, str(tmp_path)],
        env=engine_env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "the engine runs on" in done.stdout
    assert done.stderr.count("recording ends, the server runs on") == 1
    (trace,) = parts(tmp_path)
    written = steps(trace)
    assert written == list(range(len(written)))
    assert len(written) > 0
