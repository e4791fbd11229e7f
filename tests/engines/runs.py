"""The runs of SGLang that the tests look at."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.engines.setup_sglang import default_folder, interpreter

HERE = Path(__file__).parent
_TIMEOUT_S = 600
_LONG = {"requests": 40, "gap": 7, "new_tokens": [10, 60]}
_FAULT = {"requests": 24, "gap": 3, "record_options": {"tokens": "raw", "kv_hash": "all"}}

#: Name of a run to what differs from ``sglang_driver.DESCRIPTION``.
RUNS: dict[str, dict[str, Any]] = {
    "radix": _LONG,
    "mixed": {**_LONG, "server_args": {"enable_mixed_chunk": True}},
    "retraction": {
        **_LONG,
        "gap": 1,
        "prompt_tokens": [8, 40],
        "new_tokens": [30, 80],
        # Requests that may end early are admitted as if they would generate next to nothing.
        "ignore_eos": False,
        "server_args": {"max_total_tokens": 256, "schedule_conservativeness": 0.0},
    },
    "page16": {**_LONG, "server_args": {"page_size": 16, "max_total_tokens": 1024}},
    "overlap": {**_LONG, "server_args": {"disable_overlap_schedule": False}},
    "swa": {
        **_LONG,
        "swa": True,
        "server_args": {"swa_full_tokens_ratio": 1.0, "max_total_tokens": 1024},
    },
    "canary": {
        "requests": 20,
        "gap": 3,
        "canary": True,
        "record_options": {"tokens": "raw", "kv_hash": "all"},
    },
    **{
        f"fault_{fault}": {**_FAULT, "fault": fault}
        for fault in (
            "free_live_slot",
            "hand_out_twice",
            "swap_cells",
            "kv_bytes",
            "shift_position",
        )
    },
}


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run.

    Attributes:
        folder: Its files.
        trace: Its recording.
        result: What the driver says.
        log: What the process printed.
    """

    folder: Path
    trace: Path
    result: dict[str, Any]
    log: str


def engine_env(**extra: str) -> dict[str, str]:
    """The environment that SGLang needs on this kind of machine."""
    return {
        **os.environ,
        "SGLANG_USE_CPU_ENGINE": "1",
        "PYTHONPATH": str(HERE / "stubs"),
        # One thread: several spin against each other on a shared machine.
        "OMP_NUM_THREADS": "1",
        **extra,
    }


@cache
def run(name: str, base: Path) -> Run:
    """Run ``RUNS[name]`` once, with its files below ``base``."""
    folder = base / name
    folder.mkdir(parents=True)
    trace = folder / "run.kvtrace"
    description = {
        "folder": str(folder),
        "record": str(trace),
        "record_options": {"tokens": "raw"},
        **RUNS[name],
    }
    (folder / "run.json").write_text(json.dumps(description))
    env = engine_env(**({"TRITON_INTERPRET": "1"} if description.get("canary") else {}))
    done = subprocess.run(
        [
            str(interpreter(default_folder())),
            str(HERE / "sglang_driver.py"),
            str(folder / "run.json"),
        ],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    (folder / "log.txt").write_text(done.stdout)
    result = folder / "result.json"
    assert result.exists(), done.stdout[-4000:]
    return Run(folder, trace, json.loads(result.read_text()), done.stdout)
