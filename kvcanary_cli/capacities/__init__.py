"""Launch capacities: what the canary's per-forward buffers hold, and what overflows them.

No torch in here: ``check-capacities`` and ``suggest-flags`` run on this package alone.
"""

from __future__ import annotations

from kvcanary_cli.capacities.checks import (
    CapacityViolation,
    Suggestion,
    batch_size_flag,
    check_batch_size,
    check_padded_batch_size,
    check_plan_rows,
    check_token_count,
    check_verify_entries,
    verify_overflow_text,
)
from kvcanary_cli.capacities.launch import CanaryLaunchCapacities
from kvcanary_cli.capacities.memory import (
    canary_buffer_bytes,
    canary_bytes_per_slot,
    expected_token_pool_bytes,
    ring_bytes,
)

__all__ = [
    "CanaryLaunchCapacities",
    "CapacityViolation",
    "Suggestion",
    "batch_size_flag",
    "canary_buffer_bytes",
    "canary_bytes_per_slot",
    "check_batch_size",
    "check_padded_batch_size",
    "check_plan_rows",
    "check_token_count",
    "check_verify_entries",
    "expected_token_pool_bytes",
    "ring_bytes",
    "verify_overflow_text",
]
