"""Bytes that the canary takes besides the per-forward workspace (specification 4)."""

from __future__ import annotations

from kvcanary_cli.abi.constants import RING_FIELDS, SLOT_BYTES


def canary_bytes_per_slot(*, v_half: bool) -> int:
    """Bytes beside one KV slot in one group: a head and a tail row, twice with a V half."""
    return SLOT_BYTES * (4 if v_half else 2)


def canary_buffer_bytes(*, num_slots: int, v_half: bool) -> int:
    """Bytes of one group's canary buffers over ``num_slots`` rows."""
    return num_slots * canary_bytes_per_slot(v_half=v_half)


def ring_bytes(ring_capacity: int) -> int:
    """Bytes of the violation ring and its write index."""
    return 8 * RING_FIELDS * ring_capacity + 4


def expected_token_pool_bytes(*, rows: int, max_context_len: int) -> int:
    """Bytes of the expected-token pool, which exists only with the verify-token assert."""
    return 4 * rows * max_context_len
