"""What a cut says of the slots that it begins with: who wrote them, and when."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvcanary_cli.attribution.ledger import BY_FORWARD, BY_STATE, BY_VERIFY, NOBODY, Names, Writes
from kvcanary_cli.trace.schema import DEVICE_POOLS

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from kvcanary_cli.trace.segment import Segment

    Ints = NDArray[np.int64]

NAMESPACE_PREFIX = "namespace:"


class CutRows:
    """Enters the writers that the start of a cut names.

    Args:
        names: Interned names.
        lane: Writers of a lane, by worker and pool.
    """

    def __init__(self, names: Names, lane: Callable[[str, str], Writes]) -> None:
        self._names, self._lane = names, lane

    def canary_rows(self, segment: Segment, row: int, event: int) -> None:
        table = segment.tables["canary_rows"]
        slots = table.get_ints("slots", row)
        pool = segment.text("canary_rows", "pool", row) or ""
        if slots is None or pool not in DEVICE_POOLS:
            return
        worker = segment.text("canary_rows", "worker", row) or "target"
        kind = "SWA" if pool == "swa" else "FULL"
        if segment.text("canary_rows", "half", row) != "k":
            return
        written_at, unknown = table.get_ints("written_at", row), table.get_ints("unknown", row)
        wrote = np.ones(len(slots), dtype=np.bool_) if written_at is None else written_at > 0
        if unknown is not None:
            wrote &= ~np.isin(slots, unknown)
        writes = self._lane(worker, kind)
        writes.put(slots[wrote], req=NOBODY, step=NOBODY, event=event, kind=BY_STATE)
        events, steps = table.get_ints("writer_event", row), table.get_ints("writer_step", row)
        if events is not None and steps is not None and kind == "FULL":
            writes.event[slots[wrote]] = events[wrote]
            self._restore_writers(writes, segment, row, slots, wrote & (steps >= 0))

    def _restore_writers(
        self, writes: Writes, segment: Segment, row: int, slots: Ints, known: NDArray[np.bool_]
    ) -> None:
        """Enter who wrote the ``known`` slots [n] of a ``canary_rows`` event, as the cut tells."""
        table = segment.tables["canary_rows"]

        def codes(name: str, prefix: str, nobody: int) -> NDArray[np.int32]:
            column = table.columns.get(name)
            if column is None or not column.has(row):
                return np.full(int(known.sum()), nobody, dtype=np.int32)
            texts = [None if c < 0 else segment.strings[c] for c in column.span(row)[known]]
            found = [nobody if t is None else self._names.code(prefix + t) for t in texts]
            return np.array(found, dtype=np.int32)

        def ints(name: str) -> Ints:
            values = table.get_ints(name, row)
            return np.full(len(slots), NOBODY, dtype=np.int64) if values is None else values

        mine, not_owned = slots[known], table.get_ints("not_owned", row)
        writes.req[mine] = codes("writer", "", NOBODY)
        writes.namespace[mine] = codes("namespace", NAMESPACE_PREFIX, 0)
        writes.step[mine] = ints("writer_step")[known]
        writes.position[mine] = ints("position")[known]
        writes.true_position[mine] = ints("writer_position")[known]
        writes.kind[mine] = BY_FORWARD
        verified = table.get_ints("verified", row)
        if verified is not None:
            writes.kind[mine[np.isin(mine, verified)]] = BY_VERIFY
        if not_owned is not None:
            writes.foreign[mine] = np.isin(mine, not_owned)
