"""What runs of both engines share: their load, their processes, and the time of the hooks."""

from __future__ import annotations

import faulthandler
import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

#: Name of the file that tells how many forwards were begun by its size.
COUNT = "begun"
#: Moments at which runs are killed, in seconds from their first segment on.
KILLS_S = tuple(random.Random(5).uniform(0.0, 2.0) for _ in range(4))
#: CPU seconds of the engine's thread within the recorder's hooks.
HOOK_S = [0.0]


def prompts_of(run: dict[str, Any], rng: random.Random) -> list[tuple[list[int], int]]:
    """Prompts of a run and how many tokens each generates; many begin alike.

    Args:
        run: With ``requests``, ``prefix_families``, ``prompt_tokens``, ``new_tokens``, and
            ``paired`` where pairs of requests begin with a prefix that no request had before.
        rng: Draws them.
    """
    low, high = run["prompt_tokens"]
    families = [[rng.randrange(3, 500) for _ in range(high)] for _ in range(run["prefix_families"])]
    prompts = []
    for k in range(run["requests"]):
        length = rng.randint(low, high)
        paired = bool(run.get("paired"))
        shared = low if paired else rng.randint(0, length)
        tail = [rng.randrange(3, 500) for _ in range(length - shared)]
        family = families[k // 2 % len(families)] if paired else rng.choice(families)
        prompts.append((family[:shared] + tail, rng.randint(*run["new_tokens"])))
    return prompts


def time_hooks(module: Any) -> None:
    """Add the time that the hooks of an adapter take to ``HOOK_S[0]``.

    Args:
        module: The adapter's module ``hooks``.
    """
    from dataclasses import replace

    def timed(call: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            begun = time.thread_time()
            try:
                return call(*args, **kwargs)
            finally:
                HOOK_S[0] += time.thread_time() - begun

        return None if call is None else run

    plain = module.hooks_of

    def timed_hooks(recorder: Any) -> Any:
        return [
            replace(hook, before=timed(hook.before), after=timed(hook.after))
            for hook in plain(recorder)
        ]

    module.hooks_of = timed_hooks


class Count:
    """How many forwards a run has begun, for whoever looks at it after its end: a byte for each."""

    def __init__(self, folder: Path) -> None:
        self._file = os.open(folder / COUNT, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def note(self) -> None:
        os.write(self._file, b".")


class Killing:
    """Ends a run hard at a moment that it does not choose, once some of it is on the disk."""

    def __init__(self, child: int, path: Path) -> None:
        """Prepare; only a run whose description has ``kill_after_s`` is ended.

        Args:
            child: Its process id.
            path: Its description.
        """
        run = json.loads(path.read_text())
        self._child, self._after_s = child, run.get("kill_after_s")
        self._recording = run.get("record")
        self._since: float | None = None

    def look(self) -> None:
        """End the run if it is time; called again and again until it has ended."""
        if self._after_s is None:
            return
        if self._since is None:
            if any(Path(self._recording).glob("*/*.pt")):
                self._since = time.monotonic()
        elif time.monotonic() - self._since >= self._after_s:
            os.kill(self._child, signal.SIGKILL)
            self._after_s = None


def start(path: Path, execute: Callable[[Path], None]) -> int:
    """Fork a child that does the run described at ``path``; its process id.

    What it prints goes into ``log.txt`` beside the description. It ends hard, as the engines' own
    processes do.
    """
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        log = os.open(path.with_name("log.txt"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(0)
        faulthandler.enable()
        execute(path)
        status = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
