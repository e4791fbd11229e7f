"""One request, one row of the request table, one step."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

import numpy as np

from kvcanary_cli.attribution.context import transfer_key
from kvcanary_cli.attribution.inspect_question import Answer, Question
from kvcanary_cli.trace.schema import TREE_OWNER

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvcanary_cli.attribution.inspect_pass import Scene
    from kvcanary_cli.replay.forwards import Forward
    from kvcanary_cli.trace.segment import Segment

    Ints = NDArray[np.int64]

# Names remembered for "did you mean".
_MAX_NAMES = 20_000
_COLUMNS = ("event", "step", "what", "row", "positions", "slots", "note")
# Kind to the fields that name a request and the list field that is told with it.
_KINDS: dict[str, tuple[tuple[str, ...], str | None]] = {
    "alloc": (("owner",), "slots"),
    "free": (("owner",), "slots"),
    "own": (("from", "owner"), "slots"),
    "publish": (("req",), "slots"),
    "match": (("req",), "slots"),
    "finish": (("req",), None),
    "retract": (("req",), None),
    "abort": (("req",), None),
    "row_release": (("req",), None),
    "fork": (("parent", "child"), "shared"),
    "accept": (("req",), "nodes"),
    "copy": (("by",), "dst"),
    "transfer_begin": (("req",), "slots"),
    "deferred_write": (("req",), None),
    "launch": (("req",), "slots"),
}
_NOTES = ("reason", "entry", "via", "id", "parent", "child", "from", "owner")


class RequestLife(Question):
    """Rows, steps, slots and events of one request. Decodes that follow each other are folded."""

    columns = _COLUMNS

    def __init__(self, req: str) -> None:
        super().__init__()
        self.req = req
        self._names: dict[str, None] = {}
        self._rows: set[int] = set()
        self._slots: set[int] = set()
        self._steps: list[int] = []
        self._history = 0
        self._run: dict[str, Any] | None = None
        # Ids of its transfers under way.
        self._transfers: set[str] = set()

    def event(self, scene: Scene, segment: Segment, k: int, kind: str, row: int) -> None:
        if kind == "history":
            name = segment.text("history", "req", row)
            self._remember(name)
            if name == self.req:
                table = segment.tables["history"]
                ids = table.get_ints("ids", row)
                assert ids is not None
                end = (table.get_int("start", row) or 0) + len(ids)
                self._history = max(self._history, end)
            return
        if kind in ("transfer_end", "transfer_fail"):
            self._transfer_over(segment, k, kind, row)
            return
        known = _KINDS.get(kind)
        if known is None:
            return
        fields, listed = known
        table = segment.tables[kind]
        names = [segment.text(kind, f, row) for f in fields if f in table.columns]
        for name in names:
            self._remember(name)
        if self.req not in names:
            return
        if kind == "transfer_begin":
            key = transfer_key(segment.json(kind, "id", row))
            self._transfers |= set() if key is None else {key}
        slots = table.get_ints(listed, row) if listed is not None else None
        notes = []
        for name in _NOTES:
            column = table.columns.get(name)
            if column is not None and column.has(row):
                value = segment.value(column, row)
                if value is not None and value != self.req:
                    notes.append(f"{name} {value}")
        if kind == "alloc" and slots is not None:
            self._slots.update(slots.tolist())
        if (
            kind in ("alloc", "launch")
            and self._run is not None
            and (slots is None or len(slots) == 1)
        ):
            # What belongs to a run of decodes needs no line of its own.
            return
        self._run = None
        self.add(
            {
                "event": int(segment.index[k]),
                "step": table.get_int("step", row),
                "what": kind,
                "row": table.get_int("row", row),
                "positions": None,
                "slots": None if slots is None or kind == "accept" else slots.tolist(),
                "note": ", ".join(notes),
            }
        )

    def _transfer_over(self, segment: Segment, k: int, kind: str, row: int) -> None:
        """The end of a transfer names its id alone."""
        key = transfer_key(segment.json(kind, "id", row))
        if key is None or key not in self._transfers:
            return
        self._transfers.discard(key)
        column, notes = segment.tables[kind].columns.get("reason"), [f"id {key}"]
        if column is not None and column.has(row):
            notes.append(f"reason {segment.value(column, row)}")
        self._run = None
        line: dict[str, Any] = {"event": int(segment.index[k]), "step": None, "what": kind}
        line |= {"row": None, "positions": None, "slots": None, "note": ", ".join(notes)}
        self.add(line)

    def forward(self, scene: Scene, forward: Forward, lanes: list[Ints]) -> None:
        for b, req in enumerate(forward.reqs):
            self._remember(req)
            if req != self.req:
                continue
            mine = forward.token_row == b
            written = lanes[0][mine]
            self._rows.add(int(forward.rows[b]))
            self._slots.update(written[written > 0].tolist())
            if not self._steps or self._steps[-1] != forward.step:
                self._steps = [*self._steps[:1], forward.step]
            positions = forward.positions[: len(forward.token_row)][mine]
            what = forward.mode.name + (" (draft)" if forward.is_draft else "")
            run = self._run
            if run is not None and run["what"] == what and run["row"] == int(forward.rows[b]):
                run["times"] += 1
                run["last"] = (forward.event, forward.step)
                run["positions"] += positions.tolist()
                run["slots"] += written.tolist()
                continue
            line = {
                "event": forward.event,
                "step": forward.step,
                "what": what,
                "row": int(forward.rows[b]),
                "positions": positions.tolist(),
                "slots": written.tolist(),
                "note": f"prefix {int(forward.prefix[b])}",
                "times": 1,
                "last": (forward.event, forward.step),
            }
            self._run = line
            self.add(line)

    def begin_anew(self, event: int) -> None:
        super().begin_anew(event)
        self._run = None
        self._transfers.clear()

    def _remember(self, name: str | None) -> None:
        if name is not None and name != TREE_OWNER and len(self._names) < _MAX_NAMES:
            self._names[name] = None

    def answer(self) -> Answer:
        if not self.rows and not self._history:
            near = difflib.get_close_matches(self.req, self._names, n=3)
            hint = f"did you mean {', '.join(near)}?" if near else None
            if hint is None and self._names:
                hint = f"the trace names {', '.join(list(self._names)[:5])}, ..."
            raise self.nothing(f"--req {self.req}: no event names this request", hint)
        for line in self.rows:
            times, last = line.pop("times", 1), line.pop("last", None)
            if times > 1:
                line["note"] += f", {times} forwards until event {last[0]} (step {last[1]})"
        steps = None
        if self._steps:
            steps = [self._steps[0], self._steps[-1]]
        facts: list[tuple[str, Any]] = [
            ("rows", sorted(self._rows)),
            ("first and last step", steps),
            ("slots", sorted(self._slots)),
            ("history", self._history),
        ]
        title = "the prefix cache (tree)" if self.req == TREE_OWNER else f"request {self.req}"
        return Answer(title, facts, _COLUMNS, self.rows, self.left_out)


class RowLife(Question):
    """Who ran in one row of the request table, and what set its cells."""

    columns = ("event", "step", "what", "who", "cells", "slots", "note")

    def __init__(self, row: int) -> None:
        super().__init__()
        self.row = row
        self._run: dict[str, Any] | None = None
        self._used: set[int] = set()
        self._last_row = 0

    def event(self, scene: Scene, segment: Segment, k: int, kind: str, row: int) -> None:
        if kind not in ("map", "row_release"):
            return
        table = segment.tables[kind]
        target = table.get_int("row", row)
        if target is not None and len(self._used) < _MAX_NAMES:
            self._used.add(target)
        if target != self.row:
            return
        slots = table.get_ints("slots", row) if kind == "map" else None
        start = table.get_int("start", row) or 0
        run = self._run
        grows = run is not None and run["cells"] and start == run["cells"][-1] + 1
        if grows and slots is not None and len(slots) == 1:
            # The cell that the next decode needs belongs to its run.
            return
        self._run = None
        who = segment.text(kind, "req", row) if "req" in table.columns else None
        cells = None if slots is None else list(range(start, start + len(slots)))
        listed = None if slots is None else slots.tolist()
        self._line(int(segment.index[k]), None, kind, who, cells, listed)

    def forward(self, scene: Scene, forward: Forward, lanes: list[Ints]) -> None:
        for b in np.flatnonzero(forward.rows == self.row).tolist():
            if not self.row:
                continue
            self._used.add(self.row)
            req = forward.reqs[b]
            what = forward.mode.name + (" (draft)" if forward.is_draft else "")
            mine = forward.token_row == b
            run = self._run
            if run is not None and (run["what"], run["who"]) == (what, req):
                run["times"] += 1
                run["last"] = (forward.event, forward.step)
                run["cells"] += forward.true_positions[mine].tolist()
                run["slots"] += lanes[0][mine].tolist()
                continue
            line = self._line(
                forward.event,
                forward.step,
                what,
                req,
                forward.true_positions[mine].tolist(),
                lanes[0][mine].tolist(),
            )
            line |= {"times": 1, "last": (forward.event, forward.step)}
            line["note"] = f"prefix {int(forward.prefix[b])}"
            self._run = line

    def begin_anew(self, event: int) -> None:
        super().begin_anew(event)
        self._run = None

    def _line(
        self,
        event: int,
        step: int | None,
        what: str,
        who: str | None,
        cells: list[int] | None,
        slots: list[int] | None,
    ) -> dict[str, Any]:
        line: dict[str, Any] = {"event": event, "step": step, "what": what, "who": who}
        line |= {"cells": cells, "slots": slots, "note": ""}
        self.add(line)
        return line

    def end(self, scene: Scene) -> None:
        self._last_row = scene.header.pool.rows - 1

    def answer(self) -> Answer:
        if not self.rows:
            hint = None
            if self._used:
                near = sorted(self._used, key=lambda row: abs(row - self.row))[:3]
                hint = f"did you mean row {', '.join(map(str, sorted(near)))}?"
            if self.row == 0:
                raise self.nothing(
                    "--row 0: it is the padding row, which belongs to no request; "
                    "--step shows what padding wrote",
                    hint,
                )
            raise self.nothing(
                f"--row {self.row}: no event names it (rows 0 to {self._last_row})", hint
            )
        for line in self.rows:
            times, last = line.pop("times", 1), line.pop("last", None)
            if times > 1:
                line["note"] += f", {times} forwards until event {last[0]} (step {last[1]})"
        return Answer(f"row {self.row}", [], self.columns, self.rows, self.left_out)


class StepTable(Question):
    """The batches of one step: what each row read and wrote."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.step = step
        self._near: list[int] = []

    def forward(self, scene: Scene, forward: Forward, lanes: list[Ints]) -> None:
        if forward.step != self.step:
            nearest = sorted({*self._near, forward.step}, key=lambda s: abs(s - self.step))
            self._near = nearest[:3]
            return
        padded = scene.follower.forwards.padded_rows(forward)
        for b, req in enumerate(forward.reqs):
            mine = forward.token_row == b
            count = len(forward.token_row)
            self.add(
                {
                    "event": forward.event,
                    "worker": forward.worker,
                    "mode": forward.mode.name,
                    "row": int(forward.rows[b]),
                    "req": req,
                    "prefix": int(forward.prefix[b]),
                    "reads": scene.cells(forward, b).tolist() if forward.rows[b] else [],
                    "writes": [*lanes[0][mine].tolist(), *padded.get(b, [])],
                    "window": lanes[1][mine].tolist() if len(lanes) > 1 else None,
                    "positions": forward.positions[:count][mine].tolist(),
                    "tokens": forward.input_ids[:count][mine].tolist(),
                }
            )

    def answer(self) -> Answer:
        if not self.rows:
            near = ", ".join(map(str, sorted(self._near)))
            raise self.nothing(
                f"--step {self.step}: no forward of that step",
                f"did you mean step {near}?" if near else "the trace holds no forward",
            )
        columns = [
            "event", "worker", "mode", "row", "req", "prefix", "reads", "writes", "positions",
            "tokens",
        ]  # fmt: skip
        if any(line["window"] is not None for line in self.rows):
            columns.insert(8, "window")
        for line in self.rows:
            if line["window"] is None:
                line.pop("window")
        title = f"step {self.step}"
        return Answer(title, self.gap_facts(), tuple(columns), self.rows, self.left_out)
