"""The canary's hashes on Python integers (specification 2.1 to 2.3).

Values are unsigned 64-bit integers; ``to_signed`` and ``to_unsigned`` cross over to the int64 that
tensors hold.
"""

from __future__ import annotations

from kvcanary_cli.abi.constants import CHAIN_HEAD_HASH, MIX_MULTIPLIER_1, MIX_MULTIPLIER_2

_MASK = (1 << 64) - 1
_WORD_BYTES = 8


def to_unsigned(value: int) -> int:
    """The two's-complement bit pattern of ``value``, wrapped to 64 bits."""
    return value & _MASK


def to_signed(value: int) -> int:
    """The int64 with the low 64 bits of ``value``."""
    value &= _MASK
    return value - (1 << 64) if value >> 63 else value


def mix64(x: int) -> int:
    """Scramble 64 bits: splitmix64's finaliser without the golden-gamma increment (2.1)."""
    x &= _MASK
    x = ((x ^ (x >> 30)) * MIX_MULTIPLIER_1) & _MASK
    x = ((x ^ (x >> 27)) * MIX_MULTIPLIER_2) & _MASK
    return x ^ (x >> 31)


def chain_step(h: int, token: int, position: int) -> int:
    """Extend the chain value ``h`` by one token at its position (2.2)."""
    return mix64(mix64(mix64(h) ^ to_unsigned(token)) ^ to_unsigned(position))


def slot_hash(row: tuple[int, int, int, int] | None) -> int:
    """The chain value after a slot: its row (token, position, prev_hash, real_kv_hash) advanced by
    its own token, or the HEAD value for None, the chain head (2.2)."""
    if row is None:
        return CHAIN_HEAD_HASH
    token, position, prev_hash, _ = row
    return chain_step(prev_hash, token, position)


def fold(data: bytes) -> int:
    """Fold bytes, zero-padded to a multiple of 8, as little-endian words (2.3)."""
    acc = 0
    for start in range(0, len(data), _WORD_BYTES):
        word = data[start : start + _WORD_BYTES].ljust(_WORD_BYTES, b"\0")
        acc = mix64(acc ^ int.from_bytes(word, "little"))
    return acc
