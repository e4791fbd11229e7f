"""Hashes of specification 2.1 and 2.2 as jitted helpers, for the verify and write kernels.

All arithmetic is on ``tl.uint64``: it wraps and shifts logically. A canary row is addressed as
int64 words: ``[num_slots, row_words]`` with the four fields in words 0 to 3.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kvcanary_cli.abi.constants import (
    CHAIN_HEAD_HASH,
    FIELD_POSITION,
    FIELD_PREV_HASH,
    FIELD_REAL_KV_HASH,
    FIELD_TOKEN,
    MIX_MULTIPLIER_1,
    MIX_MULTIPLIER_2,
)

# All three are above 2^63, so that Triton types them uint64, as their operands are.
_MULTIPLIER_1 = tl.constexpr(MIX_MULTIPLIER_1)
_MULTIPLIER_2 = tl.constexpr(MIX_MULTIPLIER_2)
HEAD_HASH = tl.constexpr(CHAIN_HEAD_HASH)

TOKEN_WORD = tl.constexpr(FIELD_TOKEN)
POSITION_WORD = tl.constexpr(FIELD_POSITION)
PREV_HASH_WORD = tl.constexpr(FIELD_PREV_HASH)
REAL_KV_HASH_WORD = tl.constexpr(FIELD_REAL_KV_HASH)


@triton.jit
def mix(x):
    """Finalise ``x``, a uint64 tensor (2.1)."""
    x = (x ^ (x >> 30)) * _MULTIPLIER_1
    x = (x ^ (x >> 27)) * _MULTIPLIER_2
    return x ^ (x >> 31)


@triton.jit
def chain_step(h, token, position):
    """Advance the uint64 chain value ``h`` over an int64 token and position (2.2)."""
    h = mix(h) ^ token.to(tl.uint64, bitcast=True)
    return mix(mix(h) ^ position.to(tl.uint64, bitcast=True))


@triton.jit
def load_field(canary_ptr, row_words, slots, mask, WORD: tl.constexpr):
    """Load one int64 field of each slot's row, 0 where masked off."""
    return tl.load(canary_ptr + slots * row_words + WORD, mask=mask, other=0)


@triton.jit
def load_slot_hash(canary_ptr, row_words, slots, mask):
    """Chain value after each slot as uint64; the head's value where ``mask`` is off (2.2)."""
    token = load_field(canary_ptr, row_words, slots, mask, TOKEN_WORD)
    position = load_field(canary_ptr, row_words, slots, mask, POSITION_WORD)
    prev_hash = load_field(canary_ptr, row_words, slots, mask, PREV_HASH_WORD)
    stepped = chain_step(prev_hash.to(tl.uint64, bitcast=True), token, position)
    return tl.where(mask, stepped, HEAD_HASH)
