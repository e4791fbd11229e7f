"""A server of an engine in a process of its own, asked over HTTP."""

from __future__ import annotations

import json
import socket
import subprocess
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from kvcanary_cli.trace.errors import TraceError
from tests.engines.waiting import STALLED_S, wait_until
from tests.record.helpers import events

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

KEY = "sk-not-to-be-recorded"
_AT_ONCE = 8


def finished(recording: Path, named: str = "") -> int:
    """How many ends of requests ``named`` so are on the disk; each takes a second to get there."""
    told = 0
    for trace in recording.glob("*"):
        # Until its first second is over a rank has a folder, and nothing in it.
        with suppress(TraceError):
            ended = [event["req"] for event in events(trace) if event["kind"] == "finish"]
            told += sum(req.startswith(named) for req in ended)
    return told


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


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
                list(command), cwd=folder, env=dict(env), stdout=log, stderr=subprocess.STDOUT
            )

    def said(self) -> str:
        """What it has printed."""
        return self._log.read_text(errors="replace")

    def wait_until_ready(self) -> None:
        """Wait until it answers at ``/health``."""
        wait_until(self._is_ready, self.folder, lambda: self.said()[-4000:])

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, self.said()[-4000:]
        try:
            with urllib.request.urlopen(self._address("/health"), timeout=5) as answer:
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
            lambda: self._process.poll() is not None, self.folder, lambda: self.said()[-4000:]
        )
        return int(self._process.returncode)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(STALLED_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
