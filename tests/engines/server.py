"""A server of an engine in a process of its own, recorded, and asked over HTTP."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from kvcanary_cli.record.options import ENV_OPTIONS
from kvcanary_cli.trace.errors import TraceError
from kvcanary_cli.trace.reader import open_trace
from tests.engines.environment import ROOT
from tests.engines.waiting import STALLED_S, wait_until
from tests.record.helpers import events, replay, steps

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

KEY = "sk-not-to-be-recorded"
RECORDING = "run.kvtrace"
_AT_ONCE = 8
_HANDED_OUT = Path("/proc/sys/net/ipv4/ip_local_port_range")
_USUALLY_HANDED_OUT = (32_768, 60_999)
_PORTS = range(10_000, 65_000)
#: SGLang takes ports of its own from here, for its processes.
_SGLANGS_OWN = range(22_000, 30_000)
_dealt: set[int] = set()


def end_group(process: subprocess.Popen[Any]) -> None:
    """End ``process``, which leads a group of its own, and all that it has started there."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def way_in(way: str, python: Path, launch: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """How a server is recorded into ``RECORDING``, in the folder that it runs in.

    Args:
        way: ``command`` (``kvcanary record``) or ``variable``.
        python: The interpreter that has the engine.
        launch: Starts the server.

    Returns:
        The command, and what it needs in its environment.
    """
    if way == "variable":
        return list(launch), {"KVCANARY_RECORD": RECORDING, ENV_OPTIONS: '{"kv_hash": "all"}'}
    record = ["record", "-o", RECORDING, "--kv-hash", "all"]
    return [str(python), "-m", "kvcanary_cli", *record, "--", *launch], {}


def finished(recording: Path, named: str = "") -> int:
    """How many ends of requests ``named`` so are on the disk; each takes a second to get there."""
    told = 0
    for trace in recording.glob("*"):
        # Until its first second is over a rank has a folder, and nothing in it.
        with suppress(TraceError):
            ended = [event["req"] for event in events(trace) if event["kind"] == "finish"]
            # Each further group of layers tells of a request by another name.
            told += sum(req.startswith(named) and "/group-" not in req for req in ended)
    return told


def clean_recording(
    recording: Path, requests: int, named: str = "", rank: str = "tp0-pp0-dp0"
) -> Any:
    """Check what every sound server leaves behind: one whole trace of it all, without secrets.

    Args:
        recording: The folder of the recording.
        requests: How many requests ended.
        named: How their names begin.
        rank: Which of its traces tells how they ended.

    Returns:
        The replay's diagnosis.
    """
    trace = recording / f"{rank}.kvtrace"
    header = open_trace(trace).header
    assert header.tokens == "salted"
    assert not header.starts_mid_run
    assert KEY not in json.dumps(header.raw)
    key = recording.with_name(f"{recording.name}.key")
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert finished(recording, named) == requests
    matches = [event for event in events(trace) if event["kind"] == "match"]
    assert len(matches) > requests // 8
    assert len(steps(trace)) >= 300
    diagnosis = replay(trace)
    assert not diagnosis.ownership
    assert not diagnosis.findings
    assert diagnosis.verdict == "clean"
    assert diagnosis.replay.coverage.entries_verified > 10_000
    return diagnosis


def clean_worker(recording: Path, rank: str, core: str = "core-dp0") -> Any:
    """Check what a sound worker leaves behind: the forwards of its engine core, and its KV.

    Returns:
        The replay's diagnosis.
    """
    worker = recording / f"{rank}.kvtrace"
    # Of servers that are killed, the last second of a trace may be missing.
    told = [_fed(trace) for trace in (worker, recording / f"{core}.kvtrace")]
    common = min(map(len, told))
    assert common >= 300
    assert told[0][:common] == told[1][:common]
    assert open_trace(worker).header.tokens == "salted"
    diagnosis = replay(worker)
    assert not diagnosis.findings
    assert diagnosis.verdict == "clean"
    assert diagnosis.replay.coverage.kv_hashes > 10_000
    return diagnosis


def _fed(trace: Path) -> list[tuple[Any, ...]]:
    """Who ran in each forward and where it wrote; a runner has rows in an order of its own."""
    return [
        (e["step"], sorted(e["reqs"]), sorted(zip(e["out_cache_loc"], e["positions"], strict=True)))
        for e in events(trace)
        if e["kind"] == "forward"
    ]


def verdict(recording: Path) -> str:
    """What ``kvcanary replay`` says last of all its traces together; it must be clean."""
    command = [sys.executable, "-m", "kvcanary_cli", "replay", str(recording), "-q"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def free_port() -> int:
    """A port that nobody listens at, and that nobody is handed while a server takes its time.

    The kernel hands out ports of a range of its own to whoever asks for any, as engines do all
    the time: one of those, free now, may be taken before a server has started. Nor is a port
    given twice, here or in another process of these tests.
    """
    lowest, highest = _handed_out()
    kept = [port for port in _PORTS if not lowest <= port <= highest] or list(_PORTS)
    number, count = _worker()
    mine = [port for port in kept if port not in _SGLANGS_OWN and port % count == number]
    for port in random.sample(mine, k=100):
        if port in _dealt:
            continue
        with socket.socket() as free, suppress(OSError):
            free.bind(("127.0.0.1", port))
            _dealt.add(port)
            return port
    raise AssertionError("all of a hundred ports are in use")


def _worker() -> tuple[int, int]:
    """Which process of these tests this is, and how many there are."""
    count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    return int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % count, count


def _handed_out() -> tuple[int, int]:
    """The lowest and the highest port that the kernel hands out."""
    try:
        lowest, highest = map(int, _HANDED_OUT.read_text().split())
    except OSError:  # not Linux
        return _USUALLY_HANDED_OUT
    return lowest, highest


class Server:
    """Runs a command until it is told to end; what it prints is in ``log.txt``."""

    def __init__(
        self, command: Sequence[str], port: int, folder: Path, env: Mapping[str, str]
    ) -> None:
        """Start it.

        Args:
            command: Starts a server that asks for ``KEY``.
            port: Where it will listen.
            folder: Where it runs and writes.
            env: Its environment.
        """
        self.port, self.folder = port, folder
        self._log = folder / "log.txt"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                list(command),
                cwd=folder,
                env=dict(env),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def said(self) -> str:
        """What it has printed."""
        return self._log.read_text(errors="replace")

    def wait_until_ready(self) -> None:
        """Wait until it answers at ``/health``."""
        wait_until(self._is_ready, self.folder, lambda: self.said()[-16_000:])

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, self.said()[-16_000:]
        try:
            with urllib.request.urlopen(self._address("/health"), timeout=60) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def _address(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def ask(self, path: str, body: Mapping[str, Any]) -> Any:
        """Post ``body``; the answer."""
        request = urllib.request.Request(
            self._address(path),
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"},
        )
        with urllib.request.urlopen(request, timeout=STALLED_S) as answer:
            return json.load(answer)

    def ask_all(self, path: str, bodies: Iterable[Mapping[str, Any]]) -> list[Any]:
        """Post several at a time; the answers in order."""
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return list(pool.map(lambda body: self.ask(path, body), bodies))

    def stop(self, number: int) -> int:
        """Send it the signal ``number`` and wait; its exit status."""
        self._process.send_signal(number)
        wait_until(
            lambda: self._process.poll() is not None, self.folder, lambda: self.said()[-16_000:]
        )
        return int(self._process.returncode)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # With the engine's other processes, which may go on without the first one.
        end_group(self._process)
