"""Memory that the canary takes, and what there is for it (SPEC_CANARY 4, SPEC_SERVING_ARGS 0.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcanary_cli.capacities.memory import (
    canary_buffer_bytes,
    expected_token_pool_bytes,
    ring_bytes,
)
from kvcanary_cli.serving.check_result import MemoryUse

if TYPE_CHECKING:
    from kvcanary_cli.serving.values import Resolution

VERIFY_TOKEN_ASSERT = "SGLANG_KV_CANARY_ENABLE_VERIFY_TOKEN_ASSERT"
RING_CAPACITY = "SGLANG_KV_CANARY_RING_CAPACITY"
DEFAULT_RING_CAPACITY = 1024
#: Its full-attention part is compressed and gets no buffers.
_WINDOW_ONLY_POOL = "DeepSeekV4TokenToKVPool"
_MIB = 1 << 20
_GIB = 1 << 30


def variable(resolution: Resolution, name: str, default: int) -> int:
    """Value of one of the canary's environment variables."""
    given = resolution.given.get(name)
    return default if given is None or given.value is None else int(given.value)


def memory_use(resolution: Resolution) -> MemoryUse:
    """What the canary takes per rank; parts that are unknown are None."""
    available, source = _available(resolution)
    return MemoryUse(
        workspace=_workspace(resolution),
        buffers=_buffers(resolution),
        ring=ring_bytes(variable(resolution, RING_CAPACITY, DEFAULT_RING_CAPACITY))
        * runners(resolution),
        expected_tokens=_expected_tokens(resolution),
        available=available,
        available_source=source,
    )


def _workspace(resolution: Resolution) -> int | None:
    capacities = resolution.capacities()
    groups = resolution.value("buffer_groups")
    if isinstance(capacities, tuple) or groups is None:
        return None
    return capacities.workspace_bytes(int(groups))


def runners(resolution: Resolution) -> int:
    """Model runners with buffers of their own: the target, and a draft model if there is one."""
    algorithm = resolution.value("speculative_algorithm")
    return 1 if algorithm in (None, "NGRAM") else 2


def _buffers(resolution: Resolution) -> int | None:
    slots = resolution.value("pool_slot_count")
    groups = resolution.value("buffer_groups")
    if slots is None or groups is None:
        return None
    swa = resolution.value("swa_pool_slot_count")
    if resolution.value("pool_class") == _WINDOW_ONLY_POOL:
        return None if swa is None else canary_buffer_bytes(num_slots=int(swa), v_half=False)
    # Both halves are always allocated for a pool that has a V half; the variable only decides
    # about launches.
    total = canary_buffer_bytes(num_slots=int(slots), v_half=True)
    if int(groups) > 1:
        if swa is None:
            return None
        total += canary_buffer_bytes(num_slots=int(swa), v_half=True)
    return total * runners(resolution)


def _expected_tokens(resolution: Resolution) -> int | None:
    if not variable(resolution, VERIFY_TOKEN_ASSERT, 0):
        return 0
    rows = resolution.value("req_to_token_pool_size")
    columns = resolution.value("max_seq_len_per_req")
    if rows is None or columns is None:
        return None
    extra = resolution.value("extra_request_rows", 0) or 0
    return expected_token_pool_bytes(rows=int(rows) + int(extra) + 1, max_context_len=int(columns))


def _available(resolution: Resolution) -> tuple[int | None, str]:
    """Memory beside weights and KV cache: as a log states it, else what the fraction leaves."""
    stated = resolution.given.get("avail_after_pool_gib")
    if stated is not None and isinstance(stated.value, int | float):
        return int(stated.value * _GIB), stated.source
    memory = resolution.value("gpu_memory_mib")
    fraction = resolution.value("mem_fraction_static")
    if memory is None or fraction is None:
        return None, ""
    left = int(memory * (1 - fraction)) * _MIB
    return left, f"(1 - mem_fraction_static {fraction:g}) x {memory} MiB"
