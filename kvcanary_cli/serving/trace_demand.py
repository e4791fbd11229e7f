"""Peaks of a recorded trace: the largest forward in rows, tokens and prefix positions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvcanary_cli.serving.demand import Demand

if TYPE_CHECKING:
    from kvcanary_cli.serving.demand import Quantity
    from kvcanary_cli.trace.reader import TraceReader
    from kvcanary_cli.trace.segment import Segment


class _Peaks:
    def __init__(self, name: str) -> None:
        self.name = name
        self.best: dict[Quantity, tuple[int, int]] = {}

    def see(self, quantity: Quantity, value: int, step: int) -> None:
        if value > self.best.get(quantity, (-1, 0))[0]:
            self.best[quantity] = (value, step)

    def add(self, segment: Segment) -> None:
        table = segment.tables.get("forward")
        if table is None:
            return
        for row in range(table.rows):
            step = table.get_int("step", row) or 0
            rows = len(table.columns["reqs"].span(row))
            self.see("padded_batch_size", rows, step)
            self.see("batch_size", _real_rows(table, row, rows), step)
            positions = table.get_ints("positions", row)
            self.see("tokens", 0 if positions is None else len(positions), step)
            self.see("verify_entries", _prefix_sum(segment, table, row), step)


def _real_rows(table: Any, row: int, rows: int) -> int:
    raw = table.get_int("raw_bs", row) if "raw_bs" in table.columns else None
    return rows if raw is None else int(raw)


def _prefix_sum(segment: Segment, table: Any, row: int) -> int:
    """Positions that the rows of a forward read, as the canary counts them."""
    prefix = table.get_ints("extend_prefix_lens", row)
    if prefix is not None:
        return int(prefix.clip(min=0).sum())
    lengths = table.get_ints("seq_lens", row)
    if lengths is None:
        return 0
    decode = segment.text("forward", "forward_mode", row) in ("DECODE", "IDLE")
    return int((lengths - 1 if decode else lengths).clip(min=0).sum())


def trace_demands(reader: TraceReader) -> list[Demand]:
    """Read a trace once for its peaks.

    Raises:
        TraceError: The trace cannot be used.
    """
    peaks = _Peaks(reader.name)
    for segment in reader.segments():
        peaks.add(segment)
    return [
        Demand(quantity, value, f"{reader.name} step {step}", True)
        for quantity, (value, step) in peaks.best.items()
    ]
