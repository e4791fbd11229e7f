"""Write step: each new token's canary row, along its request's chain (specification 3.3).

A chain is serial: every token's hash needs the one before. Requests run in parallel, one lane each,
one lane a program on a GPU (more lanes would wait for the longest chain among them). A request's
tokens are loaded a block at a time, one a thread, and while a block is hashed the next one is on
its way, so that the chain never waits for memory. If ``write_marks`` found that requests
touch each other's slots, the first program runs all of them in order and the others leave; the
decision is made on the device, so the host neither waits nor branches. Launched for every HEAD and
TAIL endpoint. The buffer is written as int64 words, ``[num_slots, row_words]``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from kvcanary_cli.abi.checked import checked_by
from kvcanary_cli.abi.checks import check_write_args
from kvcanary_cli.abi.constants import PADDING_SLOT, FailReason, RealKvHashMode
from kvcanary_cli.backends.triton.launch import block_lanes, canary_words, fault_cell
from kvcanary_cli.backends.triton.mix import (
    POSITION_WORD,
    PREV_HASH_WORD,
    TOKEN_WORD,
    chain_step,
    load_field,
    load_slot_hash,
)
from kvcanary_cli.backends.triton.ring import append_violations
from kvcanary_cli.backends.triton.write_marks import (
    CONFLICT_CELL,
    PADDING_ORDER_CELL,
    launch_write_marks_kernel,
    write_order,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from kvcanary_cli.abi.plans import WritePlan
    from kvcanary_cli.abi.sources import RealKvSource

_BLOCK_REQUESTS = 1
# The interpreter pays per operation, so all chains of a small batch advance together.
_INTERPRETER_BLOCK_REQUESTS = 8

# One token a thread of the warp: each array's block is two full cache lines, and hashing 32 tokens
# takes several times as long as fetching them from the device's memory.
_BLOCK_TOKENS = 32
# So few that the requests of small tests have several blocks.
_INTERPRETER_BLOCK_TOKENS = 4

_PADDING_SLOT = tl.constexpr(PADDING_SLOT)
_TOKEN = tl.constexpr(int(FailReason.WRITE_TOKEN_MISMATCH))
_POSITION = tl.constexpr(int(FailReason.WRITE_POSITION_MISMATCH))


@triton.jit
def _load_block(ptr, first, end, OTHER: tl.constexpr, TOKENS: tl.constexpr):
    """[n, TOKENS] tokens from ``first`` [n] on, ``OTHER`` from ``end`` [n] on."""
    at = first[:, None] + tl.arange(0, TOKENS).to(tl.int64)[None, :]
    return tl.load(ptr + at, mask=at < end[:, None], other=OTHER)


@triton.jit
def _take(block, k):
    """Column ``k``, a scalar, of ``block`` [n, TOKENS], as [n]."""
    column = (tl.zeros([block.shape[0], 1], tl.int64) + k).to(tl.int32)
    return tl.reshape(tl.gather(block, column, axis=1), [block.shape[0]])


@triton.jit(
    do_not_specialize=[
        "req_capacity",
        "num_tokens",
        "num_slots",
        "row_words",
        "ring_capacity",
        "kernel_kind",
    ]
)
def _write_kernel(
    canary_ptr,
    write_offsets_ptr,
    write_seeds_ptr,
    write_num_valid_reqs_ptr,
    input_ids_ptr,
    positions_ptr,
    out_cache_loc_ptr,
    expected_tokens_ptr,
    expected_positions_ptr,
    chain_position_assert_ptr,
    scratch_ptr,
    ring_ptr,
    write_index_ptr,
    req_capacity,
    num_tokens,
    num_slots,
    row_words,
    ring_capacity,
    kernel_kind,
    CHECK_INPUTS: tl.constexpr,
    BLOCK: tl.constexpr,
    TOKENS: tl.constexpr,
):
    program = tl.program_id(0).to(tl.int64)
    num_reqs = tl.load(write_num_valid_reqs_ptr).to(tl.int64)
    num_reqs = tl.minimum(tl.maximum(num_reqs, 0), req_capacity)
    conflict = tl.load(scratch_ptr + CONFLICT_CELL)
    padding_order = tl.load(scratch_ptr + PADDING_ORDER_CELL)
    lane = tl.arange(0, BLOCK).to(tl.int64)
    in_order = tl.zeros_like(lane) + conflict != 0
    assert_positions = tl.zeros_like(lane) + tl.load(chain_position_assert_ptr) != 0

    # In order: one request a round, in the first lane of the first program.
    rounds = tl.where(conflict != 0, tl.where(program == 0, num_reqs, 0), 1)
    for turn in range(0, rounds):
        row = tl.where(in_order, tl.where(lane == 0, turn, num_reqs), program * BLOCK + lane)
        in_use = row < num_reqs
        begin = tl.load(write_offsets_ptr + row, mask=in_use, other=0)
        end = tl.load(write_offsets_ptr + row + 1, mask=in_use, other=0)
        begin = tl.minimum(tl.maximum(begin, 0), num_tokens)
        end = tl.maximum(tl.minimum(end, num_tokens), begin)
        num_entries = end - begin

        seed = tl.load(write_seeds_ptr + row, mask=in_use, other=-1)
        seeded = (num_entries > 0) & (seed >= 0) & (seed < num_slots)
        chain = load_slot_hash(canary_ptr, row_words, seed, seeded)
        prev_position = load_field(canary_ptr, row_words, seed, seeded, POSITION_WORD)
        checks_position = seeded & assert_positions

        longest = tl.max(num_entries, axis=0)
        later_slots = _load_block(out_cache_loc_ptr, begin, end, -1, TOKENS)
        later_tokens = _load_block(input_ids_ptr, begin, end, 0, TOKENS)
        later_positions = _load_block(positions_ptr, begin, end, 0, TOKENS)
        for first in range(0, longest, TOKENS):
            slots, tokens, positions = later_slots, later_tokens, later_positions
            block = begin + first
            later_slots = _load_block(out_cache_loc_ptr, block + TOKENS, end, -1, TOKENS)
            later_tokens = _load_block(input_ids_ptr, block + TOKENS, end, 0, TOKENS)
            later_positions = _load_block(positions_ptr, block + TOKENS, end, 0, TOKENS)
            if CHECK_INPUTS:
                want_tokens = _load_block(expected_tokens_ptr, block, end, 0, TOKENS)
                want_positions = _load_block(expected_positions_ptr, block, end, 0, TOKENS)
            next_slot = _take(slots, 0)
            next_token = _take(tokens, 0)
            next_position = _take(positions, 0)
            in_block = tl.minimum(TOKENS, longest - first)
            for k in range(0, in_block):
                i = first + k
                mask = i < num_entries
                slot, token, position = next_slot, next_token, next_position
                # Taking a token from another thread needs time, too, so it begins a token early.
                next_k = tl.minimum(k + 1, in_block - 1)
                next_slot = _take(slots, next_k)
                next_token = _take(tokens, next_k)
                next_position = _take(positions, next_k)

                written = mask & (slot >= 0) & (slot < num_slots)
                stored_hash = chain.to(tl.int64, bitcast=True)
                if CHECK_INPUTS:
                    want_token = _take(want_tokens, k)
                    want_position = _take(want_positions, k)
                    bits = tl.where(token != want_token, _TOKEN, 0).to(tl.int64)
                    bits |= tl.where(position != want_position, _POSITION, 0)
                    append_violations(
                        ring_ptr, write_index_ptr, ring_capacity, kernel_kind,
                        tl.where(written, bits, 0),
                        slot, position, token, want_token, stored_hash, want_position,
                    )  # fmt: skip
                follows = position == prev_position + 1
                bits = tl.where(written & checks_position & (follows == 0), _POSITION, 0)
                append_violations(
                    ring_ptr, write_index_ptr, ring_capacity, kernel_kind,
                    bits.to(tl.int64),
                    slot, position, token, token, stored_hash, prev_position + 1,
                )  # fmt: skip
                prev_position = tl.where(written, position, prev_position)

                # Many requests may write slot 0: in parallel only the last one in order stores.
                is_last = (
                    in_order | (slot != _PADDING_SLOT) | (write_order(row, i) == padding_order)
                )
                row_ptr = canary_ptr + slot * row_words
                tl.store(row_ptr + TOKEN_WORD, token, mask=written & is_last)
                tl.store(row_ptr + POSITION_WORD, position, mask=written & is_last)
                tl.store(row_ptr + PREV_HASH_WORD, stored_hash, mask=written & is_last)
                # A violation never stops the chain: it goes on from what was really fed.
                chain = tl.where(written, chain_step(chain, token, position), chain)
        # The next round's seed may be a row that another thread of this program has just stored.
        tl.debug_barrier()


@checked_by(check_write_args)
def launch_write_kernels(
    *,
    canary_buf: torch.Tensor,
    plan: WritePlan,
    kernel_kind: int,
    violation_ring: torch.Tensor,
    violation_write_index: torch.Tensor,
    slot_run_counter: torch.Tensor,
    kernel_run_counter: torch.Tensor,
    input_ids: torch.Tensor,
    positions: torch.Tensor,
    out_cache_loc: torch.Tensor,
    enable_chain_position_assert: torch.Tensor,
    expected_input_tokens: torch.Tensor | None = None,
    expected_input_positions: torch.Tensor | None = None,
    enable_write_input_assert: bool = False,
    real_kv_sources: Sequence[RealKvSource] = (),
    real_kv_hash_mode: RealKvHashMode = RealKvHashMode.NONE,
    fault: torch.Tensor | None = None,
) -> None:
    """Write the batch's rows; see ``Backend.write``. Safe under graph capture with ``fault``."""
    words = canary_words(canary_buf)
    num_slots, row_words = words.shape
    num_tokens = int(positions.shape[0])
    with fault_cell(
        fault, canary_buf.device, num_slots=num_slots, num_tokens=num_tokens
    ) as cell:  # fmt: skip
        scratch = launch_write_marks_kernel(
            canary_words=words,
            plan=plan,
            slot_run_counter=slot_run_counter,
            kernel_run_counter=kernel_run_counter,
            out_cache_loc=out_cache_loc,
            real_kv_sources=real_kv_sources,
            real_kv_hash_mode=real_kv_hash_mode,
            fault=cell,
        )
        block = block_lanes(_BLOCK_REQUESTS, _INTERPRETER_BLOCK_REQUESTS)
        _write_kernel[(max(1, triton.cdiv(plan.capacity, block)),)](
            canary_ptr=words,
            write_offsets_ptr=plan.write_offsets,
            write_seeds_ptr=plan.write_seed_slot_indices,
            write_num_valid_reqs_ptr=plan.write_num_valid_reqs,
            input_ids_ptr=input_ids,
            positions_ptr=positions,
            out_cache_loc_ptr=out_cache_loc,
            expected_tokens_ptr=(
                input_ids if expected_input_tokens is None else expected_input_tokens
            ),
            expected_positions_ptr=(
                positions if expected_input_positions is None else expected_input_positions
            ),
            chain_position_assert_ptr=enable_chain_position_assert,
            scratch_ptr=scratch,
            ring_ptr=violation_ring,
            write_index_ptr=violation_write_index,
            req_capacity=plan.capacity,
            num_tokens=num_tokens,
            num_slots=num_slots,
            row_words=row_words,
            ring_capacity=int(violation_ring.shape[0]),
            kernel_kind=int(kernel_kind),
            CHECK_INPUTS=enable_write_input_assert,
            BLOCK=block,
            TOKENS=block_lanes(_BLOCK_TOKENS, _INTERPRETER_BLOCK_TOKENS),
            # A chain fills one thread; a warp is the least that a program can have.
            num_warps=1,
        )
