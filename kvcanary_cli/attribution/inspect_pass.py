"""Reads a trace once and keeps what questions about it need: table, owners, last writers.

No canary runs: what a slot holds follows from who wrote it last. Memory follows the pool and the
request table, not the length of the trace.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvcanary_cli.attribution.follow import Follower
from kvcanary_cli.replay.forwards import read_forward
from kvcanary_cli.replay.gaps import Stretches

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvcanary_cli.attribution.inspect_question import Question
    from kvcanary_cli.replay.forwards import Forward
    from kvcanary_cli.trace.reader import TraceReader
    from kvcanary_cli.trace.segment import Segment

    Ints = NDArray[np.int64]


class Scene:
    """The trace's state at one event.

    Attributes:
        header: The trace's header.
        follower: Owners and last writers.
        table: [rows, row_len] int32 request table.
        lut: [max_slot + 1] int64 full-to-SWA table, None without translations.
    """

    def __init__(self, reader: TraceReader) -> None:
        self.header = reader.header
        pool = self.header.pool
        self.follower = Follower(self.header)
        self.table: NDArray[np.int32] = np.zeros((pool.rows, pool.row_len), dtype=np.int32)
        has_lut = pool.swa_slots and "lut" in self.header.records
        self.lut: Ints | None = np.zeros(pool.max_slot + 1, dtype=np.int64) if has_lut else None

    def apply(self, segment: Segment, k: int, kind: str, row: int) -> None:
        """Take an event other than a forward."""
        if kind == "map":
            table = segment.tables["map"]
            slots, start = table.get_ints("slots", row), table.get_int("start", row)
            target = table.get_int("row", row)
            assert slots is not None
            self.table[target, start : (start or 0) + len(slots)] = slots
        elif kind == "lut" and self.lut is not None:
            table = segment.tables["lut"]
            full, swa = table.get_ints("full", row), table.get_ints("swa", row)
            assert full is not None
            assert swa is not None
            self.lut[full] = swa
        self.follower.event(segment, k, kind, row)

    def cells(self, forward: Forward, b: int) -> Ints:
        """Slots that batch row ``b`` reads as its prefix."""
        row, length = int(forward.rows[b]), int(forward.prefix[b])
        cells = self.table[row, :length].astype(np.int64)
        as_read = forward.row_as_read.get(row)
        if as_read is not None:
            seen = np.array(as_read[:length], dtype=np.int64)
            cells[: len(seen)] = seen
        return cells

    def lanes(self, forward: Forward) -> list[Ints]:
        """For the full and, with translations, the window pool: slot of each token of a row."""
        count = len(forward.token_row)
        full: Ints = forward.out_cache_loc[:count]
        landed = {
            kind.name: tensor.numpy()[:count]
            for kind, tensor in (forward.batch.landed or {}).items()
        }
        lanes = [landed.get("FULL", full)]
        if self.lut is not None and not forward.is_draft:
            translated = np.where(full >= 0, self.lut[np.maximum(full, 0)], -1)
            lanes.append(landed.get("SWA", translated))
        return lanes

    def write(self, forward: Forward, lanes: list[Ints]) -> None:
        """Enter what a forward wrote, after its reads have been looked at."""
        codes = self.follower.req_codes(forward)
        foreign = np.zeros(len(forward.token_row), dtype=np.int64)
        self.follower.forwards.written(forward, lanes, codes, foreign, self.lut)


def ask(reader: TraceReader, question: Question) -> None:
    """Stream the trace past ``question``, which keeps the answer.

    Where events were lost, what is known begins anew, as it does for a replay.

    Raises:
        InputError: The trace cannot be used.
    """
    question.trace = reader.name
    scene = Scene(reader)
    for number, segments in enumerate(Stretches(reader)):
        if number:
            scene = Scene(reader)
        begins = number > 0
        for segment in segments:
            if question.done:
                # What follows is still read: a broken trace must not look whole.
                continue
            if begins and len(segment):
                question.begin_anew(int(segment.index[0]))
                begins = False
            _tell(scene, question, segment)
    if question.rows:
        question.tell_gaps()
    question.end(scene)


def _tell(scene: Scene, question: Question, segment: Segment) -> None:
    names = segment.kind_names
    kinds, rows = segment.kind.tolist(), segment.row.tolist()
    for k, (kind, row) in enumerate(zip(kinds, rows, strict=True)):
        name = names[kind]
        event = int(segment.index[k])
        if not question.seen(event):
            break
        if name != "forward":
            question.event(scene, segment, k, name, row)
            scene.apply(segment, k, name, row)
        elif segment.text("forward", "forward_mode", row) != "PREBUILT":
            forward = read_forward(segment, k)
            lanes = scene.lanes(forward)
            question.forward(scene, forward, lanes)
            scene.write(forward, lanes)
        question.after(scene, event)
