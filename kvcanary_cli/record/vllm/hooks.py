"""Which calls of vLLM the recorder watches, and what is not recorded without each.

``before`` and ``after`` are methods of ``Follower``, looked up by name at each call, because there
is none before the engine core is built.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvcanary_cli.record.patching import Hook
from kvcanary_cli.record.vllm.pools import RUNNER_MODULES, RUNNER_V1, RUNNER_V2

if TYPE_CHECKING:
    from kvcanary_cli.record.vllm.recorder import VllmRecorder

_OWNERS = ("alloc", "prefix")
_SCHEDULER = "core.sched.scheduler"
_MANAGER = "core.kv_cache_manager"
_POOL = "core.block_pool"
_QUEUE = "core.kv_cache_utils"
_WORKERS = "executor.multiproc_executor"
_FORWARD = ("forward", "map", "history", "kv_hash")
#: module below ``vllm.v1``, name, method for before, method for after, families.
_TABLE: tuple[tuple[str, str, str, str, tuple[str, ...]], ...] = (
    (_SCHEDULER, "Scheduler.update_from_output", "enter_update", "leave_update", ("spec",)),
    (_SCHEDULER, "Scheduler.finish_requests", "", "leave_finish", ()),
    (_SCHEDULER, "Scheduler._preempt_request", "enter_preempt", "leave_preempt", ("request",)),
    (_SCHEDULER, "Scheduler._free_request", "", "leave_free_request", ("request",)),
    (
        _SCHEDULER,
        "Scheduler._update_from_kv_xfer_finished",
        "enter_transferred",
        "",
        ("transfer",),
    ),
    (
        _SCHEDULER,
        "Scheduler._connector_finished",
        "",
        "leave_connector_finished",
        ("transfer",),
    ),
    (_SCHEDULER, "Scheduler._handle_failed_recving", "enter_failed", "", ("transfer",)),
    (
        _MANAGER,
        "KVCacheManager.allocate_slots",
        "enter_allocate",
        "leave_allocate",
        ("alloc", "prefix", "transfer"),
    ),
    (_MANAGER, "KVCacheManager.free", "enter_free", "leave_free", _OWNERS),
    (_MANAGER, "KVCacheManager.pop_blocks_for_free", "", "leave_pop", _OWNERS),
    (_MANAGER, "KVCacheManager.remove_skipped_blocks", "enter_skipped", "leave_actor", ()),
    (_POOL, "BlockPool.get_new_blocks", "", "on_new_blocks", _OWNERS),
    (_POOL, "BlockPool.free_blocks", "", "on_freed", _OWNERS),
    (_POOL, "BlockPool.cache_full_blocks", "", "on_cached", ("prefix",)),
    (_POOL, "BlockPool._maybe_evict_cached_block", "", "on_evicted", _OWNERS),
    (_POOL, "BlockPool.reset_prefix_cache", "", "on_reset", _OWNERS),
    (_QUEUE, "FreeKVCacheBlockQueue.append", "", "on_queued", ()),
    (_QUEUE, "FreeKVCacheBlockQueue.append_n", "", "on_queued", _OWNERS),
    (_QUEUE, "FreeKVCacheBlockQueue.prepend_n", "", "on_queued", _OWNERS),
)


def hooks_of(recorder: VllmRecorder) -> list[Hook]:
    """The hooks, bound to ``recorder``."""

    def call(name: str) -> Any:
        if not name:
            return None

        def run(*args: Any, **kwargs: Any) -> Any:
            follower = recorder.follower
            return None if follower is None else getattr(follower, name)(*args, **kwargs)

        return run

    def before_execute(runner: Any, scheduler_output: Any, *_args: Any, **_kwargs: Any) -> Any:
        if recorder.follower is None:
            recorder.late(runner, scheduler_output)
        follower = recorder.follower
        return None if follower is None else follower.enter_execute(runner, scheduler_output)

    hooks = [
        Hook(
            "vllm.v1.engine.core",
            "EngineCore.__init__",
            recorder.core_begins,
            recorder.core_built,
        ),
        Hook("vllm.v1.engine.core", "EngineCore.shutdown", recorder.core_ends, None),
        Hook(f"vllm.v1.{_SCHEDULER}", "Scheduler.__init__", None, recorder.scheduler_built),
        Hook(
            f"vllm.v1.{_SCHEDULER}",
            "Scheduler.schedule",
            recorder.scheduling,
            call("leave_schedule"),
            (*_FORWARD, "transfer"),
        ),
        Hook(
            RUNNER_V1,
            "GPUModelRunner._model_forward",
            call("before_forward"),
            call("after_forward"),
            _FORWARD,
        ),
        Hook(RUNNER_V2, "GPUModelRunner.prepare_attn", None, call("on_prepared"), _FORWARD),
    ]
    hooks += [
        Hook(f"vllm.v1.{module}", name, before, after)
        for module, name, before, after in (
            (_WORKERS, "WorkerProc.worker_busy_loop", recorder.worker_begins, None),
            (_WORKERS, "WorkerProc.shutdown", recorder.worker_ends, None),
            *(
                (
                    f"worker.{kind}",
                    f"{name}.compile_or_warm_up_model",
                    recorder.warm_up_begins,
                    recorder.warm_up_ends,
                )
                for kind, name in (("gpu_worker", "Worker"), ("cpu_worker", "CPUWorker"))
            ),
        )
    ]
    for module in RUNNER_MODULES:
        hooks += [
            Hook(module, "GPUModelRunner.initialize_kv_cache", None, recorder.runner_ready),
            Hook(
                module,
                "GPUModelRunner.execute_model",
                before_execute,
                call("leave_execute"),
                _FORWARD,
            ),
        ]
    hooks += [
        Hook(f"vllm.v1.{module}", name, call(before), call(after), families)
        for module, name, before, after, families in _TABLE
    ]
    return hooks
