"""The runs of SGLang that the tests look at, and who does them."""

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
from tests.engines.setup_sglang import ENVIRONMENT
from tests.engines.waiting import wait_until

HERE = Path(__file__).parent
_LONG = {"requests": 40, "gap": 7, "new_tokens": [10, 60]}
_HASHED = {"tokens": "raw", "kv_hash": "all"}
_CANARY = {**_LONG, "canary": True, "record_options": _HASHED}
_FAULT = {"requests": 24, "gap": 3, "record_options": _HASHED}
_SWA = {"swa": True, "server_args": {"swa_full_tokens_ratio": 1.0, "max_total_tokens": 1024}}
_PAGE16 = {"server_args": {"page_size": 16, "max_total_tokens": 1024}}
_SALTED = {"tokens": "salted", "kv_hash": "partial"}
FAULTS = ("free_live_slot", "hand_out_twice", "swap_cells", "kv_bytes", "shift_position")

#: Name of a run to what differs from ``sglang_run.DESCRIPTION``.
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
    "swa": {**_LONG, **_SWA},
    "ngram": {
        **_LONG,
        "speculation": True,
        "gap": 9,
        "new_tokens": [20, 90],
        "server_args": {
            "speculative_algorithm": "NGRAM",
            "speculative_num_draft_tokens": 4,
            "max_total_tokens": 1024,
        },
    },
    "eagle": {
        **_LONG,
        "speculation": True,
        "server_args": {
            "speculative_algorithm": "EAGLE",
            "speculative_draft_model_path": "{draft}",
            "speculative_num_steps": 3,
            "speculative_eagle_topk": 1,
            "speculative_num_draft_tokens": 4,
            "max_total_tokens": 1024,
        },
    },
    "graphs": {**_LONG, "graphs": True, "record_options": _HASHED},
    "namespaces": {**_LONG, "namespaces": 3},
    "beams": {
        **_LONG,
        "beam_width": 3,
        "server_args": {"max_running_requests": 16, "max_total_tokens": 2048},
    },
    "host_cache": {
        **_LONG,
        "host_cache": True,
        "server_args": {
            "enable_hierarchical_cache": True,
            "hicache_io_backend": "direct",
            "hicache_mem_layout": "layer_first",
            "hicache_write_policy": "write_through",
            "hicache_ratio": 4.0,
            "max_total_tokens": 384,
        },
    },
    "decode_server": {
        **_LONG,
        "handoff": True,
        "server_args": {
            "disaggregation_mode": "decode",
            "disaggregation_transfer_backend": "fake",
            "num_reserved_decode_tokens": 64,
            "max_total_tokens": 2048,
        },
    },
    "prefill_server": {
        **_LONG,
        "handoff": True,
        "gap": 1,
        "requests": 60,
        "server_args": {
            "disaggregation_mode": "prefill",
            "disaggregation_transfer_backend": "nixl",
        },
    },
    "canary": _CANARY,
    "canary_overlap_page16": {
        **_CANARY,
        "server_args": {
            "page_size": 16,
            "max_total_tokens": 1024,
            "disable_overlap_schedule": False,
        },
    },
    "canary_swa": {**_CANARY, **_SWA},
    **{
        f"canary_{mode}s": {
            **_FAULT,
            "fault": "swap_cells",
            "canary": True,
            "server_args": {"kv_canary": mode},
            "record_options": {**_HASHED, "ring_bytes": 1 << 30, "triggers": ["canary"]},
        }
        for mode in ("log", "raise")
    },
    # Recording options beside the usual ones, on loads that are as hard to follow as any.
    "option_absent": {**_FAULT, "record_options": {"tokens": "absent", "kv_hash": "partial"}},
    "option_start": {
        **_FAULT,
        **_PAGE16,
        "record_options": {"start_after": 20, "kv_hash": "all", "kv_hash_every": 3},
    },
    "option_ring": {
        **_FAULT,
        **_SWA,
        "requests": 40,
        "disk": "quick",
        "record_options": {**_SALTED, "ring_bytes": 200_000},
    },
    "option_gaps": {
        **_FAULT,
        "disk": "slow",
        "record_options": {**_SALTED, "queue_bytes": 60_000},
    },
    "option_full": {**_FAULT, "disk": "quick", "record_options": {"max_bytes": 60_000}},
    "option_fault": {
        **_FAULT,
        "fault": "swap_cells",
        "record_options": {**_SALTED, "start_after": 20},
    },
    **{f"fault_{fault}": {**_FAULT, "fault": fault} for fault in FAULTS},
    # More requests than are ever served before the end.
    **{
        f"killed_{k}": {
            **({} if k % 2 else _SWA),
            "requests": 2000,
            "kill_after_s": after_s,
            "record_options": {**_SALTED, "kv_hash": "all"},
        }
        for k, after_s in enumerate(KILLS_S)
    },
}


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run.

    Attributes:
        name: Its key in ``RUNS``.
        folder: Its files.
        result: What the driver says; nothing of a run that was killed.
        log: What the process printed.
    """

    name: str
    folder: Path
    result: dict[str, Any]
    log: str

    @property
    def trace(self) -> Path:
        """Its recording, of the one rank that there is."""
        (trace,) = (self.folder / "run.kvtrace").glob("*.kvtrace")
        return trace


def engine_env(**extra: str) -> dict[str, str]:
    """The environment that SGLang needs on this kind of machine."""
    programs = str(ENVIRONMENT.python.parent)
    return {
        **os.environ,
        "PATH": os.pathsep.join([programs, os.environ.get("PATH", os.defpath)]),
        "SGLANG_USE_CPU_ENGINE": "1",
        # The project of these tests, wherever the environment was made for.
        "PYTHONPATH": os.pathsep.join([str(HERE / "stubs"), str(ROOT)]),
        # Seconds until a server that cannot answer yet counts as one that never will.
        "SGLANG_HEALTH_CHECK_TIMEOUT": "900",
        # Compiled once: the setup leaves it to the first import, and there are many processes.
        "PYTHONDONTWRITEBYTECODE": "",
        # One thread: several spin against each other on a shared machine.
        "OMP_NUM_THREADS": "1",
        **extra,
    }


class Runner:
    """Has one process do runs, two at a time, while the tests look at those that are done."""

    def __init__(self, base: Path) -> None:
        """Start it.

        Args:
            base: Folder of the runs' folders.
        """
        self._base = base
        self._asked: set[str] = set()
        self._done: dict[str, Run] = {}
        self._log = (base / "driver.txt").open("w")
        self._driver = subprocess.Popen(
            [str(ENVIRONMENT.python), str(HERE / "sglang_driver.py")],
            # The engine's canary and its speculation are Triton kernels.
            env=engine_env(TRITON_INTERPRET="1"),
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def ask(self, name: str) -> None:
        """Have ``RUNS[name]`` done, once."""
        if name in self._asked:
            return
        self._asked.add(name)
        folder = self._base / name
        folder.mkdir()
        description = {
            "folder": str(folder),
            "record": str(folder / "run.kvtrace"),
            "record_options": {"tokens": "raw"},
            "nccl_port": free_port(),
            **RUNS[name],
        }
        (folder / "run.json").write_text(json.dumps(description))
        assert self._driver.stdin is not None
        self._driver.stdin.write(f"{folder / 'run.json'}\n")
        self._driver.stdin.flush()

    def get(self, name: str) -> Run:
        """The finished run; waits for it."""
        self.ask(name)
        if name not in self._done:
            folder = self._base / name
            log = folder / "log.txt"

            def said() -> str:
                return (log if log.exists() else self._base / "driver.txt").read_text()[-4000:]

            killed = "kill_after_s" in RUNS[name]

            def is_done() -> bool:
                if killed and (folder / "failed").exists():
                    return True
                assert not (folder / "failed").exists(), said()
                assert self._driver.poll() is None, said()
                return (folder / "result.json").exists()

            wait_until(is_done, self._base, said)
            done = folder / "result.json"
            result = json.loads(done.read_text()) if done.exists() else {}
            self._done[name] = Run(name, folder, result, log.read_text())
        return self._done[name]

    def close(self) -> None:
        """End the process, with the runs that nobody has waited for."""
        if self._driver.poll() is None:
            end_group(self._driver)
        self._log.close()
