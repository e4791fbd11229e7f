"""The requests' true tokens, as the expected-token pool that the plan step reads (1.14).

The pool has a row per row of the request table. A request's tokens are bound to the row that a
forward reads it through; binding copies them once, later ``history`` events write through.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvcanary_cli.abi.constants import NO_EXPECTED_TOKEN
from kvcanary_cli.backends.cpu.event_state import HistoryNumber, Request
from kvcanary_cli.backends.cpu.pages import zeros
from kvcanary_cli.replay.requests import NONE
from kvcanary_cli.replay.token_store import TokenStore

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvcanary_cli.replay.known import Known
    from kvcanary_cli.replay.requests import Requests

    Ints = NDArray[np.int64]

_FIRST_CAPACITY = 64


@dataclass(slots=True)
class _Prints:
    """Fingerprints last recorded for a request's positions."""

    kv: NDArray[np.int64]
    known: NDArray[np.bool_]


class TokenHistories:
    """True tokens of every request that may still be read.

    A request's tokens stand in the pool's row that it is bound to, or else in the store.

    Args:
        requests: Numbers requests; keeps length and place of each history.
        rows: Rows of the request table.
        row_len: Cells of a row; tokens past it are dropped.
        sparse: Whether most cells are never touched.
        keep_tokens: Tokens of ended requests that are kept, because an overrun forward may still
            read them; the oldest go first.
        keep_kv: Whether the last recorded fingerprint of each position is kept too (for copies
            whose source is a request's position).

    Attributes:
        pool: [rows, row_len] tokens by table row.
        row_req: [rows] request that is bound to each row, -1 = none.
        numbers: Further numbers, see ``HistoryNumber``; compiled code keeps them, too.
        store: Tokens that no row holds.
        known: Whom to tell which tokens of a row change.
    """

    def __init__(
        self,
        requests: Requests,
        *,
        rows: int,
        row_len: int,
        sparse: bool,
        keep_tokens: int,
        keep_kv: bool,
    ) -> None:
        # Zero pages that are never touched cost nothing, so the pool costs what is in use.
        self.pool: Ints = zeros((rows, row_len), np.int64, sparse=sparse)
        self._requests = requests
        self._row_len = row_len
        self.row_req: Ints = np.full(rows, NONE, dtype=np.int64)
        self.numbers: Ints = np.zeros(len(HistoryNumber), dtype=np.int64)
        self.numbers[[HistoryNumber.ENDED_FIRST, HistoryNumber.ENDED_LAST]] = NONE
        self.numbers[HistoryNumber.KEEP_TOKENS] = keep_tokens
        self.store = TokenStore(requests, self.numbers)
        self._prints: dict[int, _Prints] = {}
        self._keep_kv = keep_kv
        self.known: list[Known] = []

    @property
    def keeps_kv(self) -> bool:
        return self._keep_kv

    @property
    def any(self) -> bool:
        """Whether any history was told."""
        return bool(self.numbers[HistoryNumber.ANY])

    def _find(self, req: str) -> int | None:
        """Number of a request whose history is known."""
        code = self._requests.find(req)
        if code is None or not self._requests.cells[code, Request.HISTORY_KNOWN]:
            return None
        return code

    def _get(self, req: str) -> int:
        code = self._requests.code(req)
        cells = self._requests.cells[code]
        if not cells[Request.HISTORY_KNOWN]:
            self.numbers[HistoryNumber.SERIAL] += 1
            cells[[Request.HISTORY_LEN, Request.HISTORY_ROW]] = 0, NONE
            cells[Request.HISTORY_KNOWN] = self.numbers[HistoryNumber.SERIAL]
        return code

    def _length(self, code: int) -> int:
        return int(self._requests.cells[code, Request.HISTORY_LEN])

    def _row(self, code: int) -> int:
        return int(self._requests.cells[code, Request.HISTORY_ROW])

    def _has_ended(self, code: int) -> bool:
        return bool(self._requests.cells[code, Request.HISTORY_ENDED])

    def extend(self, req: str, start: int, ids: Ints) -> None:
        """Tokens of ``req`` from position ``start`` on; positions left out stay unknown (-1)."""
        self.numbers[HistoryNumber.ANY] = 1
        known = self._find(req)
        if start == 0 and known is not None and self._has_ended(known):
            self._forget(known)  # A new request under the name of one that ended.
        code = self._get(req)
        self._revive(code)
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
            self.store.reserve(code, max(end, _FIRST_CAPACITY))[start:end] = ids
        self._requests.cells[code, Request.HISTORY_LEN] = max(length, end)

    def _tell_change(self, row: int, length: int, start: int, ids: Ints) -> None:
        """Say from which position on the tokens become others than they were."""
        if not self.known:
            return
        differs = ids != NO_EXPECTED_TOKEN
        told = max(0, min(length - start, len(ids)))
        differs[:told] = ids[:told] != self.pool[row, start : start + told]
        if differs.any():
            for known in self.known:
                known.forget_token(row, start + int(np.argmax(differs)))

    # Requests that ended, in a list through their cells.

    def end(self, req: str) -> None:
        """``req`` finished or was aborted: its tokens are kept only while there is room."""
        code = self._find(req)
        if code is None or self._has_ended(code):
            return
        cells, numbers = self._requests.cells, self.numbers
        last, length = int(numbers[HistoryNumber.ENDED_LAST]), self._length(code)
        cells[code, Request.HISTORY_ENDED] = 1
        cells[code, [Request.ENDED_TOKENS, Request.ENDED_BEFORE, Request.ENDED_AFTER]] = (
            length, last, NONE,
        )  # fmt: skip
        if last == NONE:
            numbers[HistoryNumber.ENDED_FIRST] = code
        else:
            cells[last, Request.ENDED_AFTER] = code
        numbers[HistoryNumber.ENDED_LAST] = code
        numbers[HistoryNumber.ENDED_COUNT] += 1
        numbers[HistoryNumber.ENDED_TOKENS] += length
        while (
            numbers[HistoryNumber.ENDED_TOKENS] > numbers[HistoryNumber.KEEP_TOKENS]
            and numbers[HistoryNumber.ENDED_COUNT] > 1
        ):
            self._forget(int(numbers[HistoryNumber.ENDED_FIRST]))

    def _revive(self, code: int) -> None:
        """The request goes on, or is forgotten: it has not ended."""
        if not self._has_ended(code):
            return
        cells, numbers = self._requests.cells, self.numbers
        tokens, before, after = cells[
            code, [Request.ENDED_TOKENS, Request.ENDED_BEFORE, Request.ENDED_AFTER]
        ].tolist()
        if before == NONE:
            numbers[HistoryNumber.ENDED_FIRST] = after
        else:
            cells[before, Request.ENDED_AFTER] = after
        if after == NONE:
            numbers[HistoryNumber.ENDED_LAST] = before
        else:
            cells[after, Request.ENDED_BEFORE] = before
        numbers[HistoryNumber.ENDED_COUNT] -= 1
        numbers[HistoryNumber.ENDED_TOKENS] -= tokens
        cells[code, Request.HISTORY_ENDED] = 0

    def _forget(self, code: int) -> None:
        self._revive(code)
        row = self._row(code)
        if row >= 0:
            self.row_req[row] = NONE
            for known in self.known:
                known.forget_row(row)
        self.store.drop(code)
        self._prints.pop(code, None)
        self._requests.cells[
            code, [Request.HISTORY_LEN, Request.HISTORY_ROW, Request.HISTORY_KNOWN]
        ] = 0, NONE, 0

    def bind(self, row: int, req: str) -> int:
        """Put the tokens of ``req`` into the pool's ``row``; how many positions it then has."""
        code = self._find(req)
        if code is None:
            return 0
        length = self._length(code)
        former = int(self.row_req[row])
        if former != code:
            for known in self.known:
                known.forget_row(row)
            if former != NONE:
                told = self._length(former)
                self.store.reserve(former, told)[:told] = self.pool[row, :told]
                self._requests.cells[former, Request.HISTORY_ROW] = NONE
            before = self._row(code)
            if before >= 0:
                self.row_req[before] = NONE
                self.pool[row, :length] = self.pool[before, :length]
            else:
                self.pool[row, :length] = self.store.of(code)[:length]
                self.store.drop(code)
            self.row_req[row] = code
            self._requests.cells[code, Request.HISTORY_ROW] = row
        return length

    def tokens(self, req: str) -> Ints:
        """Known tokens of ``req`` from position 0 on; -1 = unknown."""
        code = self._find(req)
        if code is None:
            return np.empty(0, dtype=np.int64)
        row = self._row(code)
        return (self.pool[row] if row >= 0 else self.store.of(code))[: self._length(code)]

    def knows_begin(self, req: str) -> bool:
        """Whether the token of ``req`` at position 0 is known."""
        return bool((self.tokens(req)[:1] >= 0).any())

    def requests(self) -> list[str]:
        """Requests whose tokens are known, oldest first."""
        serials = self._requests.cells[: len(self._requests), Request.HISTORY_KNOWN]
        known = np.flatnonzero(serials)
        order = np.argsort(serials[known], kind="stable")
        return [self._requests.names[code] for code in known[order].tolist()]

    def ended(self) -> list[str]:
        """Requests that ended and are still known, oldest first."""
        out = []
        code = int(self.numbers[HistoryNumber.ENDED_FIRST])
        while code != NONE:
            out.append(self._requests.names[code])
            code = int(self._requests.cells[code, Request.ENDED_AFTER])
        return out

    def known_kv(self, req: str) -> tuple[Ints, Ints]:
        """Positions of ``req`` with a recorded fingerprint, and the fingerprints."""
        prints = self._prints.get(self._requests.code(req))
        if prints is None:
            empty = np.empty(0, dtype=np.int64)
            return empty, empty
        positions = np.flatnonzero(prints.known)
        return positions, prints.kv[positions]

    def note_kv(self, req: str, positions: Ints, hashes: Ints) -> None:
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

    def kv(self, req: str, positions: Ints) -> tuple[Ints, NDArray[np.bool_]]:
        """Fingerprints last recorded for positions of ``req``, and which are known."""
        code = self._find(req)
        prints = None if code is None else self._prints.get(code)
        hashes = np.zeros(len(positions), dtype=np.int64)
        known = np.zeros(len(positions), dtype=np.bool_)
        if prints is not None:
            inside = positions < len(prints.kv)
            hashes[inside] = prints.kv[positions[inside]]
            known[inside] = prints.known[positions[inside]]
        return hashes, known
