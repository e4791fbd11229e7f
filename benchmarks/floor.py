"""The floor of a replay: one compiled loop over the columns, and nothing else.

It does what any replay must do at the least: follow owners and the request table, and for every
written token look at its predecessor, check where that stands and whose it is, hash it, store the
row and note the writer. Reading the trace is not part of it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numba
import numpy as np

from kvcanary_cli.abi import constants
from kvcanary_cli.trace.reader import open_trace

if TYPE_CHECKING:
    from pathlib import Path

    from kvcanary_cli.trace.segment import Segment

_M1, _M2 = np.uint64(constants.MIX_MULTIPLIER_1), np.uint64(constants.MIX_MULTIPLIER_2)
_HEAD = np.uint64(constants.CHAIN_HEAD_HASH)
_S27, _S30, _S31 = np.uint64(27), np.uint64(30), np.uint64(31)
_FREE = 0
_ALLOC, _MAP, _FORWARD, _OWN, _FREE_KIND, _OTHER = range(6)
_KINDS = {"alloc": _ALLOC, "map": _MAP, "forward": _FORWARD, "own": _OWN, "free": _FREE_KIND}
_NO_INTS = np.zeros(0, dtype=np.int64)


@numba.njit(nogil=True)
def _mix(x):  # type: ignore[no-untyped-def]
    x = (x ^ (x >> _S30)) * _M1
    x = (x ^ (x >> _S27)) * _M2
    return x ^ (x >> _S31)


@numba.njit(nogil=True)
def _loop(kind, row, index, given, taken, cells, batch, canary, table, owner, writer):  # type: ignore[no-untyped-def]
    """One segment; the tables are changed.

    Args:
        kind, row, index: [n] which list an event is in, which row of it, its ``i``.
        given: Owner codes, slots and offsets of alloc; taken: of own and free, the latter FREE.
        cells: Table row, start, slots, offsets of map.
        batch: Row offsets, tokens of each batch row, requests, table rows, token offsets, ids,
            positions, slots of forward.
        canary: [slots, 4]; table: [rows, row_len]; owner, writer: [slots].

    Returns:
        Tokens written; predecessors that stand elsewhere; slots of others.
    """
    written = misplaced = foreign = 0
    alloc_owner, alloc_slots, alloc_ends = given
    own_owner, own_slots, own_ends = taken
    map_row, map_start, map_slots, map_ends = cells
    row_ends, counts, reqs, rows, token_ends, ids, positions, locs = batch
    for k in range(len(kind)):
        r = row[k]
        if kind[k] == 0:
            for at in range(alloc_ends[r], alloc_ends[r + 1]):
                owner[alloc_slots[at]] = alloc_owner[r]
        elif kind[k] == 1:
            start = map_start[r] - map_ends[r]
            for at in range(map_ends[r], map_ends[r + 1]):
                table[map_row[r], start + at] = map_slots[at]
        elif kind[k] == 2:
            at = token_ends[r]
            for b in range(row_ends[r], row_ends[r + 1]):
                req = reqs[b]
                for _ in range(counts[b]):
                    slot, position = locs[at], positions[at]
                    h = _HEAD
                    if position > 0:
                        prev = table[rows[b], position - 1]
                        misplaced += canary[prev, 1] != position - 1
                        foreign += (owner[prev] != req) & (owner[prev] != 1)
                        h = _mix(np.uint64(canary[prev, 2]))
                        h = _mix(h ^ np.uint64(canary[prev, 0]))
                        h = _mix(h ^ np.uint64(canary[prev, 1]))
                    foreign += owner[slot] != req
                    canary[slot, 0] = ids[at]
                    canary[slot, 1] = position
                    canary[slot, 2] = np.int64(h)
                    writer[slot] = index[k]
                    at += 1
                    written += 1
        elif kind[k] == 3:
            for at in range(own_ends[r], own_ends[r + 1]):
                owner[own_slots[at]] = own_owner[r]
    return written, misplaced, foreign


class _Codes:
    """Owners as numbers that hold for the whole trace; 0 is nobody, 1 the prefix cache."""

    def __init__(self) -> None:
        self._codes = {"": 0, "tree": 1}

    def of(self, segment: Segment) -> np.ndarray:
        return np.array(
            [self._codes.setdefault(text, len(self._codes)) for text in segment.strings] or [0]
        )


def _arguments(segment: Segment, codes: np.ndarray) -> tuple[Any, ...]:
    """A segment's columns as the loop takes them."""
    tables = segment.tables

    def ints(kind: str, name: str) -> np.ndarray:
        column = tables[kind].columns.get(name) if kind in tables else None
        return _NO_INTS if column is None else column.values

    def ends(kind: str, name: str) -> np.ndarray:
        column = tables[kind].columns.get(name) if kind in tables else None
        return np.zeros(1, np.int64) if column is None else column.offsets

    def owners(kind: str) -> np.ndarray:
        return codes[ints(kind, "owner").astype(np.int64)]

    # own and free in one list: a free is an own by nobody.
    kinds = np.full(len(segment.kind_names), _OTHER)
    for name, code in _KINDS.items():
        if name in segment.kind_names:
            kinds[segment.kind_names.index(name)] = code
    kind = kinds[segment.kind]
    row = segment.row.astype(np.int64)
    own_rows = len(ends("own", "slots")) - 1
    row[kind == _FREE_KIND] += own_rows
    kind[kind == _FREE_KIND] = _OWN
    own_ends, free_ends = ends("own", "slots"), ends("free", "slots")
    taken = (
        np.concatenate([owners("own"), np.full(len(free_ends) - 1, _FREE)]),
        np.concatenate([ints("own", "slots"), ints("free", "slots")]),
        np.concatenate([own_ends, own_ends[-1] + free_ends[1:]]),
    )
    row_ends = ends("forward", "reqs")
    counts = np.ones(int(row_ends[-1]), dtype=np.int64)
    extend = tables["forward"].columns.get("extend_seq_lens") if "forward" in tables else None
    if extend is not None:
        assert extend.offsets is not None
        counts[np.repeat(np.diff(extend.offsets) > 0, np.diff(row_ends))] = extend.values
    batch = (
        row_ends,
        counts,
        codes[ints("forward", "reqs").astype(np.int64)],
        ints("forward", "req_pool_indices"),
        ends("forward", "positions"),
        ints("forward", "input_ids"),
        ints("forward", "positions"),
        ints("forward", "out_cache_loc"),
    )
    return (
        kind,
        row,
        segment.index,
        (owners("alloc"), ints("alloc", "slots"), ends("alloc", "slots")),
        taken,
        (ints("map", "row"), ints("map", "start"), ints("map", "slots"), ends("map", "slots")),
        batch,
    )


class Floor:
    """A trace in memory, ready for the loop.

    Args:
        path: The trace.

    Attributes:
        canary: [slots, 4] rows after the last ``run``.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        reader = open_trace(path)
        self._pool, codes = reader.header.pool, _Codes()
        self._segments = [_arguments(segment, codes.of(segment)) for segment in reader.segments()]
        self.canary = np.zeros((0, 4), dtype=np.int64)

    def run(self) -> tuple[float, int]:
        """CPU seconds of the loop over all segments, from an empty pool on; tokens written.

        Raises:
            ValueError: It found something, so the trace is not clean or the loop not right.
        """
        slots = self._pool.max_slot + 1
        self.canary = np.zeros((slots, 4), dtype=np.int64)
        table = np.zeros((self._pool.rows, self._pool.row_len), dtype=np.int32)
        owner = np.zeros(slots, dtype=np.int64)
        writer = np.full(slots, -1, dtype=np.int64)
        tokens, seconds = 0, 0.0
        for arguments in self._segments:
            start = time.thread_time()
            written, misplaced, foreign = _loop(*arguments, self.canary, table, owner, writer)
            seconds += time.thread_time() - start
            tokens += written
            if misplaced or foreign:
                raise ValueError(f"{self._path}: {misplaced} misplaced and {foreign} foreign slots")
        return seconds, tokens


def floor_seconds(path: Path, rounds: int = 3) -> tuple[float, int]:
    """CPU seconds of the loop over all of a trace, the best of some rounds; tokens.

    Raises:
        ValueError: See ``Floor.run``.
    """
    floor = Floor(path)
    floor.run()  # compiles it
    runs = [floor.run() for _ in range(rounds)]
    return min(seconds for seconds, _ in runs), runs[0][1]
