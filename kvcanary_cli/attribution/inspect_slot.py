"""The life of one slot, and who wrote it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvcanary_cli.attribution.context import transfer_key
from kvcanary_cli.attribution.inspect_contents import Contents
from kvcanary_cli.attribution.inspect_question import Answer, Question
from kvcanary_cli.attribution.ledger import FREE, NEVER, NOBODY, UNKNOWN

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvcanary_cli.attribution.inspect_pass import Scene
    from kvcanary_cli.attribution.ledger import Writes
    from kvcanary_cli.replay.forwards import Forward
    from kvcanary_cli.trace.segment import Segment

    Ints = NDArray[np.int64]

_COLUMNS = ("event", "step", "what", "who", "row", "position", "token", "note")
# Kind to the list field that may name the slot, and the field that says who.
_FIELDS = {
    "alloc": ("slots", "owner"),
    "free": ("slots", "owner"),
    "own": ("slots", "owner"),
    "publish": ("slots", "req"),
    "match": ("slots", "req"),
    "map": ("slots", ""),
    "fork": ("shared", "child"),
    "transfer_begin": ("slots", "req"),
    "copy": ("dst", "by"),
    "launch": ("slots", "req"),
    "lut": ("full", ""),
}
_NOTES = ("reason", "entry", "from", "via", "id", "namespace")


class SlotLife(Question):
    """Everything that names one slot of the full (or draft) pool.

    Reads are told as the first and last of each run of one reader.
    """

    columns = _COLUMNS

    def __init__(self, slot: int, pool: str = "full") -> None:
        super().__init__()
        self.slot, self.pool = slot, pool
        self._in_range = True
        self._reads: dict[tuple[str | None, str], dict[str, Any]] = {}
        self._near: int | None = None
        self._last = 0
        self._owner: str | None = None
        # Transfers that named the slot, and whose they are.
        self._transfers: dict[str, str | None] = {}

    def event(self, scene: Scene, segment: Segment, k: int, kind: str, row: int) -> None:
        if kind in ("transfer_end", "transfer_fail"):
            self._transfer_over(segment, k, kind, row)
            return
        known = _FIELDS.get(kind)
        if known is None:
            return
        field, who = known
        if self._is_of_pool(segment, kind, row):
            slots = segment.tables[kind].get_ints(field, row)
            hits = [] if slots is None else np.flatnonzero(slots == self.slot).tolist()
            if hits:
                self._told(segment, k, kind, row, who, hits[0])
                return
        if kind == "copy":
            self._source(segment, k, row)

    def _transfer_over(self, segment: Segment, k: int, kind: str, row: int) -> None:
        key = transfer_key(segment.json(kind, "id", row))
        if key is None or key not in self._transfers:
            return
        line = _line(int(segment.index[k]), None, kind, self._transfers.pop(key))
        has_reason = "reason" in segment.tables[kind].columns
        reason = _any_text(segment, kind, "reason", row) if has_reason else None
        line["note"] = f"id {key}" + (f", reason {reason}" if reason is not None else "")
        self._add(line)

    def _is_of_pool(self, segment: Segment, kind: str, row: int) -> bool:
        """Whether the slots that an event lists are the pool's; a copy lists its destinations."""
        pool = _text(segment, kind, "dst_pool", row) if kind == "copy" else None
        return self.pool == (pool or "full")

    def _told(self, segment: Segment, k: int, kind: str, row: int, who: str, hit: int) -> None:
        table = segment.tables[kind]
        notes = [
            f"{name} {text}"
            for name in _NOTES
            if name in table.columns and (text := _any_text(segment, kind, name, row)) is not None
        ]
        line = _line(
            int(segment.index[k]),
            table.get_int("step", row),
            {"lut": "translated", "copy": "copied into"}.get(kind, kind),
            _text(segment, kind, who, row) if who else None,
        )
        if kind == "map":
            line["row"] = table.get_int("row", row)
            line["position"] = (table.get_int("start", row) or 0) + hit
        if kind == "lut":
            swa = table.get_ints("swa", row)
            assert swa is not None
            notes.append(f"to window slot {int(swa[hit])}")
        if kind == "copy":
            source = segment.json("copy", "src", row)
            if isinstance(source, dict):
                line["position"] = source["pos"][hit]
                notes.append(f"from request {source['req']}")
            else:
                notes.append(f"from {self._place(segment, 'src_pool', row, source[hit])}")
        line["note"] = ", ".join(notes)
        if kind in ("transfer_begin", "copy") and "id" in table.columns:
            key = transfer_key(segment.json(kind, "id", row))
            if key is not None:
                self._transfers.setdefault(key, line["who"])
        self._add(line)

    def _source(self, segment: Segment, k: int, row: int) -> None:
        source = segment.json("copy", "src", row)
        if not isinstance(source, list) or self.slot not in source:
            return
        if (_text(segment, "copy", "src_pool", row) or "full") != self.pool:
            return
        dst = segment.tables["copy"].get_ints("dst", row)
        assert dst is not None
        line = _line(int(segment.index[k]), None, "copied from", _text(segment, "copy", "by", row))
        there = int(dst[source.index(self.slot)])
        line["note"] = f"to {self._place(segment, 'dst_pool', row, there)}"
        self._add(line)

    def _place(self, segment: Segment, field: str, row: int, slot: int) -> str:
        """The other side of a copy in words."""
        pool = _text(segment, "copy", field, row) or "full"
        return f"slot {slot}" if pool == self.pool else f"{pool} slot {slot}"

    def forward(self, scene: Scene, forward: Forward, lanes: list[Ints]) -> None:
        if forward.is_draft != (self.pool == "draft") and self.pool != "swa":
            return
        index = 1 if self.pool == "swa" else 0
        if index >= len(lanes):
            return
        self._note_reads(scene, forward)
        tokens = lanes[index]
        for at in np.flatnonzero(tokens == self.slot).tolist():
            b = int(forward.token_row[at])
            line = _line(forward.event, forward.step, "write", forward.reqs[b])
            line |= {
                "row": int(forward.rows[b]),
                "position": int(forward.positions[at]),
                "token": int(forward.input_ids[at]),
                "note": forward.mode.name,
            }
            self._add(line)
        padding = forward.out_cache_loc[len(forward.token_row) :]
        if index == 0 and (padding == self.slot).any() and self.slot > 0:
            line = _line(forward.event, forward.step, "write", None)
            line["note"] = f"padding row, {forward.mode.name}"
            self._add(line)

    def begin_anew(self, event: int) -> None:
        super().begin_anew(event)
        self._reads.clear()
        self._transfers.clear()

    def _note_reads(self, scene: Scene, forward: Forward) -> None:
        for b, req in enumerate(forward.reqs):
            if not forward.rows[b] or not forward.prefix[b]:
                continue
            cells = scene.cells(forward, b)
            if self.pool == "swa" and scene.lut is not None:
                cells = scene.lut[cells]
            hits = np.flatnonzero(cells == self.slot)
            if not len(hits):
                continue
            position = int(hits[0])
            known = self._reads.get((req, forward.worker))
            if known is not None and known["position"] == position:
                known["last_event"], known["last_step"] = forward.event, forward.step
                known["times"] += 1
                continue
            line = _line(forward.event, forward.step, "read", req)
            line |= {"row": int(forward.rows[b]), "position": position}
            line |= {"times": 1, "last_event": forward.event, "last_step": forward.step}
            self._reads[req, forward.worker] = line
            self.add(line)

    def _add(self, line: dict[str, Any]) -> None:
        # A read after something else happened to the slot is a new run of reads.
        if line["what"] != "launch":
            self._reads.clear()
        self.add(line)

    def end(self, scene: Scene) -> None:
        pool = scene.header.pool
        last = pool.swa_max_slot if self.pool == "swa" else pool.max_slot
        self._in_range = 0 <= self.slot <= last
        self._last = last
        state = scene.follower.rules.state
        touched = np.flatnonzero(state.since != NEVER)
        if self._in_range and len(touched) and self.pool == "full":
            self._near = int(touched[np.abs(touched - self.slot).argmin()])
        if self._in_range and self.pool != "swa":
            self._owner = _owner_name(scene, self.slot)

    def answer(self) -> Answer:
        if not self._in_range:
            raise self.nothing(f"--slot {self.slot}: {_slots_of(self.pool, self._last)}")
        if not self.rows:
            hint = "it was neither allocated, written nor read"
            if self._near is not None:
                hint += f"; the nearest slot that was is {self._near}"
            raise self.nothing(f"--slot {self.slot}: no event names it", hint)
        for line in self.rows:
            if line.pop("times", 1) > 1:
                line["note"] = f"again until event {line['last_event']} (step {line['last_step']})"
            line.pop("last_event", None)
            line.pop("last_step", None)
        facts: list[tuple[str, Any]] = []
        if self._owner is not None:
            facts.append(("owner at the end", self._owner))
        title = f"slot {self.slot} of the {self.pool} pool"
        return Answer(title, facts, _COLUMNS, self.rows, self.left_out)


class WhoWrote(Question):
    """Who wrote what a slot holds at a step: as its forwards read it, and after they wrote."""

    def __init__(self, slot: int, step: int, pool: str = "full") -> None:
        super().__init__()
        self.slot, self.step, self.pool = slot, step, pool
        self._lane = {"swa": ("target", "SWA"), "draft": ("draft", "FULL")}.get(
            pool, ("target", "FULL")
        )
        self._steps: set[int] = set()
        self._found = False
        self._contents: Contents | None = None
        self._pending = False
        self._bad: str | None = None

    def event(self, scene: Scene, segment: Segment, k: int, kind: str, row: int) -> None:
        self._held(scene).event(segment, kind, row)

    def _held(self, scene: Scene) -> Contents:
        if self._contents is None:
            pool = scene.header.pool
            last = pool.swa_max_slot if self._lane[1] == "SWA" else pool.max_slot
            has_tokens = scene.header.tokens != "absent"
            self._contents = Contents(last + 1, self.pool, has_tokens=has_tokens)
        return self._contents

    def forward(self, scene: Scene, forward: Forward, lanes: list[Ints]) -> None:
        if forward.worker != self._lane[0]:
            return
        if forward.step > self.step:
            if not self._found:
                self._near(forward.step)
            self.done = True
            return
        index = 1 if self._lane[1] == "SWA" else 0
        if index >= len(lanes):
            return
        self._near(forward.step)
        if forward.step == self.step:
            self._tell(scene, "as read")
            self._found = True
        self._held(scene).written(forward, lanes[index])
        if (lanes[index] == self.slot).any():
            self._pending = forward.step == self.step
        if index == 0 and forward.step == self.step:
            self._pending |= bool(
                (scene.follower.forwards.padding_slots(forward) == self.slot).any()
            )

    def begin_anew(self, event: int) -> None:
        super().begin_anew(event)
        if self._contents is not None:
            self._contents.begin_anew()

    def _near(self, step: int) -> None:
        self._steps = {*sorted({*self._steps, step}, key=lambda s: abs(s - self.step))[:3]}

    def after(self, scene: Scene, event: int) -> None:
        if self._pending:
            self._pending = False
            self._tell(scene, "after the step's write")

    def _tell(self, scene: Scene, when: str) -> None:
        if not self._in_pool(scene):
            return
        writes: Writes = scene.follower.lane(*self._lane)
        event = int(writes.event[self.slot])
        names = scene.follower.names
        line: dict[str, Any] = {"when": when, "owner": None}
        if self._lane[1] == "FULL":
            line["owner"] = _owner_name(scene, self.slot)
        nobody = "nobody since the recording began"
        if self.known_since is not None:
            nobody = f"not known: events were lost before event {self.known_since}"
        line |= {"what": nobody, "who": None, "event": None}
        line |= {"step": None, "position": None, "token": None, "before": None}
        if event != NEVER:
            step, before = int(writes.step[self.slot]), int(writes.before_event[self.slot])
            position, token = self._held(scene).of(self.slot)
            line |= {
                "what": ("nothing", "forward", "verify", "copy", "state")[writes.kind[self.slot]],
                "who": names.name(int(writes.req[self.slot])),
                "event": event,
                "step": None if step == NOBODY else step,
                "position": position,
                "token": token,
            }
            if before != NEVER:
                former = names.name(int(writes.before_req[self.slot]))
                line["before"] = f"{former or 'nobody named'} at event {before}"
        padded = int(writes.pad_event[self.slot])
        if padded != NEVER and padded >= int(writes.came(np.array([self.slot]))[0]):
            row, step = int(writes.pad_row[self.slot]), int(writes.pad_step[self.slot])
            line["padding"] = f"batch row {row} changed its bytes at event {padded}, step {step}"
        if not self.rows or self.rows[-1] != line:
            self.add(line)

    def _in_pool(self, scene: Scene) -> bool:
        pool = scene.header.pool
        last = pool.swa_max_slot if self._lane[1] == "SWA" else pool.max_slot
        if 0 <= self.slot <= last:
            return True
        self._bad = f"--who-wrote {self.slot}@{self.step}: {_slots_of(self.pool, last)}"
        return False

    def end(self, scene: Scene) -> None:
        self._in_pool(scene)

    def answer(self) -> Answer:
        if self._bad is not None:
            raise self.nothing(self._bad)
        if not self._found:
            near = ", ".join(map(str, sorted(self._steps)))
            raise self.nothing(
                f"--who-wrote {self.slot}@{self.step}: step {self.step} does not occur",
                f"did you mean step {near}?" if near else "no forward wrote that pool",
            )
        columns = [
            "when", "what", "who", "event", "step", "position", "token", "owner", "before",
        ]  # fmt: skip
        if any("padding" in line for line in self.rows):
            columns.append("padding")
            self.rows[:] = [{"padding": None} | line for line in self.rows]
        title = f"slot {self.slot} at step {self.step}"
        return Answer(title, self.gap_facts(), tuple(columns), self.rows)


def _slots_of(pool: str, last: int) -> str:
    """Which slots a pool has, in words; slot 0 is padding, so that a pool of it alone is none."""
    return f"the {pool} pool has slots 0 to {last}" if last else f"the trace has no {pool} pool"


def _line(event: int, step: int | None, what: str, who: str | None) -> dict[str, Any]:
    return {
        "event": event,
        "step": step,
        "what": what,
        "who": who,
        "row": None,
        "position": None,
        "token": None,
        "note": "",
    }


def _owner_name(scene: Scene, slot: int) -> str:
    code = int(scene.follower.rules.state.owner[slot])
    if code == UNKNOWN:
        return "not recorded"
    return "the free list" if code == FREE else scene.follower.names.name(code) or "?"


def _text(segment: Segment, kind: str, name: str, row: int) -> str | None:
    return segment.text(kind, name, row) if name in segment.tables[kind].columns else None


def _any_text(segment: Segment, kind: str, name: str, row: int) -> str | None:
    column = segment.tables[kind].columns[name]
    if not column.has(row):
        return None
    value = segment.value(column, row)
    return None if value is None else str(value)
