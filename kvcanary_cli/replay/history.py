"""The requests' true tokens, as the expected-token pool that the plan step reads (1.14).

The pool has a row per row of the request table. A request's tokens are bound to the row that a
forward reads it through; binding copies them once, later ``history`` events write through.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvcanary_cli.abi.constants import NO_EXPECTED_TOKEN
from kvcanary_cli.backends.cpu.event_state import Request
from kvcanary_cli.replay.requests import NONE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvcanary_cli.replay.known import Known
    from kvcanary_cli.replay.requests import Requests

_FIRST_CAPACITY = 64


@dataclass(slots=True)
class _Prints:
    """Fingerprints last recorded for a request's positions."""

    kv: NDArray[np.int64]
    known: NDArray[np.bool_]


class TokenHistories:
    """True tokens of every request that may still be read.

    A request's tokens stand in the pool's row that it is bound to, or else in an array of its own.

    Args:
        requests: Numbers requests; keeps length and row of each history.
        rows: Rows of the request table.
        row_len: Cells of a row; tokens past it are dropped.
        keep_tokens: Tokens of ended requests that are kept, because an overrun forward may still
            read them; the oldest go first.
        keep_kv: Whether the last recorded fingerprint of each position is kept too (for copies
            whose source is a request's position).
    """

    def __init__(
        self, requests: Requests, *, rows: int, row_len: int, keep_tokens: int, keep_kv: bool
    ) -> None:
        # Zero pages that are never touched cost nothing, so the pool costs what is in use.
        self.pool = np.zeros((rows, row_len), dtype=np.int64)
        self._requests = requests
        self._row_len = row_len
        self._row_req: list[int] = [NONE] * rows
        # Known requests, oldest first, and the tokens of those that are bound to no row.
        self._by_req: dict[str, int] = {}
        self._own: dict[int, NDArray[np.int64]] = {}
        self._prints: dict[int, _Prints] = {}
        self._ended: dict[str, int] = {}
        self._ended_tokens = 0
        self._keep_tokens = keep_tokens
        self._keep_kv = keep_kv
        self.any = False
        self.known: list[Known] = []
        """Whom to tell which tokens of a row change."""

    @property
    def keeps_kv(self) -> bool:
        return self._keep_kv

    def _get(self, req: str) -> int:
        code = self._by_req.get(req)
        if code is None:
            code = self._by_req[req] = self._requests.code(req)
            self._own[code] = np.full(_FIRST_CAPACITY, NO_EXPECTED_TOKEN, dtype=np.int64)
            cells = self._requests.cells[code]
            cells[[Request.HISTORY_LEN, Request.HISTORY_ROW, Request.HISTORY_KNOWN]] = 0, NONE, 1
        return code

    def _length(self, code: int) -> int:
        return int(self._requests.cells[code, Request.HISTORY_LEN])

    def _row(self, code: int) -> int:
        return int(self._requests.cells[code, Request.HISTORY_ROW])

    def extend(self, req: str, start: int, ids: NDArray[np.int64]) -> None:
        """Tokens of ``req`` from position ``start`` on; positions left out stay unknown (-1)."""
        self.any = True
        if start == 0 and req in self._ended:
            self._forget(req)  # A new request under the name of one that ended.
        code = self._get(req)
        self._revive(req)
        end = min(start + len(ids), self._row_len)
        if end <= start:
            return
        ids = ids[: end - start]
        length, row = self._length(code), self._row(code)
        if row >= 0:
            self._tell_change(row, length, start, ids)
            line = self.pool[row]
            if start > length:
                line[length:start] = NO_EXPECTED_TOKEN
            line[start:end] = ids
        else:
            own = self._own[code]
            if end > len(own):
                grown = np.full(max(end, 2 * len(own)), NO_EXPECTED_TOKEN, dtype=np.int64)
                grown[: len(own)] = own
                own = self._own[code] = grown
            own[start:end] = ids
        self._requests.cells[code, Request.HISTORY_LEN] = max(length, end)

    def _tell_change(self, row: int, length: int, start: int, ids: NDArray[np.int64]) -> None:
        """Say from which position on the tokens become others than they were."""
        if not self.known:
            return
        differs = ids != NO_EXPECTED_TOKEN
        told = max(0, min(length - start, len(ids)))
        differs[:told] = ids[:told] != self.pool[row, start : start + told]
        if differs.any():
            for known in self.known:
                known.forget_token(row, start + int(np.argmax(differs)))

    def _revive(self, req: str) -> None:
        tokens = self._ended.pop(req, None)
        if tokens is not None:
            self._ended_tokens -= tokens
            self._requests.cells[self._by_req[req], Request.HISTORY_ENDED] = 0

    def end(self, req: str) -> None:
        """``req`` finished or was aborted: its tokens are kept only while there is room."""
        code = self._by_req.get(req)
        if code is None or req in self._ended:
            return
        self._ended[req] = self._length(code)
        self._ended_tokens += self._length(code)
        self._requests.cells[code, Request.HISTORY_ENDED] = 1
        while self._ended_tokens > self._keep_tokens and len(self._ended) > 1:
            self._forget(next(iter(self._ended)))

    def _forget(self, req: str) -> None:
        self._revive(req)
        code = self._by_req.pop(req)
        row = self._row(code)
        if row >= 0:
            self._row_req[row] = NONE
            for known in self.known:
                known.forget_row(row)
        self._own.pop(code, None)
        self._prints.pop(code, None)
        self._requests.cells[
            code, [Request.HISTORY_LEN, Request.HISTORY_ROW, Request.HISTORY_KNOWN]
        ] = 0, NONE, 0

    def bind(self, row: int, req: str) -> int:
        """Put the tokens of ``req`` into the pool's ``row``; how many positions it then has."""
        code = self._by_req.get(req)
        if code is None:
            return 0
        length = self._length(code)
        former = self._row_req[row]
        if former != code:
            for known in self.known:
                known.forget_row(row)
            if former != NONE:
                self._own[former] = self.pool[row, : self._length(former)].copy()
                self._requests.cells[former, Request.HISTORY_ROW] = NONE
            before = self._row(code)
            if before >= 0:
                self._row_req[before] = NONE
                self.pool[row, :length] = self.pool[before, :length]
            else:
                self.pool[row, :length] = self._own.pop(code)[:length]
            self._row_req[row] = code
            self._requests.cells[code, Request.HISTORY_ROW] = row
        return length

    def tokens(self, req: str) -> NDArray[np.int64]:
        """Known tokens of ``req`` from position 0 on; -1 = unknown."""
        code = self._by_req.get(req)
        if code is None:
            return np.empty(0, dtype=np.int64)
        row = self._row(code)
        return (self.pool[row] if row >= 0 else self._own[code])[: self._length(code)]

    def requests(self) -> list[str]:
        return list(self._by_req)

    def ended(self) -> list[str]:
        """Requests that ended and are still known, oldest first."""
        return list(self._ended)

    def known_kv(self, req: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Positions of ``req`` with a recorded fingerprint, and the fingerprints."""
        prints = self._prints.get(self._by_req[req])
        if prints is None:
            empty = np.empty(0, dtype=np.int64)
            return empty, empty
        positions = np.flatnonzero(prints.known)
        return positions, prints.kv[positions]

    def note_kv(self, req: str, positions: NDArray[np.int64], hashes: NDArray[np.int64]) -> None:
        """Remember the fingerprints recorded for positions of ``req``."""
        if not self._keep_kv or not len(positions):
            return
        code = self._get(req)
        prints = self._prints.get(code)
        had = 0 if prints is None else len(prints.kv)
        need = int(positions.max()) + 1
        if prints is None or need > had:
            size = max(need, _FIRST_CAPACITY, 2 * had)
            grown = _Prints(np.zeros(size, dtype=np.int64), np.zeros(size, dtype=np.bool_))
            if prints is not None:
                grown.kv[:had], grown.known[:had] = prints.kv, prints.known
            prints = self._prints[code] = grown
        prints.kv[positions] = hashes
        prints.known[positions] = True

    def kv(
        self, req: str, positions: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Fingerprints last recorded for positions of ``req``, and which are known."""
        code = self._by_req.get(req)
        prints = None if code is None else self._prints.get(code)
        hashes = np.zeros(len(positions), dtype=np.int64)
        known = np.zeros(len(positions), dtype=np.bool_)
        if prints is not None:
            inside = positions < len(prints.kv)
            hashes[inside] = prints.kv[positions[inside]]
            known[inside] = prints.known[positions[inside]]
        return hashes, known
