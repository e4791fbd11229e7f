"""Does runs of SGLang, each in a child of its own, so that the engine is imported once.

    python tests/engines/sglang_driver.py [JOBS] < PATHS

runs in the environment of ``setup_sglang.py``. Each line of standard input is the path of a run's
description (``sglang_run.DESCRIPTION``); at most JOBS run at a time, 2 unless given. What a run
prints goes into ``log.txt`` beside its description. The children end hard, as SGLang's own
processes do; one that leaves no result leaves ``failed``.
"""

from __future__ import annotations

import os
import select
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.engines.driving import Killing, start
from tests.engines.sglang_run import execute

_POLL_S = 0.05


def main() -> None:
    jobs = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    warm_up()
    running: dict[int, tuple[Path, Killing]] = {}
    waiting: list[Path] = []
    rest, is_open = b"", True
    while is_open or waiting or running:
        while waiting and len(running) < jobs:
            path = waiting.pop(0)
            child = start(path, execute)
            running[child] = path, Killing(child, path)
        if is_open and select.select([0], [], [], 0 if running else None)[0]:
            read = os.read(0, 1 << 16)
            is_open = bool(read)
            *lines, rest = (rest + read).split(b"\n")
            waiting += [Path(os.fsdecode(line)) for line in lines]
        _reap(running)


def warm_up() -> None:
    """Import and compile here what every child would; says whether anything has hooked SGLang."""
    import sglang.srt.models.registry  # noqa: F401
    import torch
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.plugins import load_plugins

    from kvcanary_cli.abi.constants import RealKvHashMode
    from kvcanary_cli.abi.sources import RealKvSource
    from kvcanary_cli.backends import get_backend

    load_plugins()
    hooked = hasattr(Scheduler.process_batch_result, "__kvcanary_original__")
    sys.stdout.write(f"hooked {hooked}\n")
    sys.stdout.flush()
    keys = torch.zeros((2, 32), dtype=torch.bfloat16)
    get_backend("cpu").real_kv_hash(
        slots=torch.tensor([1]),
        real_kv_sources=(
            RealKvSource(tensor=keys, page_size=1, num_bytes_per_token=64, read_bytes=64),
        ),
        real_kv_hash_mode=RealKvHashMode.ALL,
    )


def _reap(running: dict[int, tuple[Path, Killing]]) -> None:
    """Note which children have ended; waits a moment if none has."""
    if not running:
        return
    for _path, killing in running.values():
        killing.look()
    child, status = os.waitpid(-1, os.WNOHANG)
    if not child:
        time.sleep(_POLL_S)
        return
    if child not in running:
        return
    path, _killing = running.pop(child)
    if not path.with_name("result.json").exists():
        path.with_name("failed").write_text(f"status {status}\n")


if __name__ == "__main__":
    main()
