"""The runs of vLLM that the tests look at."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.engines.driving import KILLS_S
from tests.engines.environment import ROOT
from tests.engines.server import end_group, free_port
from tests.engines.setup_vllm import ENVIRONMENT
from tests.engines.waiting import wait_until

HERE = Path(__file__).parent
_RAW = {"tokens": "raw"}
_LONG = {"requests": 40, "prompt_tokens": [8, 160], "new_tokens": [20, 60], "gap": 16}
_FAULT = {
    "requests": 24,
    "prompt_tokens": [40, 160],
    "new_tokens": [30, 60],
    "engine_args": {"num_gpu_blocks_override": 40},
    "record_options": {"tokens": "raw", "kv_hash": "all"},
}
_SENDS = {
    "connector": "HoldingConnector",
    "connector_module": "tests.engines.vllm_connector",
}
FAULTS = (
    "free_live_block",
    "hand_out_twice",
    "swap_cells",
    "kv_bytes",
    "shift_position",
    "shift_slot",
)
GROUP_FAULTS = ("free_live_block", "hand_out_twice", "swap_cells", "kv_bytes")

#: Name of a run to what differs from ``vllm_driver.DESCRIPTION``.
RUNS: dict[str, dict[str, Any]] = {
    "prefix": {
        **_LONG,
        "abort_every": 90,
        "record_options": {"tokens": "raw", "kv_hash": "all"},
    },
    "preemption": {
        **_LONG,
        "gap": 1,
        "prompt_tokens": [8, 90],
        "new_tokens": [30, 80],
        "engine_args": {"num_gpu_blocks_override": 14, "max_model_len": 256},
        "record_options": {"tokens": "salted"},
    },
    "ngram": {
        **_LONG,
        "gap": 18,
        "prompt_tokens": [8, 90],
        "new_tokens": [60, 120],
        "record_options": _RAW,
        "engine_args": {
            "speculative_config": {
                "method": "ngram",
                "num_speculative_tokens": 3,
                "prompt_lookup_max": 3,
                "prompt_lookup_min": 1,
            }
        },
    },
    "eagle": {
        **_LONG,
        "draft": "eagle",
        "prompt_tokens": [8, 90],
        "new_tokens": [60, 120],
        "record_options": {"tokens": "raw", "kv_hash": "all"},
    },
    "paired": {
        "requests": 16,
        "prefix_families": 8,
        "paired": True,
        "prompt_tokens": [34, 44],
        "record_options": {"tokens": "raw", "kv_hash": "partial"},
    },
    "connector": {
        "requests": 6,
        "waves": 2,
        "gap": 6,
        "prompt_tokens": [66, 100],
        "connector": "ExampleConnector",
        "record_options": {"tokens": "raw", "kv_hash": "all"},
        # vLLM's example stores whole prompts only, so none may come in chunks.
        "engine_args": {"enable_prefix_caching": False, "max_num_batched_tokens": 256},
    },
    "sends": {**_LONG, **_SENDS, "abort_every": 90, "record_options": _RAW},
    "fault_free_while_sending": {
        **_FAULT,
        **_SENDS,
        "new_tokens": [8, 20],
        "fault": "free_while_sending",
        "engine_args": {"num_gpu_blocks_override": 40, "enable_prefix_caching": False},
    },
    # Groups of layers, of which some give blocks back while a request runs.
    "hybrid": {
        **_LONG,
        "layers": "hybrid",
        "abort_every": 90,
        "record_options": {"tokens": "raw", "kv_hash": "all"},
    },
    "hybrid_preemption": {
        "layers": "hybrid",
        "gap": 1,
        "requests": 24,
        "prompt_tokens": [60, 160],
        "new_tokens": [30, 80],
        "engine_args": {"num_gpu_blocks_override": 24, "max_model_len": 256},
        "record_options": {"tokens": "salted", "start_after": 25},
    },
    "windows": {
        "layers": "windows",
        "requests": 16,
        "prompt_tokens": [60, 200],
        "new_tokens": [30, 60],
        "record_options": {"tokens": "raw", "kv_hash": "partial"},
    },
    "no_cache": {
        "requests": 12,
        "record_options": _RAW,
        "engine_args": {"enable_prefix_caching": False},
    },
    # Recording options beside the usual ones.
    "option_start": {
        "requests": 24,
        "gap": 1,
        "prompt_tokens": [8, 90],
        "new_tokens": [30, 60],
        "engine_args": {"num_gpu_blocks_override": 14, "max_model_len": 256},
        "record_options": {
            "tokens": "absent",
            "start_after": 25,
            "kv_hash": "partial",
            "kv_hash_every": 3,
        },
    },
    "option_gaps": {
        "requests": 24,
        "disk": "slow",
        "record_options": {"kv_hash": "all", "queue_bytes": 60_000},
    },
    **{f"fault_{fault}": {**_FAULT, "fault": fault} for fault in FAULTS},
    **{
        f"fault_group_{fault}": {**_FAULT, "fault": fault, "fault_group": 1, "layers": "hybrid"}
        for fault in GROUP_FAULTS
    },
    # More requests than are ever served before the end.
    **{
        f"killed_{k}": {
            "requests": 2000,
            "kill_after_s": after_s,
            "engine_args": {"enable_prefix_caching": bool(k % 2)},
            "record_options": {"kv_hash": "all"},
        }
        for k, after_s in enumerate(KILLS_S)
    },
}


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run.

    Attributes:
        folder: Its files.
        trace: The trace of its rank.
        result: What the driver says; nothing of a run that was killed.
        log: What the process printed.
    """

    folder: Path
    trace: Path
    result: dict[str, Any]
    log: str


def engine_env(**extra: str) -> dict[str, str]:
    """The environment that vLLM needs on this kind of machine."""
    return {
        **os.environ,
        # The project of these tests, wherever the environment was made for.
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).strip(
            os.pathsep
        ),
        # Where its processes meet; else one that the kernel may hand out again meanwhile.
        "VLLM_PORT": str(free_port()),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        # Compiled once: the setup leaves it to the first import, and there are many processes.
        "PYTHONDONTWRITEBYTECODE": "",
        # One thread: several spin against each other on a shared machine.
        "OMP_NUM_THREADS": "1",
        **extra,
    }


def run_all(base: Path) -> dict[str, Run]:
    """Run all of ``RUNS`` once, with their files below ``base``."""
    paths = []
    for name, differs in RUNS.items():
        folder = base / name
        folder.mkdir(parents=True)
        description = {"folder": str(folder), "record": str(folder / "run.kvtrace"), **differs}
        (folder / "run.json").write_text(json.dumps(description))
        paths.append(str(folder / "run.json"))
    printed = base / "driver.txt"
    with printed.open("w") as log:
        driver = subprocess.Popen(
            [str(ENVIRONMENT.python), str(HERE / "vllm_driver.py"), *paths],
            env=engine_env(VLLM_ENABLE_V1_MULTIPROCESSING="0"),
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def said() -> str:
        return printed.read_text()[-4000:]

    try:
        wait_until(lambda: driver.poll() is not None, base, said)
    finally:
        if driver.poll() is None:
            end_group(driver)
    assert driver.returncode == 0, said()
    return {name: _load(base / name, run) for name, run in RUNS.items()}


def _load(folder: Path, run: dict[str, Any]) -> Run:
    log = (folder / "log.txt").read_text()
    result = folder / "result.json"
    assert result.exists() or "kill_after_s" in run, log[-4000:]
    (trace,) = (folder / "run.kvtrace").glob("*.kvtrace")
    return Run(folder, trace, json.loads(result.read_text()) if result.exists() else {}, log)
