"""Where a cut begins and ends within a stream of segments."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvcanary_cli.errors import UsageError
from kvcanary_cli.replay.driver import UNSUPPORTED_MODES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvcanary_cli.trace.segment import Segment

#: A worker this far behind the others has stopped and is not waited for.
_LAG_STEPS = 16
_HASH_KINDS = ("kv_hash", "sidecar_hash")


class Window:
    """Steps ``first`` to ``last``, both included; None = from the beginning, to the end.

    Raises:
        UsageError: It ends before it begins.
    """

    def __init__(self, first: int | None, last: int | None) -> None:
        if first is not None and last is not None and first > last:
            raise UsageError(f"steps {first}:{last} end before they begin")
        self.first, self.last = first, last
        self.begun = first is None
        self.ended = False
        self.first_i: int | None = None
        self.steps_seen: tuple[int, int] | None = None
        self._last_step: dict[tuple[str, int | None], int] = {}

    def contains(self, step: int) -> bool:
        return (self.first is None or step >= self.first) and (
            self.last is None or step <= self.last
        )

    def text(self) -> str:
        """The range in words."""
        if self.first is None:
            return "the trace" if self.last is None else f"steps up to {self.last}"
        return (
            f"steps from {self.first}" if self.last is None else f"steps {self.first}:{self.last}"
        )

    def take(self, segment: Segment) -> tuple[int, int]:
        """Events of the next segment that lie in the window: [start, stop).

        Events before ``start`` are the past, events from ``stop`` on are not wanted. The window
        begins right before the first forward of step ``first`` or later, or before the first
        fingerprint taken for one, and ends right before the forward with which every worker is
        past ``last``.
        """
        count = len(segment)
        start = 0
        forwards, steps = _forwards(segment)
        if len(steps):
            low, high = int(steps.min()), int(steps.max())
            seen = self.steps_seen or (low, high)
            self.steps_seen = (min(low, seen[0]), max(high, seen[1]))
        if not self.begun:
            assert self.first is not None
            begins = [forwards[steps >= self.first], _early_hashes(segment, self.first)]
            start = int(np.concatenate(begins).min(initial=count))
            self.begun = start < count
        if self.first_i is None and start < count:
            self.first_i = int(segment.index[start])
        stop = self._end(segment, forwards.tolist(), steps.tolist())
        self.ended = stop is not None
        return start, count if stop is None else stop

    def _end(self, segment: Segment, forwards: list[int], steps: list[int]) -> int | None:
        """The forward with which all workers that still run are past the last step."""
        if self.last is None:
            return None
        for row, (k, step) in enumerate(zip(forwards, steps, strict=True)):
            if segment.text("forward", "forward_mode", row) in UNSUPPORTED_MODES:
                # A replay passes over it, so that nobody waits for a worker that runs only those.
                continue
            worker = segment.text("forward", "worker", row) or "target"
            draft_step = segment.tables["forward"].get_int("draft_step", row)
            self._last_step[worker, draft_step] = step
            if step > self.last and not any(
                step - _LAG_STEPS <= other <= self.last for other in self._last_step.values()
            ):
                return k
        return None


def _forwards(segment: Segment) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Event numbers and steps of the segment's forwards."""
    table = segment.tables.get("forward")
    if table is None:
        empty = np.empty(0, dtype=np.int64)
        return empty, empty
    return _places(segment, "forward"), table.columns["step"].values.astype(np.int64)


def _places(segment: Segment, kind: str) -> NDArray[np.int64]:
    return np.flatnonzero(segment.kind == segment.kind_names.index(kind)).astype(np.int64)


def _early_hashes(segment: Segment, first: int) -> NDArray[np.int64]:
    """Fingerprints of step ``first`` or later that were not taken behind a forward."""
    found = [np.empty(0, dtype=np.int64)]
    after = [code for code, text in enumerate(segment.strings) if text == "after"]
    for kind in _HASH_KINDS:
        table = segment.tables.get(kind)
        if table is not None:
            wanted = (table.columns["step"].values >= first) & ~np.isin(
                table.columns["phase"].values, after
            )
            found.append(_places(segment, kind)[wanted])
    return np.concatenate(found)


def step_changes(segment: Segment, window: Window, before: int | None) -> tuple[int, int | None]:
    """How many steps of the window begin in this segment, and its last one.

    Args:
        segment: Events to look at.
        window: The steps that count.
        before: Last step counted so far.
    """
    count = 0
    for step in _forwards(segment)[1].tolist():
        if window.contains(step) and step != before:
            count, before = count + 1, step
    return count, before
