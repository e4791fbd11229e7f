"""Large launches on threads, with the results of the reference's order.

Verify entries are independent: ranges are counted in one pass on threads, and only a launch that
found something makes a second pass, in order, over the ranges that found it. Requests of a write
are independent only if none touches a slot of another's; that is looked up first.
"""

from __future__ import annotations

import ctypes
from itertools import pairwise
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
import torch

from kvcanary_cli.abi.constants import RING_FIELDS
from kvcanary_cli.backends.cpu.threads import run_all, split
from kvcanary_cli.backends.cpu.verify import verify_range
from kvcanary_cli.backends.cpu.write import claim_slots, owns_seeds, write_requests

if TYPE_CHECKING:
    from kvcanary_cli.abi.plans import VerifyPlan, WritePlan

Ints = tuple[int, ...]

_ROW_BYTES = RING_FIELDS * 8
# An entry leaves at most a row of the input assert and one of the chain-position assert.
_ROWS_PER_TOKEN = 2
_MAX_STAMP = 255


def verify_in_ranges(
    rows: Ints,
    entries: Ints,
    options: Ints,
    *,
    plan: VerifyPlan,
    ring: torch.Tensor,
    write_index: torch.Tensor,
    slot_counter: torch.Tensor,
    kernel_counter: torch.Tensor,
) -> int:
    """Verify a launch of many entries; return the worst fault.

    Args:
        rows, entries, options: Arguments of ``verify_range`` before, and after, its range.
    """
    kernel_counter += 1
    if int(plan.enable) == 0:
        return 0
    active = max(0, min(int(plan.verify_num_valid), plan.capacity))
    slot_counter += active
    parts = split(active)
    count_only = (0, 0, 0)
    found = run_all(
        verify_range, [(*rows, *entries, *part, *options, *count_only) for part in parts]
    )
    first = seq = int(write_index)
    ring_rows = ring.shape[0]
    for part, (violations, _) in zip(parts, found, strict=True):
        if violations and seq < ring_rows:
            verify_range(*rows, *entries, *part, *options, ring.data_ptr(), ring_rows, seq)
        seq += violations
    write_index += seq - first
    worst: int = max(fault for _, fault in found)
    return worst


class ParallelWriter:
    """Writes large launches on threads.

    It keeps a byte a slot of the largest canary buffer that it met: which range of requests writes
    that slot. Requests of one range stay in order, so only ranges must keep off each other.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._stamps = torch.zeros(0, dtype=torch.uint8)
        self._last_stamp = 0

    def write(
        self,
        rows: Ints,
        requests: Ints,
        tokens: Ints,
        options: Ints,
        *,
        plan: WritePlan,
        chain_flag: torch.Tensor,
        ring: torch.Tensor,
        write_index: torch.Tensor,
        slot_counter: torch.Tensor,
        kernel_counter: torch.Tensor,
    ) -> int | None:
        """Write a launch of many tokens; return the worst fault.

        Args:
            rows, requests, tokens, options: Arguments of ``write_requests``.

        Returns:
            None, with nothing changed, if requests depend on each other or there is but one.
        """
        num_tokens, locs = tokens[0], tokens[3]
        num_reqs = max(0, min(int(plan.write_num_valid_reqs), plan.capacity))
        parts = _split_requests(plan.write_offsets.numpy()[: num_reqs + 1], num_tokens)
        if len(parts) < 2:
            return None
        if not self._are_independent(rows[2], requests, parts, num_tokens, locs):
            return None
        kernel_counter += 1
        check_chain = int(chain_flag)
        first = int(write_index)
        room = 0
        if check_chain or tokens[-1]:
            room = max(0, min(ring.shape[0] - max(0, first), num_tokens * _ROWS_PER_TOKEN))
        scratch = [torch.empty((room, RING_FIELDS), dtype=torch.int64) for _ in parts]
        done = run_all(
            write_requests,
            [
                (*rows, *requests, *part, *tokens, check_chain, *options, own.data_ptr(), room, 0)
                for part, own in zip(parts, scratch, strict=True)
            ],
        )
        seq = first
        for own, (violations, written, _) in zip(scratch, done, strict=True):
            _append_rows(ring, seq, own, violations)
            seq += violations
            slot_counter += written
        write_index += seq - first
        worst: int = max(fault for _, _, fault in done)
        return worst

    def _are_independent(
        self, num_slots: int, requests: Ints, parts: list[Ints], num_tokens: int, locs: int
    ) -> bool:
        # One thread claims for all: stamps are so close together that two would fight for lines.
        offsets, seeds = requests
        with self._lock:
            first_stamp = self._next_stamps(num_slots, len(parts))
            stamps = self._stamps.data_ptr()
            own = [
                (stamps, stamp, first_stamp, num_slots)
                for stamp in range(first_stamp, first_stamp + len(parts))
            ]
            return all(
                claim_slots(*mine, offsets, *part, num_tokens, locs)
                for mine, part in zip(own, parts, strict=True)
            ) and all(
                owns_seeds(*mine, offsets, seeds, *part, num_tokens)
                for mine, part in zip(own, parts, strict=True)
            )

    def _next_stamps(self, num_slots: int, count: int) -> int:
        """The first of ``count`` stamps above all that earlier launches left."""
        if self._stamps.shape[0] < num_slots:
            self._stamps = torch.zeros(num_slots, dtype=torch.uint8)
            self._last_stamp = 0
        if self._last_stamp + count > _MAX_STAMP:
            self._stamps.zero_()
            self._last_stamp = 0
        first = self._last_stamp + 1
        self._last_stamp += count
        return first


def _split_requests(offsets: np.ndarray, num_tokens: int) -> list[Ints]:
    """Cut the requests of ``offsets`` into consecutive ranges of about equally many tokens."""
    num_reqs = len(offsets) - 1
    # Offsets may be faulty, so they are made to ascend; this only decides on the cuts.
    ends = np.maximum.accumulate(np.clip(offsets, 0, num_tokens))
    if num_reqs < 2:
        return [(0, num_reqs)]
    targets = [stop for _, stop in split(int(ends[-1]))][:-1]
    cuts = np.unique(np.clip(np.searchsorted(ends, targets), 1, num_reqs - 1))
    bounds = [0, *cuts.tolist(), num_reqs]
    return list(pairwise(bounds))


def _append_rows(ring: torch.Tensor, seq: int, rows: torch.Tensor, count: int) -> None:
    """Store the first ``count`` rows from row ``seq`` on, as far as the ring reaches."""
    skipped = max(0, -seq)
    fit = min(count, ring.shape[0] - seq, rows.shape[0]) - skipped
    if fit > 0:
        target = ring.data_ptr() + (seq + skipped) * _ROW_BYTES
        ctypes.memmove(target, rows.data_ptr() + skipped * _ROW_BYTES, fit * _ROW_BYTES)
