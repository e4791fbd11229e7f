"""Numbers of the canary's binary interface (specification sections 1.2 to 1.13 and 4).

They are the same in every public release from 0.5.13 to 0.5.23, and never change here.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag

# Slot layout (1.2): four little-endian int64 fields.
SLOT_BYTES = 32
FIELD_TOKEN = 0
FIELD_POSITION = 1
FIELD_PREV_HASH = 2
FIELD_REAL_KV_HASH = 3
SLOT_FIELDS = 4

# Reserved values (1.3).
PADDING_ROW = 0
PADDING_SLOT = 0
CHAIN_HEAD = -1
NO_EXPECTED_TOKEN = -1
ANCHOR = 0xC0FFEE1234567890

# Finaliser of splitmix64 (2.1).
MIX_MULTIPLIER_1 = 0xBF58476D1CE4E5B9
MIX_MULTIPLIER_2 = 0x94D049BB133111EB
CHAIN_HEAD_HASH = 0xDE7FAE23A9A1B716  # mix(ANCHOR), vector V04

# Ring layout (1.10).
RING_FIELDS = 8
RING_KERNEL_KIND = 0
RING_SLOT = 1
RING_POSITION = 2
RING_STORED_TOKEN = 3
RING_EXPECTED_TOKEN = 4
RING_STORED_CHAIN_HASH = 5
RING_EXPECTED_AUX = 6
RING_FAIL_BITS = 7

# Fixed limits (4).
PLAN_ROWS_LIMIT = 4096
SCATTER_OFFSETS_LIMIT = 512
REAL_KV_SOURCES_LIMIT = 4
PARTIAL_READ_BYTES = 16
REAL_KV_ALIGNMENT_BYTES = 16
VERIFY_CAPACITY_FACTOR = 3


class PoolKind(IntEnum):
    """Which positions a pool keeps: all of them, or a sliding window (1.4)."""

    FULL = 0
    SWA = 1


class LaunchTag(IntEnum):
    """``kernel_kind`` of a violation row (1.5)."""

    HEAD_K_FULL = 0
    HEAD_V_FULL = 1
    TAIL_K_FULL = 2
    TAIL_V_FULL = 3
    SWEEP_K_FULL = 4
    SWEEP_V_FULL = 5
    HEAD_K_SWA = 6
    HEAD_V_SWA = 7
    TAIL_K_SWA = 8
    TAIL_V_SWA = 9
    SWEEP_K_SWA = 10
    SWEEP_V_SWA = 11

    @property
    def pool_kind(self) -> PoolKind:
        return PoolKind.SWA if self >= LaunchTag.HEAD_K_SWA else PoolKind.FULL

    @property
    def is_head(self) -> bool:
        return self % 6 < 2

    @property
    def is_tail(self) -> bool:
        return 2 <= self % 6 < 4

    @property
    def is_sweep(self) -> bool:
        return self % 6 >= 4

    @property
    def is_v_half(self) -> bool:
        return self % 2 == 1


NUM_LAUNCH_TAGS = len(LaunchTag)


class RealKvHashMode(IntEnum):
    """How much of a slot's KV bytes the fingerprint covers (2.3)."""

    NONE = 0
    PARTIAL = 1
    ALL = 2


class FailReason(IntFlag):
    """Fail reason bits of a violation row (1.11)."""

    VERIFY_CHAIN_HASH_MISMATCH = 1
    VERIFY_POSITION_MISMATCH = 2
    VERIFY_REAL_KV_HASH_MISMATCH = 4
    WRITE_TOKEN_MISMATCH = 8
    WRITE_POSITION_MISMATCH = 16
    VERIFY_TOKEN_MISMATCH = 32


_REASON_LABELS = {
    int(reason): reason.name.lower().removesuffix("_mismatch")
    for reason in FailReason
    if reason.name is not None
}


def fail_reason_labels(bits: int) -> tuple[str, ...]:
    """Labels of the set bits in ascending bit order (1.11)."""
    return tuple(label for bit, label in sorted(_REASON_LABELS.items()) if bits & bit)


class ForwardMode(IntEnum):
    """Forward modes with upstream's numbers (1.8)."""

    EXTEND = 1
    DECODE = 2
    MIXED = 3
    IDLE = 4
    TARGET_VERIFY = 5
    DRAFT_EXTEND_V2 = 6
    PREBUILT = 7
    SPLIT_PREFILL = 8
    DLLM_EXTEND = 9

    @property
    def is_decode_or_idle(self) -> bool:
        return self in (ForwardMode.DECODE, ForwardMode.IDLE)

    @property
    def is_extend(self) -> bool:
        """Upstream's predicate: DRAFT_EXTEND_V2 is not an extend."""
        return self in (
            ForwardMode.EXTEND,
            ForwardMode.MIXED,
            ForwardMode.TARGET_VERIFY,
            ForwardMode.SPLIT_PREFILL,
            ForwardMode.DLLM_EXTEND,
        )

    @property
    def gives_extend_lens(self) -> bool:
        """Whether a batch of this mode carries extend_prefix_lens and extend_seq_lens."""
        return self in (
            ForwardMode.EXTEND,
            ForwardMode.MIXED,
            ForwardMode.SPLIT_PREFILL,
            ForwardMode.DLLM_EXTEND,
            ForwardMode.DRAFT_EXTEND_V2,
        )
