"""Puts together what HEAD and TAIL saw of the same entries, as violations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvcanary_cli.abi.constants import FailReason, LaunchTag, PoolKind
from kvcanary_cli.replay import explain
from kvcanary_cli.replay.explain import LaunchFindings
from kvcanary_cli.replay.lanes import get_rows
from kvcanary_cli.replay.violations import (
    CHAIN_POSITION,
    INPUT_ASSERT,
    VERIFY,
    ViolationChunk,
    filled_columns,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvcanary_cli.canary.endpoint import Endpoint
    from kvcanary_cli.replay.forwards import Forward
    from kvcanary_cli.replay.lanes import Lane
    from kvcanary_cli.replay.violations import ViolationTable

    Ints = NDArray[np.int64]
    # (group, check) to (launch tag, what it found).
    _Parts = dict[tuple[int, str], list[tuple[int, LaunchFindings]]]

_CHAIN_ONLY = int(FailReason.VERIFY_CHAIN_HASH_MISMATCH)


@dataclass(frozen=True, slots=True)
class _FoundIn:
    """The forward whose launches found something, or the step and event of a sweep."""

    forward: Forward | None
    sweep: tuple[int, int]
    expected: Ints | None


class Merger:
    """Findings of one worker's launches, until they are emitted.

    Args:
        lanes: The worker's, by group.
        table: Takes the violations.
        ring_capacity: Rows of a ring, as ``--ring-capacity`` asks for; None = no end.

    Attributes:
        ring_lost: Violations that such a ring would not have kept.
    """

    def __init__(self, lanes: list[Lane], table: ViolationTable, ring_capacity: int | None) -> None:
        self.ring_lost = 0
        self._lanes = lanes
        self._table = table
        self._ring_room = ring_capacity
        self._parts: _Parts = {}
        # What a ring of the asked-for size would have kept of them.
        self._ring_parts: _Parts = {}

    def add(self, endpoint: Endpoint, found: list[LaunchFindings], count: int) -> None:
        """Add what a launch found, ``count`` violations in all."""
        _file(self._parts, endpoint, found)
        if self._ring_room is not None:
            kept = min(self._ring_room, count)
            self.ring_lost += count - kept
            self._ring_room -= kept
            _file(self._ring_parts, endpoint, explain.first_rows(found, kept))

    def emit(
        self, forward: Forward | None, sweep: tuple[int, int], expected: Ints | None
    ) -> list[ViolationChunk]:
        """Turn what was added into violations.

        Args:
            forward: The forward that it was found in, None = a sweep.
            sweep: Step and event of that.
            expected: [num_tokens] expected input tokens of the forward, or None.

        Returns:
            All of them; the table gets those that the ring kept.
        """
        found_in = _FoundIn(forward, sweep, expected)
        found = self._chunks(self._parts, found_in)
        kept = found if self._ring_room is None else self._chunks(self._ring_parts, found_in)
        for chunk in kept:
            self._table.add(chunk)
        self._parts.clear()
        self._ring_parts.clear()
        return found

    def add_tree(self, forward: Forward, slots_of: list[Ints]) -> None:
        """Add tree nodes that do not stand one position after their parent.

        The linear assert of the launches cannot see them.

        Args:
            forward: The forward.
            slots_of: Of each group the physical slot of each token, negative = not written.
        """
        positions = forward.positions[: len(forward.token_row)]
        for group_index, lane in enumerate(self._lanes):
            slots = slots_of[group_index]
            hit = np.flatnonzero((positions != forward.true_positions) & (slots >= 0))
            if not len(hit):
                continue
            ids = forward.input_ids[hit]
            found = LaunchFindings(
                CHAIN_POSITION,
                hit,
                np.full(len(hit), int(FailReason.WRITE_POSITION_MISMATCH), dtype=np.int64),
                {
                    "slot": slots[hit],
                    "position": positions[hit],
                    "expected_position": forward.true_positions[hit],
                    "stored_token": ids,
                    "expected_token": ids,
                    "stored_chain_hash": get_rows(lane.group.k_head, slots[hit])[:, 2],
                    "token_checked": np.zeros(len(hit), dtype=np.bool_),
                },
            )
            base = 6 if lane.kind is PoolKind.SWA else 0
            for tag in (LaunchTag.HEAD_K_FULL, LaunchTag.TAIL_K_FULL):
                key = (group_index, CHAIN_POSITION)
                for parts in (self._parts, self._ring_parts):
                    parts.setdefault(key, []).append((base + tag, found))

    def _chunks(self, parts: _Parts, found_in: _FoundIn) -> list[ViolationChunk]:
        return [
            self._chunk(lane, parts[group_index, check], found_in)
            for group_index, lane in enumerate(self._lanes)
            for check in (VERIFY, INPUT_ASSERT, CHAIN_POSITION)
            if (group_index, check) in parts
        ]

    def _chunk(
        self, lane: Lane, parts: list[tuple[int, LaunchFindings]], found_in: _FoundIn
    ) -> ViolationChunk:
        found, tags = explain.merge(parts)
        forward = found_in.forward
        count = len(found.index)
        columns = dict(found.columns)
        if forward is None:
            step, event = found_in.sweep
            columns["seam"] = found.bits == _CHAIN_ONLY
        else:
            step, event = forward.step, forward.event
            batch_row = self._batch_rows(lane, forward, found)
            codes = np.array([self._table.request_code(req) for req in forward.reqs] or [-1])
            columns["req"] = codes[batch_row]
            columns["row"] = forward.rows[batch_row]
            columns["seam"] = self._seams(lane, found_in, forward, found)
        return ViolationChunk(
            step=step,
            event=event,
            forward_mode=None if forward is None else forward.mode.name,
            worker=lane.worker,
            pool_kind=lane.kind.name,
            check=found.check,
            columns=filled_columns(count, **columns),
            bits=found.bits,
            tags=tags,
        )

    @staticmethod
    def _batch_rows(lane: Lane, forward: Forward, found: LaunchFindings) -> Ints:
        if found.check != VERIFY:
            return forward.token_row[found.index]
        entries = forward.prefix
        if lane.window:
            entries = np.minimum(entries, lane.window)
        row_of_entry: Ints = np.repeat(np.arange(len(entries), dtype=np.int64), entries)
        return row_of_entry[found.index]

    @staticmethod
    def _seams(
        lane: Lane, found_in: _FoundIn, forward: Forward, found: LaunchFindings
    ) -> NDArray[np.bool_]:
        """Which entries are intact and only followed a predecessor that was replaced."""
        if found.check == INPUT_ASSERT:
            return np.zeros(len(found.index), dtype=np.bool_)
        if found.check == CHAIN_POSITION:
            ids = forward.input_ids[found.index]
            expected = ids if found_in.expected is None else found_in.expected[found.index]
            right = found.columns["position"] == forward.true_positions[found.index]
            seam: NDArray[np.bool_] = right & (ids == expected)
            return seam
        slots, prevs = found.columns["slot"], found.columns["prev_slot"]
        # Without its token to compare, a slot that was written after its predecessor belongs to
        # another chain: then it is the slot that is wrong, not the one before it.
        older = lane.written_at[slots] <= lane.written_at[np.maximum(prevs, 0)]
        intact = found.columns["token_checked"] | older | (prevs < 0)
        out: NDArray[np.bool_] = (found.bits == _CHAIN_ONLY) & intact
        return out


def _file(parts: _Parts, endpoint: Endpoint, found: list[LaunchFindings]) -> None:
    """Put a launch's findings with those of the other launches over the same entries."""
    for part in found:
        if len(part.index):
            key = (endpoint.group_index, part.check)
            parts.setdefault(key, []).append((int(endpoint.tag), part))
