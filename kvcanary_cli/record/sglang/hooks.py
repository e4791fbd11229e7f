"""Which calls of SGLang the recorder watches, and what is not recorded without each.

``before`` and ``after`` are methods of ``Follower``, looked up by name at each call, because there
is none before the scheduler is built.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

from kvcanary_cli.record.patching import Hook

if TYPE_CHECKING:
    from kvcanary_cli.record.sglang.recorder import SglangRecorder

_ALLOC = ("alloc",)
_MOVES = ("transfer",)
_GRAPH = ("graph",)
_BEAMS = ("fork",)
_CACHE = "mem_cache"
#: module below ``sglang.srt``, name, method for before, method for after, families.
_TABLE: tuple[tuple[str, str, str, str, tuple[str, ...]], ...] = (
    ("managers.scheduler", "Scheduler.process_batch_result", "", "on_step_end", ()),
    ("managers.scheduler", "Scheduler.on_idle", "", "on_step_end", ()),
    (
        f"{_CACHE}.allocation",
        "alloc_for_extend",
        "allocations.enter_alloc_extend",
        "allocations.leave_alloc_extend",
        ("alloc", "prefix", "history"),
    ),
    (
        f"{_CACHE}.allocation",
        "alloc_for_decode",
        "allocations.enter_alloc_decode",
        "allocations.leave_alloc",
        _ALLOC,
    ),
    (
        f"{_CACHE}.allocation",
        "alloc_for_spec_decode",
        "allocations.enter_alloc_spec",
        "allocations.leave_alloc",
        (),
    ),
    (
        f"{_CACHE}.allocator.token",
        "TokenToKVPoolAllocator.alloc",
        "allocations.enter",
        "allocations.on_alloc",
        _ALLOC,
    ),
    (
        f"{_CACHE}.allocator.token",
        "TokenToKVPoolAllocator.free",
        "allocations.enter",
        "allocations.on_free",
        _ALLOC,
    ),
    (
        f"{_CACHE}.allocator.token",
        "TokenToKVPoolAllocator.clear",
        "allocations.enter",
        "allocations.on_clear",
        (),
    ),
    (
        f"{_CACHE}.allocator.paged",
        "PagedTokenToKVPoolAllocator.alloc",
        "allocations.enter",
        "allocations.on_alloc",
        _ALLOC,
    ),
    (
        f"{_CACHE}.allocator.paged",
        "PagedTokenToKVPoolAllocator.alloc_extend",
        "allocations.enter",
        "allocations.on_alloc",
        _ALLOC,
    ),
    (
        f"{_CACHE}.allocator.paged",
        "PagedTokenToKVPoolAllocator.alloc_decode",
        "allocations.enter",
        "allocations.on_alloc",
        _ALLOC,
    ),
    (
        f"{_CACHE}.allocator.paged",
        "PagedTokenToKVPoolAllocator.free",
        "allocations.enter",
        "allocations.on_free",
        _ALLOC,
    ),
    (
        f"{_CACHE}.allocator.paged",
        "PagedTokenToKVPoolAllocator.free_segment",
        "allocations.enter",
        "allocations.on_free",
        _ALLOC,
    ),
    (
        f"{_CACHE}.allocator.paged",
        "PagedTokenToKVPoolAllocator.free_page_ids",
        "allocations.enter",
        "allocations.on_free_pages",
        _ALLOC,
    ),
    (
        f"{_CACHE}.allocator.paged",
        "PagedTokenToKVPoolAllocator.clear",
        "allocations.enter",
        "allocations.on_clear",
        (),
    ),
    (
        f"{_CACHE}.allocator.base",
        "BaseTokenToKVPoolAllocator.free_group_end",
        "allocations.enter",
        "allocations.leave",
        _ALLOC,
    ),
    (
        f"{_CACHE}.base_prefix_cache",
        "BasePrefixCache.free_kv_row",
        "allocations.enter_free_row",
        "allocations.leave_actor",
        _ALLOC,
    ),
    (
        f"{_CACHE}.unified_radix_cache",
        "UnifiedRadixCache.checkpoint_into_tree",
        "allocations.enter_checkpoint",
        "allocations.leave_checkpoint",
        ("alloc", "prefix"),
    ),
    (
        f"{_CACHE}.unified_radix_cache",
        "UnifiedRadixCache._drain_device_frees",
        "allocations.enter_evict",
        "allocations.leave_actor",
        ("alloc", "prefix"),
    ),
    (
        f"{_CACHE}.radix_cache",
        "RadixCache.checkpoint",
        "allocations.enter_checkpoint",
        "allocations.leave_checkpoint",
        (),
    ),
    (
        f"{_CACHE}.radix_cache",
        "RadixCache.evict",
        "allocations.enter_evict",
        "allocations.leave_actor",
        (),
    ),
    (f"{_CACHE}.memory_pool", "ReqToTokenPool.free", "on_row_free", "", ("request",)),
    ("disaggregation.decode", "DecodeReqToTokenPool.free", "on_row_free", "", ("request",)),
    ("managers.schedule_batch", "release_req", "enter_retract", "leave_retract", ("request",)),
    (f"{_CACHE}.memory_pool", "MHATokenToKVPool.move_kv_cache", "", "tiers.on_move", _MOVES),
    (f"{_CACHE}.memory_pool", "MLATokenToKVPool.move_kv_cache", "", "tiers.on_move", _MOVES),
    (
        f"{_CACHE}.l2_transfer",
        "L2TransferEngine.submit_device_to_host",
        "",
        "tiers.on_backup",
        _MOVES,
    ),
    (
        f"{_CACHE}.l2_transfer",
        "L2TransferEngine.submit_host_to_device",
        "",
        "tiers.on_load",
        _MOVES,
    ),
    (
        "managers.cache_controller",
        "HiCacheController.alloc_prefetch_host_buffers",
        "",
        "tiers.on_prefetch_alloc",
        _MOVES,
    ),
    (
        "mem_cache.hybrid_cache.hybrid_cache_controller",
        "HybridCacheController.alloc_prefetch_host_buffers",
        "",
        "tiers.on_prefetch_alloc",
        _MOVES,
    ),
    (
        "disaggregation.prefill",
        "SchedulerDisaggregationPrefillMixin._send_kv_chunk",
        "handoffs.enter_send",
        "handoffs.leave_send",
        _MOVES,
    ),
    (
        "disaggregation.decode",
        "alloc_for_decode_prealloc",
        "allocations.enter_alloc_received",
        "allocations.leave_alloc",
        _ALLOC,
    ),
    (
        "disaggregation.decode",
        "DecodePreallocQueue._send_kv_metadata",
        "handoffs.enter_metadata",
        "",
        _MOVES,
    ),
    ("disaggregation.utils", "poll_and_all_reduce", "", "handoffs.on_poll", _MOVES),
    (
        "disaggregation.utils",
        "poll_and_all_reduce_with_staging",
        "",
        "handoffs.on_staged_poll",
        _MOVES,
    ),
    ("speculative.eagle_utils", "eagle_sample", "", "speculation.on_sample", ("spec",)),
    (
        "speculative.eagle_draft_extend_cuda_graph_runner",
        "EAGLEDraftExtendCudaGraphRunner.execute",
        "before_draft_graph",
        "after_forward",
        (),
    ),
    (
        "model_executor.runner.decode_cuda_graph_runner",
        "DecodeCudaGraphRunner.load_batch",
        "",
        "padding.on_decode_load",
        _GRAPH,
    ),
    (
        "model_executor.runner.prefill_cuda_graph_runner",
        "PrefillCudaGraphRunner.load_batch",
        "",
        "padding.on_prefill_load",
        _GRAPH,
    ),
    (
        "model_executor.cpu_graph_runner",
        "CPUGraphRunner.prepare_replay",
        "",
        "padding.on_cpu_load",
        _GRAPH,
    ),
    ("lora.lora_manager", "LoRAManager.load_lora_adapter", "", "on_adapter", ("namespace",)),
    ("lora.lora_manager", "LoRAManager.load_lora_adapter_from_tensors", "", "on_adapter", ()),
    (
        "beam_search.coordinator",
        "BeamCoordinator._spawn_member_rows",
        "",
        "beams.on_spawn",
        _BEAMS,
    ),
    (
        "beam_search.coordinator",
        "BeamCoordinator._apply_survivors",
        "beams.enter_survivors",
        "",
        _BEAMS,
    ),
    ("beam_search.fork", "remap_kv_mapping", "", "beams.on_remap", _BEAMS),
    ("beam_search.fork", "free_member_rows", "beams.enter_free_members", "", _BEAMS),
)


def hooks_of(recorder: SglangRecorder) -> list[Hook]:
    """The hooks, bound to ``recorder``."""

    def call(name: str) -> Any:
        if not name:
            return None
        find = attrgetter(name)

        def run(*args: Any, **kwargs: Any) -> Any:
            follower = recorder.follower
            return None if follower is None else find(follower)(*args, **kwargs)

        return run

    def before_forward(runner: Any, forward_batch: Any, *_args: Any, **_kwargs: Any) -> Any:
        if recorder.follower is None and getattr(forward_batch, "rids", None):
            recorder.late(runner)
        follower = recorder.follower
        return None if follower is None else follower.before_forward(runner, forward_batch)

    hooks = [
        Hook(
            "sglang.srt.managers.scheduler",
            "Scheduler.__init__",
            recorder.scheduler_begins,
            recorder.scheduler_built,
        ),
        Hook(
            "sglang.srt.model_executor.model_runner",
            "ModelRunner.forward",
            before_forward,
            call("after_forward"),
            ("forward", "map", "history", "kv_hash", "lut"),
        ),
    ]
    hooks.append(
        Hook(
            "sglang.srt.kv_canary.runner.violation_reporter",
            "_format_violation",
            None,
            recorder.canary_reports,
        )
    )
    hooks += [
        Hook(f"sglang.srt.{module}", name, call(before), call(after), families)
        for module, name, before, after, families in _TABLE
    ]
    return hooks
