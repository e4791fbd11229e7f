"""Events that change the pool as the trace tells it: table, translations, histories, prefixes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvcanary_cli.replay import cut_restore
from kvcanary_cli.trace.schema import TREE_OWNER

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcanary_cli.replay.pool import PoolState
    from kvcanary_cli.trace.segment import Segment

    Handler = Callable[[Segment, int, int], None]


class PoolEvents:
    """Applies events to a ``PoolState``. None of them touches canary rows or KV bytes."""

    def __init__(self, pool: PoolState) -> None:
        self.pool = pool

    def handlers(self) -> dict[str, Handler]:
        """Event kind to what applies it: (segment, event number in it, row of its table)."""
        return {
            "map": self._map,
            "free": self._free,
            "own": self._own,
            "history": self._history,
            "finish": self._end,
            "abort": self._end,
            "retract": self._leave,
            "row_release": self._leave,
            "publish": self._publish,
            "unpublish": self._unpublish,
            "lut": self._lut,
        }

    def _map(self, segment: Segment, k: int, row: int) -> None:
        table = segment.tables["map"]
        slots = table.get_ints("slots", row)
        target, start = table.get_int("row", row), table.get_int("start", row)
        assert slots is not None
        assert target is not None
        assert start is not None
        for known in self.pool.known:
            known.map(target, start, slots)
        self.pool.table[target, start : start + len(slots)] = slots
        req = segment.text("map", "req", row)
        if req is not None:
            self.pool.row_of[req] = target

    def _lut(self, segment: Segment, k: int, row: int) -> None:
        table = segment.tables["lut"]
        full, swa = table.get_ints("full", row), table.get_ints("swa", row)
        assert full is not None
        assert swa is not None
        self.pool.set_lut(full, swa)

    def _history(self, segment: Segment, k: int, row: int) -> None:
        table = segment.tables["history"]
        ids = table.get_ints("ids", row)
        assert ids is not None
        if self.pool.histories is not None:
            req = segment.text("history", "req", row) or ""
            self.pool.histories.extend(req, table.get_int("start", row) or 0, ids)
            cut_restore.restore_position_prints(self.pool.histories, segment, row)

    def _end(self, segment: Segment, k: int, row: int) -> None:
        req = segment.text(segment.kind_of(k), "req", row) or ""
        self._leave(segment, k, row)
        self.pool.requests.end(req)
        if self.pool.histories is not None:
            self.pool.histories.end(req)

    def _leave(self, segment: Segment, k: int, row: int) -> None:
        """A request is done with its row, for now or for good: what is known of it is of no use."""
        req = segment.text(segment.kind_of(k), "req", row) or ""
        table_row = self.pool.row_of.get(req)
        if table_row is not None:
            for known in self.pool.known:
                known.leave(table_row, req)

    def _free(self, segment: Segment, k: int, row: int) -> None:
        slots = segment.tables["free"].get_ints("slots", row)
        if slots is not None and segment.text("free", "owner", row) == TREE_OWNER:
            self.pool.prefixes.drop_slots(slots)

    def _own(self, segment: Segment, k: int, row: int) -> None:
        entry = (
            segment.text("own", "entry", row) if "entry" in segment.tables["own"].columns else None
        )
        if entry is None or segment.text("own", "owner", row) != TREE_OWNER:
            return
        slots = segment.tables["own"].get_ints("slots", row)
        assert slots is not None
        cells = self.pool.row_cells(segment.text("own", "from", row) or "")
        # Moved slots may be the end of a path only: without a row their positions are unknown.
        self.pool.prefixes.publish(
            entry,
            slots,
            np.empty(0, dtype=np.int32) if cells is None else cells,
            int(segment.index[k]),
        )

    def _publish(self, segment: Segment, k: int, row: int) -> None:
        table = segment.tables["publish"]
        slots = table.get_ints("slots", row)
        entry = segment.text("publish", "entry", row) or ""
        if slots is None:
            return
        start = table.get_int("start", row)
        if start is not None:
            prev_slot = table.get_int("prev_slot", row)
            prev_slot = -1 if prev_slot is None else prev_slot
            self.pool.prefixes.place(entry, slots, start, prev_slot, table.get_ints("gone", row))
            return
        req = segment.text("publish", "req", row)
        cells = None if req is None else self.pool.row_cells(req)
        self.pool.prefixes.publish(entry, slots, cells, int(segment.index[k]))

    def _unpublish(self, segment: Segment, k: int, row: int) -> None:
        self.pool.prefixes.unpublish(segment.text("unpublish", "entry", row) or "")
