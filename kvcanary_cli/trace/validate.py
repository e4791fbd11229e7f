"""Validation of a stream of segments: what a reader must refuse (docs/trace-format.md).

Checks are array operations over the columns of a segment; nothing here makes one Python object
per token.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

from kvcanary_cli.trace.bounds import Bounds
from kvcanary_cli.trace.errors import TraceError
from kvcanary_cli.trace.notes import RecordingEnd
from kvcanary_cli.trace.problems import KindView, Problems
from kvcanary_cli.trace.schema import KINDS, MAX_KINDS, RECORDING_FAMILY, WORKERS
from kvcanary_cli.trace.segment import EXTRA
from kvcanary_cli.trace.validate_events import check_events
from kvcanary_cli.trace.validate_forward import check_forwards

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvcanary_cli.trace.header import TraceHeader
    from kvcanary_cli.trace.located import LocatedSegment
    from kvcanary_cli.trace.notes import TraceNotes
    from kvcanary_cli.trace.segment import Segment

_HINT = "the trace contradicts itself or its header; see docs/trace-format.md, section Refusals"


def check_columns(segment: Segment, bounds: Bounds) -> Problems:
    """What is wrong with a segment by itself, whatever came before it."""
    problems = Problems()
    problems.counts_up = _counts_up(segment.index)
    for name in segment.tables:
        if name in KINDS:
            view = KindView(segment, name, problems)
            if name == "forward":
                check_forwards(view, bounds)
            else:
                check_events(view, bounds)
    return problems


class StreamValidator:
    """Validates segments in trace order.

    Args:
        header: The trace's header.
        notes: Gets what is odd but not refused.

    Attributes:
        events: Events checked so far.
        forwards: Forwards among them.
        tokens: Entries of their ``out_cache_loc``.
        bounds: The ranges that the header gives.
    """

    def __init__(self, header: TraceHeader, notes: TraceNotes) -> None:
        self.bounds = Bounds(header.pool)
        self._records = header.records
        self._notes = notes
        self._last_i: int | None = None
        # A cut for some requests leaves events out on purpose; it names what was lost before.
        cut = header.raw.get("cut")
        self._gaps_are_lost = not isinstance(cut, dict) or cut.get("reqs") is None
        if isinstance(cut, dict) and isinstance(cut.get("gaps"), list):
            for gap in cut["gaps"]:
                if isinstance(gap, list) and [type(i) for i in gap] == [int, int]:
                    notes.add_gap(*gap)
        self._last_step: dict[tuple[str, int], int] = {}
        self.events = 0
        self.forwards = 0
        self.tokens = 0

    def check(self, located: LocatedSegment, within: Problems | None = None) -> None:
        """Check the next segment.

        Args:
            located: The segment.
            within: What ``check_columns`` found in it; None = it is asked here.

        Raises:
            TraceError: An event must be refused; the first such event is named.
        """
        segment = located.segment
        if not len(segment):
            return
        if within is None:
            within = check_columns(segment, self.bounds)
        problems = Problems()
        self._check_index(segment, problems, counts_up=within.counts_up)
        problems.merge(within)
        if "forward" in segment.tables:
            self._check_steps(KindView(segment, "forward", problems))
        if problems.event is not None:
            raise TraceError(located.where(problems.event), problems.what, hint=_HINT)
        self._count(located)

    def _check_index(self, segment: Segment, problems: Problems, *, counts_up: bool) -> None:
        index = segment.index
        if counts_up and (self._last_i is None or int(index[0]) == self._last_i + 1):
            self._last_i = int(index[-1])
            return
        if self._last_i is not None:
            index = np.concatenate([np.array([self._last_i], dtype=np.int64), index])
        before, after = index[:-1], index[1:]
        skipped = len(segment) - len(after)
        back = after <= before
        if back.any():
            at = int(back.argmax())
            problems.add(
                at + skipped,
                f"'i' goes from {before[at]} to {after[at]}, expected it to grow with every event",
            )
            return
        # Two's complement differences: right even where the numbers are 2**63 apart.
        if self._gaps_are_lost:
            for at in np.flatnonzero(after - before != 1).tolist():
                self._notes.add_gap(int(before[at]), int(after[at]))
        self._last_i = int(index[-1])

    def _check_steps(self, view: KindView) -> None:
        steps = view.table.columns["step"].values
        if not len(steps):
            return
        if view.column("worker") is None and view.column("draft_step") is None:
            self._check_lane(view, WORKERS[0], -1, steps, None)
            return
        workers = np.zeros(len(steps), dtype=np.int64)
        column = view.column("worker")
        if column is not None:
            draft = [c for c, text in enumerate(view.segment.strings) if text == "draft"]
            workers = (np.isin(column.values, draft) & view.present("worker")).astype(np.int64)
        draft_steps = np.full(len(steps), -1, dtype=np.int64)
        column = view.column("draft_step")
        if column is not None:
            draft_steps = np.where(view.present("draft_step"), column.values, -1)
        lanes = np.unique(np.stack([workers, draft_steps]), axis=1)
        for worker, draft_step in lanes.T.tolist():
            rows = np.flatnonzero((workers == worker) & (draft_steps == draft_step))
            self._check_lane(view, WORKERS[worker], draft_step, steps[rows], rows)

    def _check_lane(
        self,
        view: KindView,
        worker: str,
        draft_step: int,
        steps: NDArray[np.int64],
        rows: NDArray[np.int64] | None,
    ) -> None:
        """Check that the steps of one worker and draft step (-1: none) grow.

        Args:
            view: The forwards.
            worker: Which worker.
            draft_step: Which draft step.
            steps: Steps of its forwards.
            rows: Which rows those are, None = all.
        """
        last = self._last_step.get((worker, draft_step))
        bad = np.zeros(len(steps), dtype=np.bool_)
        bad[1:] = steps[1:] <= steps[:-1]
        bad[0] = last is not None and int(steps[0]) <= last
        if bad.any():
            at = int(bad.argmax())
            before = last if at == 0 else int(steps[at - 1])
            lane = worker if draft_step < 0 else f"{worker}, draft step {draft_step}"
            view.fail(
                at if rows is None else int(rows[at]),
                f"field 'step' goes from {before} to {steps[at]} (worker {lane}), "
                "expected it to grow",
            )
        self._last_step[worker, draft_step] = int(steps[-1])

    def _count(self, located: LocatedSegment) -> None:
        segment = located.segment
        self.events += len(segment)
        for name, table in segment.tables.items():
            spec = KINDS.get(name)
            if spec is None:
                _add(self._notes.unknown_kinds, name, table.rows)
                if len(self._notes.unknown_kinds) > MAX_KINDS:
                    raise TraceError(
                        located.where(0),
                        f"more than {MAX_KINDS} unknown kinds of event up to here",
                        hint="is this a trace of kvcanary?",
                    )
                continue
            if name == "recording_ended":
                self._note_end(segment)
            if spec.family not in self._records and spec.family != RECORDING_FAMILY:
                _add(self._notes.undeclared, spec.family, table.rows)
            extra = table.columns.get(EXTRA)
            if extra is not None:
                have = extra.values if extra.present is None else extra.values[extra.present]
                codes, counts = np.unique(have, return_counts=True)
                for code, count in zip(codes.tolist(), counts.tolist(), strict=True):
                    for field_name in json.loads(segment.strings[code]):
                        _add(self._notes.unknown_fields, f"{name}.{field_name}", count)
        forward = segment.tables.get("forward")
        if forward is not None:
            self.forwards += forward.rows
            self.tokens += len(forward.columns["out_cache_loc"].values)

    def _note_end(self, segment: Segment) -> None:
        """Keep where and why the recorder gave up, as its last word says."""
        last = segment.tables["recording_ended"].rows - 1
        at = segment.kind == segment.kind_names.index("recording_ended")
        refused = segment.json("recording_ended", "refused", last)
        self._notes.ended = RecordingEnd(
            int(segment.index[np.flatnonzero(at)[-1]]),
            segment.text("recording_ended", "reason", last) or "",
            refused if isinstance(refused, dict) else None,
        )


#: Distinct names that the notes count one by one.
_MAX_NAMES = 2 * MAX_KINDS


def _add(counts: dict[str, int], key: str, count: int) -> None:
    if key not in counts and len(counts) >= _MAX_NAMES:
        key = "(others)"
    counts[key] = counts.get(key, 0) + count


def _counts_up(index: NDArray[np.int64]) -> bool:
    """Whether the numbers of a segment's events go up by one, as nearly all do."""
    if not len(index) or int(index[-1]) - int(index[0]) != len(index) - 1:
        return False
    return bool((index[1:] > index[:-1]).all())
