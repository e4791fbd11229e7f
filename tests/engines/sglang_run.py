"""One run of SGLang's scheduler in this process on a made-up load, recorded or not.

A run's description and results are plain JSON (``DESCRIPTION`` below), the final buffers of the
engine's canary an ``.npz``.
"""

from __future__ import annotations

import json
import os
import random
import time
from array import array
from pathlib import Path
from typing import Any

from tests.engines.disk import catch_up, fall_behind
from tests.engines.driving import HOOK_S, Count, prompts_of, time_hooks

#: Fields of a run and their defaults.
DESCRIPTION: dict[str, Any] = {
    "folder": "",
    "record": None,
    "record_options": {},
    "disk": None,
    "server_args": {},
    "swa": False,
    "canary": False,
    "speculation": False,
    "host_cache": False,
    "graphs": False,
    "namespaces": 0,
    "beam_width": 0,
    "handoff": False,
    "requests": 40,
    "prefix_families": 4,
    "prompt_tokens": [8, 90],
    "new_tokens": [8, 40],
    "ignore_eos": True,
    "gap": 3,
    "kill_after_s": None,
    "fault": None,
    "fault_step": 40,
    "nccl_port": None,
    "seed": 1,
}
#: Serving arguments with which SGLang serves the tiny model on a CPU.
ON_CPU: dict[str, Any] = {
    "device": "cpu",
    "load_format": "dummy",
    "attention_backend": "torch_native",
    "disable_cuda_graph": True,
    "sampling_backend": "pytorch",
    "grammar_backend": "none",
    "dtype": "bfloat16",
    "skip_server_warmup": True,
    "max_total_tokens": 512,
    "max_running_requests": 8,
    "chunked_prefill_size": 32,
}
_IDLE_ROUNDS = 4
_MOST_ROUNDS = 20_000


def execute(path: Path) -> None:
    """Do the run that the file at ``path`` describes; its results go into ``result.json``."""
    run = DESCRIPTION | json.loads(path.read_text())
    folder = Path(run["folder"])
    prepare(run)
    recorder = None
    if run["record"]:
        from kvcanary_cli.record.sglang import hooks, install

        time_hooks(hooks)
        if run["disk"] == "slow":
            fall_behind()
        recorder = install(run["record"], **run["record_options"])
    scheduler = build_scheduler(run, folder)
    load = Load(scheduler, run, recorder)
    scheduler.ingest_requests = load.ingest
    begun, process_begun = time.thread_time(), time.process_time()
    error = None
    try:
        scheduler.run_event_loop()
    except Exception as raised:  # a planted fault may bring the scheduler down
        error = f"{type(raised).__name__}: {raised}"
    thread_s = time.thread_time() - begun
    if recorder is not None:
        recorder.close()
    if run["canary"]:
        save_canary(scheduler, folder / "canary.npz")
    result = {
        "forwards": load.forwards,
        "modes": load.modes,
        "forward_s": load.forward_s,
        "thread_s": thread_s,
        "hook_s": HOOK_S[0],
        "process_s": time.process_time() - process_begun,
        "retracted": load.retracted,
        "truth": load.truth,
        "error": error,
        "finished": len(load.waiting) == 0,
    }
    # Whoever waits for the result must not find half of it.
    partial = folder / "result.json.partial"
    partial.write_text(json.dumps(result))
    partial.rename(folder / "result.json")


def prepare(run: dict[str, Any]) -> None:
    """Let this process's engine do on a CPU what the run asks for."""
    if run["canary"]:
        from tests.engines.canary_on_cpu import allow

        os.environ["SGLANG_KV_CANARY_ENABLE_VERIFY_TOKEN_ASSERT"] = "1"
        allow()
    if run["speculation"]:
        from tests.engines.speculation_on_cpu import allow

        allow()
    if run["host_cache"]:
        from tests.engines.host_cache_on_cpu import allow

        allow()
    if run["graphs"]:
        from tests.engines.graph_on_cpu import allow

        allow()
    if run["handoff"]:
        from tests.engines.handoff_on_cpu import allow

        allow()


def build_scheduler(run: dict[str, Any], folder: Path) -> Any:
    """SGLang's scheduler for a tiny model."""
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.runtime_context import SpawnRanks, publish
    from sglang.srt.server_args import PortArgs, ServerArgs

    from tests.engines.tiny_model import make_model

    model = str(make_model(folder / "model", swa=run["swa"]))
    draft = str(make_model(folder / "draft", architecture="LlamaForCausalLMEagle"))
    arguments = {
        "model_path": model,
        **ON_CPU,
        "random_seed": run["seed"],
        "nccl_port": run["nccl_port"],
        "disable_overlap_schedule": True,
        "api_key": "sk-not-to-be-recorded",
        **run["server_args"],
    }
    arguments = {k: draft if v == "{draft}" else v for k, v in arguments.items()}
    if run["canary"]:
        arguments.setdefault("kv_canary", "log")
        arguments["kv_canary_real_data"] = "all"
    server_args = ServerArgs(**arguments)
    server_args.resolve_once()
    server_args.check_server_args()
    publish(
        server_args,
        role="scheduler",
        ranks=SpawnRanks(world_rank=0, dp_rank=None, gpu_id=0),
    )
    ports = PortArgs.init_new(server_args)
    scheduler = Scheduler(server_args, ports)
    # Nobody else looks at it, and a process that ends hard leaves it behind.
    for path in Path("/dev/shm").glob(f"sglang_loads_{ports.instance_id}_*"):
        path.unlink()
    return scheduler


class Load:
    """Hands requests to the scheduler, plants a fault, and ends the loop when all is done."""

    def __init__(self, scheduler: Any, run: dict[str, Any], recorder: Any = None) -> None:
        self.scheduler, self.run, self._recorder = scheduler, run, recorder
        self.random = random.Random(run["seed"])
        self.waiting = prompts_of(run, self.random)
        self.rounds = self.idle = self.forwards = self.retracted = 0
        self.forward_s = 0.0
        self.modes: dict[str, int] = {}
        self.truth: dict[str, Any] | None = None
        self._sent = 0
        self._count = Count(Path(run["folder"]))
        runner = scheduler.tp_worker.model_runner
        self._forward = runner.forward
        runner.forward = self.forward
        batch_class = type(scheduler.running_batch)
        retract = batch_class.retract_decode

        def counted(batch: Any) -> Any:
            result = retract(batch)
            self.retracted += len(result[0])
            return result

        batch_class.retract_decode = counted

    def ingest(self) -> None:
        """In the place of SGLang's own reception of requests."""
        from sglang.srt.managers.io_struct import TokenizedGenerateReqInput
        from sglang.srt.sampling.sampling_params import SamplingParams

        if self.run["disk"] == "quick":
            catch_up(self._recorder)
        self.rounds += 1
        if self.rounds > _MOST_ROUNDS:
            raise RuntimeError("the load is not served")
        if self.run["fault"] and self.truth is None and self.forwards >= self.run["fault_step"]:
            from tests.engines.faults import plant

            self.truth = plant(self.run["fault"], self)
        if self.waiting and self.rounds % self.run["gap"] == 0:
            prompt, new_tokens = self.waiting.pop(0)
            params = SamplingParams(
                max_new_tokens=new_tokens, temperature=0.0, ignore_eos=self.run["ignore_eos"]
            )
            if self.run["beam_width"] and self._sent % 2:
                params.beam_width = self.run["beam_width"]
            params.normalize(None)
            extra: dict[str, Any] = {}
            if self.run["namespaces"]:
                extra["extra_key"] = f"tenant-{self._sent % self.run['namespaces']}"
            if self.run["handoff"]:
                # The address by which SGLang knows transfers that only pretend.
                extra |= {"bootstrap_host": "2.2.2.2", "bootstrap_room": self._sent}
            self.scheduler.process_input_requests(
                [
                    TokenizedGenerateReqInput(
                        rid=f"req-{self._sent:03d}",
                        input_text=None,
                        input_ids=array("q", prompt),
                        input_embeds=None,
                        mm_inputs=None,
                        token_type_ids=None,
                        sampling_params=params,
                        return_logprob=False,
                        logprob_start_len=-1,
                        top_logprobs_num=0,
                        token_ids_logprob=None,
                        stream=False,
                        **extra,
                    )
                ]
            )
            self._sent += 1
        busy = self.scheduler.running_batch.reqs or self.scheduler.waiting_queue
        busy = busy or self.scheduler.last_batch or self.scheduler.chunked_req
        busy = busy or any(self._handoffs())
        self.idle = 0 if busy or self.waiting else self.idle + 1
        if self.idle > _IDLE_ROUNDS:
            self.scheduler.gracefully_exit = True

    def _handoffs(self) -> list[Any]:
        """Queues of a prefill or decode server."""
        queues = [getattr(self.scheduler, "disagg_prefill_inflight_queue", None)]
        for name in ("prefill_bootstrap", "decode_prealloc", "decode_transfer"):
            owner = getattr(self.scheduler, f"disagg_{name}_queue", None)
            queues.append(getattr(owner, "queue", None))
        return queues

    def forward(self, forward_batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Around ``ModelRunner.forward`` of this scheduler's runner."""
        self._count.note()
        mode = forward_batch.forward_mode.name
        self.modes[mode] = self.modes.get(mode, 0) + 1
        if self.run["fault"] and self.truth is not None and not self.truth.get("planted", True):
            from tests.engines.faults import plant_in_batch

            plant_in_batch(self.run["fault"], self, forward_batch)
        begun = time.thread_time()
        result = self._forward(forward_batch, *args, **kwargs)
        self.forward_s += time.thread_time() - begun
        self.forwards += 1
        return result


def save_canary(scheduler: Any, path: Path) -> None:
    """What the engine's canary holds, by pool kind."""
    import numpy as np

    manager = scheduler.tp_worker.model_runner.canary_manager
    groups = getattr(manager, "buffer_groups", None) or manager._buffer_groups
    arrays: dict[str, Any] = {}
    for group in groups:
        kind = group.kind.name.lower()
        for name in ("k_head", "k_tail"):
            arrays[f"{kind}_{name}"] = getattr(group, name).cpu().numpy()
    np.savez_compressed(path, **arrays)
