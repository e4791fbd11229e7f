"""What suspect slots hold after a fault, and who reads them wrongly first."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvcanary_cli.inject.clean_run import (
    CleanRun,
    Row,
    Source,
    Write,
    is_target_forward,
    rows_of,
    sources_of,
    written_by,
)

if TYPE_CHECKING:
    from kvcanary_cli.inject.edits import Edits

Event = dict[str, Any]
#: Writer, position, and the token if it was a draft.
Held = tuple[str, int, int | None]


@dataclass(frozen=True, slots=True)
class BadRead:
    """A read of content that is not the reader's.

    Attributes:
        k: Place in the edited tail.
        step: Its step.
        req: The reader.
        slot, position: What was read.
        writer: Whose content it is, None if nobody's.
    """

    k: int
    step: int
    req: str
    slot: int
    position: int
    writer: str | None


class Watch:
    """Follows the content of a few slots through an edited tail.

    Args:
        run: The clean run.
        edits: What the fault changes.
        suspects: Slots to follow.
        histories: Tokens of requests that the fault adds.
    """

    def __init__(
        self,
        run: CleanRun,
        edits: Edits,
        suspects: set[int],
        histories: dict[str, list[int]] | None = None,
    ) -> None:
        self.run = run
        self.histories = run.history | (histories or {})
        self._suspects = set(suspects)
        # Of suspects, and of every slot of any pool that the tail wrote or copied something to.
        self._content: dict[tuple[str, int], Held | None] = {}
        for slot in suspects:
            self._content["full", slot] = content_before(run, "full", slot, edits.first)
        self._rows: dict[int, dict[int, int]] = {}
        self._start = edits.first

    def bad_reads(self, tail: list[Event], limit: int = 1) -> list[BadRead]:
        """The first ``limit`` forwards' wrong reads."""
        out: list[BadRead] = []
        forwards = 0
        for k, event in enumerate(tail):
            kind = event["kind"]
            if kind == "map":
                cells = self._cells(event["row"])
                cells.update(enumerate(event["slots"], start=event["start"]))
            elif kind == "copy":
                self._copy(event)
            elif is_target_forward(event):
                found = self._forward(k, event)
                out += found
                forwards += bool(found)
                if forwards >= limit:
                    break
        return out

    def _cells(self, row: int) -> dict[int, int]:
        if row not in self._rows:
            self._rows[row] = self.run.cells(row, self._start)
        return self._rows[row]

    def _forward(self, k: int, event: Event) -> list[BadRead]:
        rows = rows_of(event)
        found = [bad for row in rows for bad in self._reads(k, event, row)]
        for write, slot in written_by(0, event, rows):
            self._content["full", slot] = _held(write)
        # What this forward's rows overwrite for each other is read again behind its writes.
        return found or [bad for row in rows for bad in self._reads(k, event, row)]

    def _reads(self, k: int, event: Event, row: Row) -> list[BadRead]:
        as_read = event.get("row_as_read", {}).get(str(row.row))
        cells = dict(enumerate(as_read)) if as_read is not None else self._cells(row.row)
        out = []
        for position in range(row.prefix):
            slot = cells.get(position, 0)
            if slot in self._suspects and not self._fits(slot, row.req, position):
                content = self._content["full", slot]
                writer = None if content is None else content[0]
                out.append(BadRead(k, event["step"], row.req, slot, position, writer))
        return out

    def _fits(self, slot: int, req: str, position: int) -> bool:
        content = self._content["full", slot]
        if content is None:
            return False
        writer, place, draft = content
        theirs, ours = self.histories.get(writer), self.histories.get(req)
        if place != position:
            return False
        if draft is not None and ours is not None and ours[place : place + 1] != [draft]:
            return False
        if writer == req:
            return True
        if theirs is None or ours is None:
            return False
        return theirs[: place + 1] == ours[: place + 1]

    def _copy(self, event: Event) -> None:
        if event.get("canary") is False:
            return
        pool = event.get("dst_pool", "full")
        moved = [self._moved(source) for source in sources_of(event)]
        for slot, content in zip(event["dst"], moved, strict=True):
            self._content[pool, slot] = content

    def _moved(self, source: Source) -> Held | None:
        where, number, named = source
        if named:
            return where, number, None
        if (where, number) in self._content:
            return self._content[where, number]
        return content_before(self.run, where, number, self._start)


def content_before(run: CleanRun, pool: str, slot: int, at: int) -> Held | None:
    """What a slot of a pool holds before event ``at``, through any number of copies."""
    while True:
        copies = run.copied_into.get((pool, slot), [])
        k = bisect_left(copies, at, key=lambda c: c[0])
        write = run.last_write(slot, at) if pool == "full" else None
        if not k or (write is not None and write.at > copies[k - 1][0]):
            return _held(write)
        at, (where, number, named) = copies[k - 1]
        if named:
            return where, number, None
        pool, slot = where, number


def _held(write: Write | None) -> Held | None:
    return None if write is None else (write.req, write.position, write.draft_id)
