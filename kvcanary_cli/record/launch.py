"""Runs a command under the recorder: environment in, signals and exit status through."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcanary_cli.errors import InputError, UsageError
from kvcanary_cli.record.options import to_env
from kvcanary_cli.record.triggers import SIGNAL, TriggerFile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvcanary_cli.record.options import RecordOptions

log = logging.getLogger("kvcanary.record")

HOOK_FOLDER = Path(__file__).parent / "hook"
_PASSED_ON = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
#: What a shell returns for a command that a signal ended.
_SIGNAL_STATUS = 128


def environment(options: RecordOptions, env: Mapping[str, str]) -> dict[str, str]:
    """``env`` with what makes every Python process below load the recorder."""
    paths = [str(HOOK_FOLDER), *env.get("PYTHONPATH", "").split(os.pathsep)]
    return {**env, **to_env(options), "PYTHONPATH": os.pathsep.join(p for p in paths if p)}


def check_place(options: RecordOptions) -> None:
    """See before the server starts, which may take minutes, whether its recording has a place.

    Raises:
        InputError: The folder cannot be made, or what lies where its key belongs is no key.
    """
    from kvcanary_cli.record.tokens import existing_key, key_path

    made: list[Path] = []
    folder = Path(options.path).absolute()
    try:
        for part in (*reversed(folder.parents), folder):
            if not part.exists():
                part.mkdir()
                made.append(part)
        key = key_path(options.path)
        if options.tokens == "salted" and key.exists():
            existing_key(key)
    except OSError as error:
        raise InputError(
            f"{options.path}: a recording cannot be put there: {error.strerror}",
            hint="give -o a name in a folder that can be written to",
        ) from error
    finally:
        # Of a command without an engine nothing is left behind.
        for part in reversed(made):
            with contextlib.suppress(OSError):
                part.rmdir()


def _pull(path: str) -> None:
    """SIGUSR2 came: tell every rank, whichever processes there are by now."""
    try:
        TriggerFile(Path(path)).pull(SIGNAL, f"SIGUSR2 to process {os.getpid()}")
    except OSError as error:
        log.warning("kvcanary: nothing is recorded yet that could be kept: %s", error)


def run(command: Sequence[str], options: RecordOptions) -> int:
    """Run ``command`` unchanged under the recorder and wait for it.

    Returns:
        Its exit status; 128 + n if signal n ended it.

    Raises:
        UsageError: It cannot be started.
    """
    if shutil.which(command[0]) is None:
        raise UsageError(
            f"command not found: {command[0]}",
            hint="give the command that starts the server behind --",
        )
    child: subprocess.Popen[bytes] | None = None
    waiting: list[int] = []

    def pass_on(number: int, _frame: Any) -> None:
        if number in ours:
            _pull(options.path)
        elif child is None:
            waiting.append(number)
        elif child.poll() is None:
            child.send_signal(number)

    ours = {signal.SIGUSR2} if SIGNAL in options.triggers else set()
    numbers = [getattr(signal, name) for name in _PASSED_ON if hasattr(signal, name)]
    before = {number: signal.signal(number, pass_on) for number in numbers}
    try:
        child = subprocess.Popen(list(command), env=environment(options, os.environ))
        for number in waiting:
            child.send_signal(number)
        status = child.wait()
    except OSError as error:
        raise UsageError(f"{command[0]} cannot be started: {error.strerror}") from error
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return status if status >= 0 else _SIGNAL_STATUS - status
