"""The pool at one event: who owns what, and which rows are in use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvcanary_cli.attribution.inspect_question import Answer, Question
from kvcanary_cli.attribution.ledger import FREE, TREE, UNKNOWN

if TYPE_CHECKING:
    from kvcanary_cli.attribution.inspect_pass import Scene
    from kvcanary_cli.replay.forwards import Forward
    from kvcanary_cli.trace.segment import Segment

_MAX_OWNERS = 1000


class PoolAt(Question):
    """Owners and table rows right after one event."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at
        self._kind: str | None = None
        self._last_kind = ""
        self._before: int | None = None
        self._after: int | None = None
        self._facts: list[tuple[str, Any]] = []
        self._lengths: dict[int, tuple[str | None, int]] = {}

    def seen(self, event: int) -> bool:
        super().seen(event)
        if event < self.at:
            self._before = event
        elif event > self.at:
            if self._after is None:
                self._after = event
            self.done = True
        return not self.done

    def event(self, scene: Scene, segment: Segment, k: int, kind: str, row: int) -> None:
        self._last_kind = kind
        if kind == "row_release":
            self._lengths.pop(segment.tables[kind].get_int("row", row) or 0, None)
        elif kind == "map":
            self._mapped(segment, row)

    def begin_anew(self, event: int) -> None:
        super().begin_anew(event)
        self._lengths.clear()

    def _mapped(self, segment: Segment, row: int) -> None:
        table = segment.tables["map"]
        target, start = table.get_int("row", row) or 0, table.get_int("start", row) or 0
        slots = table.get_ints("slots", row)
        end = start + (0 if slots is None else len(slots))
        req, length = self._lengths.get(target, (None, 0))
        self._lengths[target] = (req, end) if start == 0 else (req, max(length, end))

    def forward(self, scene: Scene, forward: Forward, lanes: list[Any]) -> None:
        self._last_kind = "forward"
        for b, row in enumerate(forward.rows.tolist()):
            if row:
                length = int(forward.prefix[b] + forward.extend[b])
                self._lengths[row] = (forward.reqs[b], length)

    def after(self, scene: Scene, event: int) -> None:
        if event != self.at:
            return
        self.done = True
        self._kind, self.told_since = self._last_kind, self.known_since
        self._owners(scene)
        self._table(scene)

    def _owners(self, scene: Scene) -> None:
        pool, state = scene.header.pool, scene.follower.rules.state
        reserved = np.array(pool.reserved, dtype=np.int64)
        owner = state.owner.copy()
        owner[reserved[reserved <= pool.max_slot]] = -2
        self._facts.append(("reserved", sorted(reserved.tolist())))
        for name, code in (("free", FREE), ("not recorded", UNKNOWN), ("prefix cache", TREE)):
            self._facts.append((name, np.flatnonzero(owner == code).tolist()))
        often = state.custody.listed_often()
        if often:
            # A free that broke a rule put them there again.
            self._facts.append(("free more than once", often))
        held = [code for code in np.unique(owner).tolist() if code > TREE]
        self.left_out = max(0, len(held) - _MAX_OWNERS)
        for code in held[:_MAX_OWNERS]:
            slots = np.flatnonzero(owner == code)
            self.rows.append(
                {
                    "what": "owner",
                    "name": scene.follower.names.name(code),
                    "row": None,
                    "count": len(slots),
                    "slots": slots.tolist(),
                    "since": int(state.since[slots].max()),
                }
            )

    def _table(self, scene: Scene) -> None:
        for row, (req, length) in sorted(self._lengths.items()):
            cells = scene.table[row, :length].tolist()
            self.rows.append(
                {
                    "what": "row",
                    "name": req,
                    "row": row,
                    "count": length,
                    "slots": cells,
                    "since": None,
                }
            )

    def answer(self) -> Answer:
        if self._kind is None:
            near = [str(e) for e in (self._before, self._after) if e is not None]
            raise self.nothing(
                f"--at {self.at}: no event has that number",
                f"did you mean event {' or '.join(near)}?" if near else None,
            )
        columns = ("what", "name", "row", "count", "slots", "since")
        title = f"the pool after event {self.at} ({self._kind})"
        facts = [*self.gap_facts(), *self._facts]
        return Answer(title, facts, columns, self.rows, self.left_out)
