"""Differences of request table rows and lookup tables between two looks at them.

A capture holds whole rows as they are right before each forward; a trace holds what changed.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

Event = dict[str, Any]


def ints(values: Any) -> list[int]:
    """A tensor, array or sequence of integers as a list; None as the empty list."""
    if values is None:
        return []
    return values.tolist() if hasattr(values, "tolist") else [int(v) for v in values]


def changed_runs(old: Sequence[int | None], new: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
    """Runs of cells of ``new`` that differ from ``old``, as (first cell, values).

    Args:
        old: Last known cells; None and cells past the end are unknown and so differ.
        new: Cells now; what ``old`` has beyond them is left alone.
    """
    start = None
    for k, (before, now) in enumerate(zip_longest(old[: len(new)], new)):
        if before != now and start is None:
            start = k
        elif before == now and start is not None:
            yield start, list(new[start:k])
            start = None
    if start is not None:
        yield start, list(new[start:])


class TableShadow:
    """What the trace has said about the request table so far."""

    def __init__(self) -> None:
        self._rows: dict[int, list[int | None]] = {}

    def show(self, row: int, cells: Sequence[int]) -> list[Event]:
        """The ``map`` events after which ``row`` begins with ``cells``."""
        known = self._rows.setdefault(row, [])
        events: list[Event] = []
        for start, slots in changed_runs(known, cells):
            events.append({"kind": "map", "row": row, "start": start, "slots": slots})
            known[start : start + len(slots)] = slots
        return events


class LutShadow:
    """What the trace has said about the full-to-SWA table so far; it starts all zero."""

    def __init__(self, slots: int) -> None:
        self._swa = [0] * (slots + 1)

    def show(self, lut: Iterable[int]) -> list[Event]:
        """The ``lut`` event after which slots 0..``slots`` translate as in ``lut``, if any."""
        now = list(lut)[: len(self._swa)]
        full = [k for k, (a, b) in enumerate(zip(self._swa, now, strict=True)) if a != b]
        self._swa = now
        return [{"kind": "lut", "full": full, "swa": [now[k] for k in full]}] if full else []


class HistoryShadow:
    """How many true tokens of each request the trace has told so far."""

    def __init__(self, tokens: dict[str, list[int]]) -> None:
        self._tokens = tokens
        self._told: dict[str, int] = {}

    def tell(self, req: str, count: int | None = None) -> list[Event]:
        """The ``history`` event after which at least ``count`` tokens are told (None: all)."""
        tokens = self._tokens[req]
        start = self._told.get(req, 0)
        stop = len(tokens) if count is None else min(count, len(tokens))
        if stop <= start:
            return []
        self._told[req] = stop
        return [{"kind": "history", "req": req, "start": start, "ids": tokens[start:stop]}]

    def told(self, req: str) -> int:
        return self._told.get(req, 0)
