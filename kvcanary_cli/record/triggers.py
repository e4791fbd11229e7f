"""Triggers: what makes the rings of all ranks be kept, told through a file beside their traces.

A signal reaches one process and a canary reports in one rank, but the evidence is in all of them.
Whoever sees a trigger appends a line to the file; the other ranks look at it while they write.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_NAME = ".triggers"
SIGNAL, CANARY = "signal", "canary"
_MAX_TEXT = 2000

_handled: set[str] = set()


@dataclass(frozen=True, slots=True)
class Trigger:
    """One trigger.

    Attributes:
        by: ``signal`` or ``canary``.
        text: What it was, in words.
        origin: Who wrote it into the file.
    """

    by: str
    text: str
    origin: str

    @property
    def event(self) -> dict[str, Any]:
        """The ``triggered`` event that tells of it."""
        return {"kind": "triggered", "by": self.by, "text": self.text}


class TriggerFile:
    """The file, and how far it has been read.

    Lines that were there before are of the past.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / _NAME
        self.origin = f"{os.getpid()}-{threading.get_ident()}-{id(self)}"
        self._offset = self._path.stat().st_size if self._path.exists() else 0

    def pull(self, by: str, text: str) -> Trigger:
        """Tell everybody else of a trigger.

        Raises:
            OSError: The file system refuses.
        """
        trigger = Trigger(by, text[:_MAX_TEXT], self.origin)
        line = json.dumps({"by": by, "text": trigger.text, "origin": self.origin}) + "\n"
        handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(handle, line.encode())
        finally:
            os.close(handle)
        return trigger

    def fresh(self) -> list[Trigger]:
        """What others have written since the last call; a line that is not whole yet waits."""
        try:
            if self._path.stat().st_size <= self._offset:
                return []
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except OSError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        found = []
        for line in whole.splitlines():
            with contextlib.suppress(ValueError, TypeError, KeyError):
                trigger = Trigger(**json.loads(line))
                if trigger.origin != self.origin:
                    found.append(trigger)
        return found


def pull_on_signal(folder: str) -> None:
    """Have SIGUSR2 to this process pull the trigger of the recording in ``folder``.

    A handler that was there before still runs. Only the main thread can set one; elsewhere, and
    where there is no such signal, nothing happens.
    """
    if folder in _handled or threading.current_thread() is not threading.main_thread():
        return
    if not hasattr(signal, "SIGUSR2"):
        return
    before = signal.getsignal(signal.SIGUSR2)

    def handle(number: int, frame: Any) -> None:
        # Before the first trace there is no folder, and nothing to keep.
        with contextlib.suppress(OSError):
            TriggerFile(Path(folder)).pull(SIGNAL, f"SIGUSR2 to process {os.getpid()}")
        if callable(before):
            before(number, frame)

    signal.signal(signal.SIGUSR2, handle)
    _handled.add(folder)
