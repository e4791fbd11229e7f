"""What incremental verification knows of a lane: which table cells need no second look.

The verdict of a cell rests on its slot's row and KV bytes, on those of the slot before it, on the
cell itself, on the token expected there, and for whoever watches on the slot's owner. As long as
none of them changes a forward need not check the cell again. Known are always the leading cells of
a row: whatever changes takes the knowledge of a cell, and of all behind it. Known cells that
failed, or could not be checked in full, are looked at again each time, so that every forward tells
of them as if it had checked everything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kvcanary_cli.replay.requests import NONE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvcanary_cli.abi.plans import VerifyPlan
    from kvcanary_cli.replay.forwards import Forward
    from kvcanary_cli.replay.requests import Requests

    Ints = NDArray[np.int64]

NEVER = np.iinfo(np.int64).min


@dataclass(slots=True)
class Entries:
    """The entries of a forward that are checked, of all that it reads.

    Attributes:
        batch_rows: [n] batch row of each.
        positions: [n] position of each.
        index: [n] number of each among all entries.
        slots: [n] slot of each.
        total: All entries.
        skipped: Known entries that are left out.
        skipped_tokens: Those of them that have a token to compare.
        again: [n] bool, or None: which are to be looked at again next time.
        tokens: [n] expected token of each as planned, -1 = none.
    """

    batch_rows: Ints
    positions: Ints
    index: Ints
    slots: Ints
    tokens: Ints
    total: int
    skipped: int
    skipped_tokens: int
    again: NDArray[np.bool_]

    def mark(self, mask: NDArray[np.bool_]) -> None:
        """Entries of ``mask`` [n] are looked at again next time."""
        self.again |= mask


class Known:
    """Known cells of one lane. The request table and the token pool belong to the replay.

    Args:
        records: [slots] ``LANE`` records of the lane.
        table: [rows, row_len] int32 request table.
        pool: [rows, row_len] int64 true tokens by table row, or None.
        token_offset: History position of a cell's token, less the cell's position.
        requests: Numbers of requests.

    Attributes:
        checked: [rows] leading cells of each row that are known.
        refs: [slots] int32, known cells that hold each slot; ``mapper`` of its record is the newest
            of them, row * row_len + position.
        records: [slots] ``LANE``, where it keeps what is by slot.
        tokens_known: [rows] known cells with a token to compare.
        limits: [rows] length of the history when the row was last looked at.
        tenants: [rows] request that the row's cells are known for, -1 = none.
        again: [rows] how many known cells are looked at each time.
        read_events: [slots] last forward that read the slot and found nothing, as far as
            ``settle`` has brought it; None = nobody wants to know.
        row_read, read_len: [rows] last forward that read the leading cells of the row and found
            nothing, and how many of them it read.
    """

    def __init__(
        self,
        *,
        records: NDArray[Any],
        table: NDArray[np.int32],
        pool: Ints | None,
        token_offset: int,
        requests: Requests,
    ) -> None:
        rows, row_len = table.shape
        num_slots = len(records)
        self.num_slots, self.num_rows, self.row_len = num_slots, rows, row_len
        self.checked = np.zeros(rows, dtype=np.int64)
        self.records = records
        self.tokens_known = np.zeros(rows, dtype=np.int64)
        self.limits = np.zeros(rows, dtype=np.int64)
        self.row_read = np.full(rows, NEVER, dtype=np.int64)
        self.read_len = np.zeros(rows, dtype=np.int64)
        self.read_events: Ints | None = None
        self._addresses: tuple[int, ...] | None = None
        self._marks: NDArray[np.uint8] = np.zeros(num_slots, dtype=np.uint8)
        self._table, self._pool, self._token_offset = table, pool, token_offset
        # Table row to positions of known cells that are looked at each time.
        self._again: dict[int, Ints] = {}
        self.again = np.zeros(rows, dtype=np.int64)
        self.tenants = np.full(rows, NONE, dtype=np.int64)
        self._requests = requests
        self._skipped = np.zeros(3, dtype=np.int64)

    # What takes knowledge away.

    def forget_from(self, row: int, position: int) -> None:
        """Cells of ``row`` from ``position`` on must be checked again."""
        if position < self.checked[row]:
            from kvcanary_cli.backends.cpu.known import forget_from

            forget_from(row, max(0, position), *self._state())

    def holds(self, slots: Ints) -> bool:
        """Whether known cells hold any of ``slots``."""
        return bool(self.refs[slots].any())

    def forget_slots(self, slots: Ints) -> None:
        """Something of ``slots`` [n] changed: cells that hold them must be checked again."""
        if not self.holds(slots):
            return
        from kvcanary_cli.backends.cpu.known import forget_slots

        slots = np.ascontiguousarray(slots, dtype=np.int64)
        forget_slots(
            len(slots),
            slots.ctypes.data,
            self.num_slots,
            self.num_rows,
            self._marks.ctypes.data,
            *self._state(),
        )

    def map(self, row: int, start: int, slots: Ints) -> None:
        """Cells of ``row`` from ``start`` on are about to hold ``slots``."""
        known = int(self.checked[row]) - start
        if known > 0:
            part = slots[:known]
            differs = self._table[row, start : start + len(part)] != part
            if differs.any():
                self.forget_from(row, start + int(np.argmax(differs)))

    def forget_token(self, row: int, position: int) -> None:
        """Tokens of ``row`` from history position ``position`` on are about to change."""
        self.forget_from(row, position - self._token_offset)

    def forget_row(self, row: int) -> None:
        self.forget_from(row, 0)

    def leave(self, row: int, req: str) -> None:
        """``req`` is done with ``row``: what is known of it is of no use any more."""
        if self.tenants[row] == self._requests.code(req):
            self.forget_from(row, 0)

    def _state(self) -> tuple[int, ...]:
        if self._addresses is not None:
            return self._addresses
        pool = self._pool
        self._addresses = (
            self._table.ctypes.data,
            self.row_len,
            self.records.ctypes.data,
            self.checked.ctypes.data,
            self.tokens_known.ctypes.data,
            self.limits.ctypes.data,
            0 if pool is None else pool.ctypes.data,
            0 if pool is None else pool.shape[1],
            self._token_offset,
            int(self.read_events is not None),
            self.row_read.ctypes.data,
            self.read_len.ctypes.data,
        )
        return self._addresses

    @property
    def refs(self) -> NDArray[np.int32]:
        refs: NDArray[np.int32] = self.records["refs"]
        return refs

    def keep_reads(self) -> Ints:
        """Keep who read what last; ``read_events``, to be filled with what is known of that."""
        reads: Ints = self.records["read"]
        self.read_events, self._addresses = reads, None
        return reads

    def move_records(self, records: NDArray[Any]) -> None:
        """Go on with ``records``, which say the same; who keeps the events of reads does not."""
        assert self.read_events is None
        self.records, self._addresses = records, None

    # A forward.

    def prepare(self, forward: Forward, written: Ints, lens: Ints | None) -> None:
        """Forget what this forward reads otherwise than the last one, and what it changes itself.

        Args:
            forward: About to be planned; no two of its rows share a table row.
            written: Slots whose bytes it changes, those of padding rows included; negative = none.
            lens: [bs] known history of each row, None = no tokens are compared.
        """
        rows = forward.rows
        for b, (row, req) in enumerate(zip(rows.tolist(), forward.reqs, strict=True)):
            if row <= 0 or row >= self.num_rows:
                continue
            code = NONE if req is None else self._requests.code(req)
            if self.tenants[row] != code:
                self.forget_from(row, 0)
                self.tenants[row] = code
            elif forward.prefix[b] < self.checked[row]:
                self.forget_from(row, int(forward.prefix[b]))
            limit = 0 if lens is None else int(lens[b])
            if limit < self.limits[row]:
                self.forget_from(row, 0)
            self.limits[row] = limit
        inside = written[(written > 0) & (written < self.num_slots)]
        self.forget_slots(inside)

    def room(self, forward: Forward) -> int:
        """Most entries that ``plan`` can give."""
        rows = forward.rows
        inside = (rows > 0) & (rows < self.num_rows)
        rows = rows[inside]
        again = sum(len(self._again[row]) for row in rows.tolist() if row in self._again)
        return again + int((forward.prefix[inside] - self.checked[rows]).clip(min=0).sum())

    def plan(self, forward: Forward, lens: Ints | None, plan: VerifyPlan) -> Entries:
        """Fill ``plan`` with what is to be checked.

        Args:
            forward: Prepared.
            lens: As in ``prepare``.
            plan: Has ``room`` for it.
        """
        from kvcanary_cli.backends.cpu.known import plan_unknown

        capacity = plan.capacity
        batch_rows, index = np.empty((2, max(1, self.room(forward))), dtype=np.int64)
        offsets, again = self._again_of(forward.rows)
        rows, prefix = _contiguous(forward.rows), _contiguous(forward.prefix)
        valid = None if lens is None or self._pool is None else _contiguous(lens)
        count = plan_unknown(
            len(rows),
            rows.ctypes.data,
            prefix.ctypes.data,
            self.num_rows,
            self.checked.ctypes.data,
            self._table.ctypes.data,
            self.row_len,
            0 if self._pool is None else self._pool.ctypes.data,
            0 if self._pool is None else self._pool.shape[1],
            0 if valid is None else valid.ctypes.data,
            self._token_offset,
            0 if offsets is None else offsets.ctypes.data,
            0 if again is None else again.ctypes.data,
            plan.verify_slot_indices.data_ptr(),
            plan.verify_expected_tokens.data_ptr(),
            plan.verify_expected_positions.data_ptr(),
            plan.verify_prev_slot_indices.data_ptr(),
            batch_rows.ctypes.data,
            index.ctypes.data,
            self._skipped.ctypes.data,
        )
        assert count <= capacity
        plan.verify_num_valid.fill_(count)
        plan.enable.fill_(1)
        skipped, less_tokens, total = self._skipped.tolist()
        known = rows[(rows > 0) & (rows < self.num_rows)]
        return Entries(
            batch_rows=batch_rows[:count],
            positions=plan.verify_expected_positions[:count].numpy().copy(),
            index=index[:count],
            slots=plan.verify_slot_indices[:count].numpy().copy(),
            tokens=plan.verify_expected_tokens[:count].numpy().copy(),
            total=total,
            skipped=skipped,
            skipped_tokens=int(self.tokens_known[known].sum()) + less_tokens,
            again=np.zeros(count, dtype=np.bool_),
        )

    def _again_of(self, rows: Ints) -> tuple[Ints | None, Ints | None]:
        """Known cells to look at again, by batch row; None = there are none."""
        if not self._again:
            return None, None
        empty = np.empty(0, dtype=np.int64)
        parts = []
        for row in rows.tolist():
            part = self._again.get(row, empty)
            parts.append(part[part < self.checked[row]] if len(part) else empty)
        offsets = np.zeros(len(parts) + 1, dtype=np.int64)
        np.cumsum([len(part) for part in parts], out=offsets[1:])
        if not offsets[-1]:
            return None, None
        return offsets, np.concatenate(parts)

    def learn(self, forward: Forward, entries: Entries) -> None:
        """The entries have been checked; those marked ``again`` failed or were not checked in full.

        Args:
            forward: The forward.
            entries: From ``plan``.
        """
        from kvcanary_cli.backends.cpu.known import learn

        rows = _contiguous(forward.rows)
        learn(
            len(entries.index),
            rows.ctypes.data,
            entries.batch_rows.ctypes.data,
            entries.slots.ctypes.data,
            entries.tokens.ctypes.data,
            entries.positions.ctypes.data,
            self.row_len,
            self.records.ctypes.data,
            self.checked.ctypes.data,
            self.tokens_known.ctypes.data,
        )
        if self._again or entries.again.any():
            self._keep_again(rows, entries)

    def _keep_again(self, rows: Ints, entries: Entries) -> None:
        marked = np.flatnonzero(entries.again)
        table_rows = rows[entries.batch_rows[marked]]
        for row in rows.tolist():
            self._again.pop(row, None)
            self.again[row] = 0
        for row in np.unique(table_rows).tolist():
            positions = entries.positions[marked[table_rows == row]]
            kept = positions[positions < self.checked[row]]
            if len(kept):
                self._again[row] = kept
                self.again[row] = len(kept)

    # Who read what last.

    def note_read(self, forward: Forward) -> None:
        """A forward that was planned here found nothing in what it read."""
        rows = forward.rows
        rows = rows[(rows > 0) & (rows < self.num_rows)]
        self.row_read[rows], self.read_len[rows] = forward.event, self.checked[rows]

    def settle(self, rows: Ints | None = None) -> None:
        """Bring ``read_events`` up to date for the known cells of ``rows`` (None = all)."""
        if self.read_events is None:
            return
        every = np.flatnonzero(self.row_read != NEVER) if rows is None else rows
        for row in every.tolist():
            event = int(self.row_read[row])
            if event == NEVER:
                continue
            slots = self._table[row, : min(self.checked[row], self.read_len[row])]
            slots = slots[slots > 0]
            self.read_events[slots] = np.maximum(self.read_events[slots], event)
            self.row_read[row] = NEVER


def _contiguous(values: Ints) -> Ints:
    return np.ascontiguousarray(values, dtype=np.int64)
