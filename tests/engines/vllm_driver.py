"""Runs vLLM's engine core in this process on a made-up load, recorded or not.

    python tests/engines/vllm_driver.py RUN.json [RUN.json ...]

runs in the environment of ``setup_vllm.py``; a run's description and results are plain JSON
(``DESCRIPTION`` below). vLLM is imported once and each run gets a process forked from there, since
the import takes longer than a run.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.engines.disk import fall_behind
from tests.engines.driving import HOOK_S, Count, Killing, prompts_of, start, time_hooks

#: Fields of a run and their defaults.
DESCRIPTION: dict[str, Any] = {
    "folder": "",
    "record": None,
    "record_options": {},
    "disk": None,
    "engine_args": {},
    "layers": "",
    "draft": "",
    "requests": 40,
    "prefix_families": 4,
    "paired": False,
    "waves": 1,
    "connector": None,
    "connector_module": None,
    "prompt_tokens": [8, 160],
    "new_tokens": [8, 40],
    "gap": 3,
    "abort_every": 0,
    "kill_after_s": None,
    "fault": None,
    "fault_step": 40,
    "fault_group": 0,
    "seed": 1,
}
_STEPS_AT_MOST = 100_000
_POLL_S = 0.02


def main() -> None:
    import vllm  # noqa: F401 - so that every run finds it imported

    for path in map(Path, sys.argv[1:]):
        child = start(path, drive)
        killing = Killing(child, path)
        while not os.waitpid(child, os.WNOHANG)[0]:
            killing.look()
            time.sleep(_POLL_S)


def drive(path: Path) -> None:
    """Do the run that the file at ``path`` describes; its results go into ``result.json``."""
    run = DESCRIPTION | json.loads(path.read_text())
    recorder = None
    if run["record"]:
        from kvcanary_cli.record.vllm import hooks, install

        time_hooks(hooks)
        if run["disk"] == "slow":
            fall_behind()
        recorder = install(run["record"], **run["record_options"])
    engine = build_engine(run)
    load = Load(engine, run)
    HOOK_S[0] = 0.0
    begun = time.thread_time()
    error = None
    try:
        load.run_all()
    except Exception as raised:  # a planted fault may bring the engine down
        error = f"{type(raised).__name__}: {raised}"
    thread_s = time.thread_time() - begun
    if recorder is not None:
        recorder.close()
    result = {
        "launches": load.launches,
        "preempted": load.preempted,
        "aborted": load.aborted,
        "drafted": load.drafted,
        "thread_s": thread_s,
        "hook_s": HOOK_S[0],
        "truth": load.truth,
        "tokens": load.tokens,
        "cached_blocks": load.cached_blocks(),
        "error": error,
        "finished": load.done,
    }
    (Path(run["folder"]) / "result.json").write_text(json.dumps(result))


def build_engine(run: dict[str, Any]) -> Any:
    """A vLLM engine for a tiny model, with its engine core in this process."""
    from vllm import LLM

    from tests.engines.vllm_model import make_draft, make_vllm_model

    draft = str(make_draft(Path(run["folder"]) / "draft")) if run["draft"] else ""
    arguments = {
        "model": str(make_vllm_model(Path(run["folder"]) / "model", run["layers"])),
        "load_format": "dummy",
        "dtype": "bfloat16",
        "enforce_eager": True,
        "block_size": 32,
        "num_gpu_blocks_override": 64,
        "max_model_len": 512,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "seed": run["seed"],
        **run["engine_args"],
    }
    if draft:
        drafts = {"method": run["draft"], "model": draft, "num_speculative_tokens": 3}
        arguments["speculative_config"] = drafts
    if run["connector"]:
        from vllm.config import KVTransferConfig

        arguments["kv_transfer_config"] = KVTransferConfig(
            kv_connector=run["connector"],
            kv_connector_module_path=run["connector_module"],
            kv_role="kv_both",
            kv_connector_extra_config={"shared_storage_path": str(Path(run["folder"]) / "stored")},
        )
    return LLM(**arguments).llm_engine


class Load:
    """Hands requests to the engine, step by step, and plants a fault."""

    def __init__(self, engine: Any, run: dict[str, Any]) -> None:
        self.engine, self.run = engine, run
        self.core = engine.engine_core.engine_core
        self.scheduler = self.core.scheduler
        self.runner = self.core.model_executor.driver_worker.worker.model_runner
        self.random = random.Random(run["seed"])
        self.waiting = prompts_of(run, self.random) * run["waves"]
        self.launches = self.preempted = self.aborted = self.drafted = 0
        self.done = False
        self.tokens: dict[str, list[int]] = {}
        self.truth: dict[str, Any] | None = None
        self._sent = 0
        self._count = Count(Path(run["folder"]))
        self._forward = self.runner._model_forward
        self.runner._model_forward = self.forward
        preempt = self.scheduler._preempt_request

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.preempted += 1
            return preempt(*args, **kwargs)

        self.scheduler._preempt_request = counted
        free = self.scheduler._free_request

        def kept(request: Any, *args: Any, **kwargs: Any) -> Any:
            self.tokens[request.request_id] = list(request.all_token_ids)
            return free(request, *args, **kwargs)

        self.scheduler._free_request = kept

    def run_all(self) -> None:
        """Run until all requests are answered."""
        from vllm import SamplingParams

        for rounds in range(_STEPS_AT_MOST):
            if self.run["fault"] and self.truth is None and self.launches >= self.run["fault_step"]:
                from tests.engines.vllm_faults import plant

                self.truth = plant(self.run["fault"], self)
            # Two at a time, so that one may be served from what the other is about to write.
            while self.waiting and rounds % self.run["gap"] == 0:
                prompt, new_tokens = self.waiting.pop(0)
                self.engine.add_request(
                    f"req-{self._sent:03d}",
                    {"prompt_token_ids": prompt},
                    SamplingParams(max_tokens=new_tokens, temperature=0.0, ignore_eos=True),
                )
                self._sent += 1
                if self._sent % 2 == 0:
                    break
            every = self.run["abort_every"]
            if every and rounds % every == every - 1 and self.scheduler.running:
                self.engine.abort_request([self.scheduler.running[-1].request_id], internal=True)
                self.aborted += 1
            if not self.waiting and not self.scheduler.has_requests():
                self.done = True
                return
            self.engine.step()

    def cached_blocks(self) -> list[int]:
        """Blocks that the prefix cache can serve."""
        pool = self.scheduler.kv_cache_manager.block_pool
        return [block.block_id for block in pool.blocks if block.block_hash is not None]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """In the place of the runner's ``_model_forward``."""
        if self.truth is not None and not self.truth.get("planted", True):
            from tests.engines.vllm_faults import plant_in_batch

            plant_in_batch(self, kwargs["positions"])
        self._count.note()
        self.launches += 1
        counts = self.runner.num_scheduled_tokens.np[: self.runner.input_batch.num_reqs]
        self.drafted += int((counts > 1).sum())
        return self._forward(*args, **kwargs)


if __name__ == "__main__":
    main()
