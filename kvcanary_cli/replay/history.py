"""The requests' true tokens, as the expected-token pool that the plan step reads (1.14).

The pool has a row per row of the request table. A request's tokens are bound to the row that a
forward reads it through; binding copies them once, later ``history`` events write through.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvcanary_cli.abi.constants import NO_EXPECTED_TOKEN

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvcanary_cli.replay.known import Known

_FIRST_CAPACITY = 64


@dataclass(slots=True)
class _History:
    ids: NDArray[np.int64]
    kv: NDArray[np.int64] | None
    kv_known: NDArray[np.bool_] | None
    length: int = 0
    row: int = -1


class TokenHistories:
    """True tokens of every request that may still be read.

    Args:
        rows: Rows of the request table.
        row_len: Cells of a row; tokens past it are dropped.
        keep_tokens: Tokens of ended requests that are kept, because an overrun forward may still
            read them; the oldest go first.
        keep_kv: Whether the last recorded fingerprint of each position is kept too (for copies
            whose source is a request's position).
    """

    def __init__(self, *, rows: int, row_len: int, keep_tokens: int, keep_kv: bool) -> None:
        # Zero pages that are never touched cost nothing, so the pool costs what is in use.
        self.pool = np.zeros((rows, row_len), dtype=np.int64)
        self._row_len = row_len
        self._row_req: list[str | None] = [None] * rows
        self._by_req: dict[str, _History] = {}
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

    def _get(self, req: str) -> _History:
        history = self._by_req.get(req)
        if history is None:
            history = self._by_req[req] = _History(
                np.full(_FIRST_CAPACITY, NO_EXPECTED_TOKEN, dtype=np.int64), None, None
            )
        return history

    def extend(self, req: str, start: int, ids: NDArray[np.int64]) -> None:
        """Tokens of ``req`` from position ``start`` on; positions left out stay unknown (-1)."""
        self.any = True
        if start == 0 and req in self._ended:
            self._forget(req)  # A new request under the name of one that ended.
        history = self._get(req)
        self._revive(req)
        end = min(start + len(ids), self._row_len)
        if end <= start:
            return
        if end > len(history.ids):
            grown = np.full(max(end, 2 * len(history.ids)), NO_EXPECTED_TOKEN, dtype=np.int64)
            grown[: len(history.ids)] = history.ids
            history.ids = grown
        ids = ids[: end - start]
        if history.row >= 0 and self.known:
            self._tell_change(history, start, ids)
        history.ids[start:end] = ids
        old_length, history.length = history.length, max(history.length, end)
        if history.row >= 0:
            if start > old_length:
                self.pool[history.row, old_length:start] = NO_EXPECTED_TOKEN
            self.pool[history.row, start:end] = ids

    def _tell_change(self, history: _History, start: int, ids: NDArray[np.int64]) -> None:
        """Say from which position on the tokens become others than they were."""
        differs = ids != history.ids[start : start + len(ids)]
        if differs.any():
            for known in self.known:
                known.forget_token(history.row, start + int(np.argmax(differs)))

    def _revive(self, req: str) -> None:
        self._ended_tokens -= self._ended.pop(req, 0)

    def end(self, req: str) -> None:
        """``req`` finished or was aborted: its tokens are kept only while there is room."""
        history = self._by_req.get(req)
        if history is None or req in self._ended:
            return
        self._ended[req] = history.length
        self._ended_tokens += history.length
        while self._ended_tokens > self._keep_tokens and len(self._ended) > 1:
            self._forget(next(iter(self._ended)))

    def _forget(self, req: str) -> None:
        self._revive(req)
        gone = self._by_req.pop(req)
        if gone.row >= 0 and self._row_req[gone.row] == req:
            self._row_req[gone.row] = None
            for known in self.known:
                known.forget_row(gone.row)

    def bind(self, row: int, req: str) -> int:
        """Put the tokens of ``req`` into the pool's ``row``; how many positions it then has."""
        history = self._by_req.get(req)
        if history is None:
            return 0
        if self._row_req[row] != req:
            former = self._row_req[row]
            other = None if former is None else self._by_req.get(former)
            if other is not None and other.row == row:
                other.row = -1
            if history.row >= 0 and self._row_req[history.row] == req:
                self._row_req[history.row] = None
            for known in self.known:
                known.forget_row(row)
            self._row_req[row] = req
            history.row = row
            self.pool[row, : history.length] = history.ids[: history.length]
        return history.length

    def tokens(self, req: str) -> NDArray[np.int64]:
        """Known tokens of ``req`` from position 0 on; -1 = unknown."""
        history = self._by_req.get(req)
        if history is None:
            return np.empty(0, dtype=np.int64)
        return history.ids[: history.length]

    def requests(self) -> list[str]:
        return list(self._by_req)

    def ended(self) -> list[str]:
        """Requests that ended and are still known, oldest first."""
        return list(self._ended)

    def known_kv(self, req: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Positions of ``req`` with a recorded fingerprint, and the fingerprints."""
        history = self._by_req[req]
        if history.kv is None or history.kv_known is None:
            empty = np.empty(0, dtype=np.int64)
            return empty, empty
        positions = np.flatnonzero(history.kv_known)
        return positions, history.kv[positions]

    def note_kv(self, req: str, positions: NDArray[np.int64], hashes: NDArray[np.int64]) -> None:
        """Remember the fingerprints recorded for positions of ``req``."""
        if not self._keep_kv or not len(positions):
            return
        history = self._get(req)
        need = int(positions.max()) + 1
        if history.kv is None or need > len(history.kv):
            size = max(need, _FIRST_CAPACITY, 2 * (0 if history.kv is None else len(history.kv)))
            kv, known = np.zeros(size, dtype=np.int64), np.zeros(size, dtype=np.bool_)
            if history.kv is not None and history.kv_known is not None:
                kv[: len(history.kv)], known[: len(history.kv)] = history.kv, history.kv_known
            history.kv, history.kv_known = kv, known
        assert history.kv_known is not None
        history.kv[positions] = hashes
        history.kv_known[positions] = True

    def kv(
        self, req: str, positions: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Fingerprints last recorded for positions of ``req``, and which are known."""
        history = self._by_req.get(req)
        hashes = np.zeros(len(positions), dtype=np.int64)
        known = np.zeros(len(positions), dtype=np.bool_)
        if history is not None and history.kv is not None and history.kv_known is not None:
            inside = positions < len(history.kv)
            hashes[inside] = history.kv[positions[inside]]
            known[inside] = history.kv_known[positions[inside]]
        return hashes, known
