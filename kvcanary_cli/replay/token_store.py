"""Tokens of requests that no row of the pool holds: one request behind the other in one array."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvcanary_cli.abi.constants import NO_EXPECTED_TOKEN
from kvcanary_cli.backends.cpu.event_state import HistoryNumber, Request
from kvcanary_cli.replay.requests import NONE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvcanary_cli.replay.requests import Requests

    Ints = NDArray[np.int64]

_FIRST_ROOM = 1 << 14


class TokenStore:
    """Places in ``values`` are never used twice; ``make_room`` closes the gaps when it is full.

    Args:
        requests: Keep where the tokens of each begin, and for how many there is room.
        numbers: ``HistoryNumber`` of the histories; how far ``values`` is used is one of them.

    Attributes:
        values: [room] tokens, ``NO_EXPECTED_TOKEN`` = unknown; replaced when it is full.
    """

    def __init__(self, requests: Requests, numbers: Ints) -> None:
        self.values: Ints = np.empty(_FIRST_ROOM, dtype=np.int64)
        self._requests, self._numbers = requests, numbers
        numbers[HistoryNumber.STORE_ROOM] = _FIRST_ROOM

    def of(self, code: int) -> Ints:
        """[room] tokens of a request, a view; empty if it has none here."""
        at, room = self._place(code)
        return self.values[at : at + room] if at != NONE else self.values[:0]

    def reserve(self, code: int, length: int) -> Ints:
        """``of`` with room for at least ``length``; what is new is unknown."""
        had = len(self.of(code))
        if length <= had:
            return self.of(code)
        room = max(length, 2 * had)
        self.make_room(room)
        before, at = self.of(code), int(self._numbers[HistoryNumber.STORE_USED])
        self._numbers[HistoryNumber.STORE_USED] = at + room
        tokens = self.values[at : at + room]
        tokens[:had], tokens[had:] = before, NO_EXPECTED_TOKEN
        self._requests.cells[code, [Request.STORE_AT, Request.STORE_LEN]] = at, room
        return tokens

    def drop(self, code: int) -> None:
        self._requests.cells[code, [Request.STORE_AT, Request.STORE_LEN]] = NONE, 0

    def make_room(self, more: int) -> None:
        """Let ``more`` tokens follow those that are there."""
        used = int(self._numbers[HistoryNumber.STORE_USED])
        if used + more <= len(self.values):
            return
        cells = self._requests.cells
        held = np.flatnonzero(cells[:, Request.STORE_AT] != NONE)
        held = held[np.argsort(cells[held, Request.STORE_AT])]
        lengths = cells[held, Request.STORE_LEN]
        live = int(lengths.sum())
        self.values = without_gaps(self.values, cells[held, Request.STORE_AT], lengths, live + more)
        cells[held, Request.STORE_AT] = np.cumsum(lengths) - lengths
        self._numbers[HistoryNumber.STORE_USED] = live
        self._numbers[HistoryNumber.STORE_ROOM] = len(self.values)

    def _place(self, code: int) -> tuple[int, int]:
        cells = self._requests.cells[code]
        return int(cells[Request.STORE_AT]), int(cells[Request.STORE_LEN])


def without_gaps(values: Ints, starts: Ints, lengths: Ints, needed: int) -> Ints:
    """``values`` with its runs [start, start + length) at the front, one behind another.

    Run by run, since they are long: numbers of all their elements would cost more than the copies.

    Args:
        starts: [runs] in order; no runs overlap.
        needed: How many elements there must be room for.

    Returns:
        ``values`` itself, or a longer array where it has not twice that room: closing the gaps
        costs no more than filling what is left.
    """
    out = values
    if len(values) < 2 * needed:
        out = np.zeros(2 * needed, dtype=np.int64)
    at = 0
    for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
        if start != at or out is not values:
            out[at : at + length] = values[start : start + length]
        at += length
    return out
