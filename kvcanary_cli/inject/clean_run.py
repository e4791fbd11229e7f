"""A clean run taken apart: who wrote, held and read each slot, and when.

Places are numbers of events in the list, not their ``i``. Only the target's full pool is followed;
what a draft worker does is left as it is.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

Event = dict[str, Any]
#: What a copy takes: (pool, slot, False), or a position of a request, (request, position, True).
Source = tuple[str, int, bool]
TREE = "tree"


@dataclass(frozen=True, slots=True)
class Row:
    """One batch row of a forward.

    Attributes:
        b: Batch row.
        req: Request.
        row: Row of the request table.
        prefix: Positions that it reads.
        first: Place of its first token in the flat lists.
        count: Tokens that it writes.
    """

    b: int
    req: str
    row: int
    prefix: int
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class Write:
    """A token written into a slot: event, request, position, place in the flat lists, token id.

    The id is None where it follows from the request's history.
    """

    at: int
    req: str
    position: int
    token: int
    draft_id: int | None = None


@dataclass(frozen=True, slots=True)
class Read:
    """A slot read as a prefix: event, batch row, position."""

    at: int
    b: int
    position: int


@dataclass(frozen=True, slots=True)
class Named:
    """A table cell that map event ``at`` set to a slot."""

    at: int
    row: int
    position: int


@dataclass(frozen=True, slots=True)
class Tenancy:
    """From an alloc to the free that ends it (None = never); ``owner`` at the start."""

    start: int
    owner: str
    end: int | None


def token_counts(event: Event) -> list[int]:
    """Tokens of each batch row, padding rows included."""
    if "extend_seq_lens" in event:
        return [int(n) for n in event["extend_seq_lens"]]
    bs = len(event["reqs"])
    if event["forward_mode"] == "TARGET_VERIFY":
        return [int(event["draft_token_num"])] * bs
    return [len(event["positions"]) // bs if bs else 0] * bs


def prefix_length(event: Event, b: int) -> int:
    """Positions that batch row ``b`` reads."""
    mode = event["forward_mode"]
    if mode in ("DECODE", "IDLE"):
        return int(event["seq_lens"][b]) - 1
    if mode == "TARGET_VERIFY":
        return int(event["seq_lens"][b])
    if mode == "DRAFT_EXTEND_V2":
        return int(event["seq_lens"][b]) - int(event["extend_seq_lens"][b])
    return int(event["extend_prefix_lens"][b])


def rows_of(event: Event) -> list[Row]:
    """The rows of a forward that belong to a request."""
    rows, first = [], 0
    for b, (req, count) in enumerate(zip(event["reqs"], token_counts(event), strict=True)):
        if req is not None and event["req_pool_indices"][b]:
            prefix = prefix_length(event, b)
            rows.append(Row(b, req, event["req_pool_indices"][b], prefix, first, count))
        first += count
    return rows


def written_by(at: int, event: Event, rows: list[Row]) -> Iterator[tuple[Write, int]]:
    """What a forward writes, and into which slots; drafts stand where they were proposed."""
    verify = event["forward_mode"] == "TARGET_VERIFY"
    slots = event["out_cache_loc"]
    for row in rows:
        for k in range(row.first, row.first + row.count):
            if verify:
                draft = event["input_ids"][k] if "input_ids" in event else None
                yield Write(at, row.req, event["positions"][k], k, draft), slots[k]
            else:
                yield Write(at, row.req, row.prefix + k - row.first, k), slots[k]


def sources_of(event: Event) -> list[Source]:
    """What each destination of a copy gets."""
    source = event["src"]
    if isinstance(source, dict):
        return [(source["req"], position, True) for position in source["pos"]]
    pool = event.get("src_pool", "full")
    return [(pool, slot, False) for slot in source]


def is_target_forward(event: Event) -> bool:
    return bool(event["kind"] == "forward" and event.get("worker", "target") == "target")


class CleanRun:
    """A trace's header and events, and what follows from them; built once, never changed."""

    def __init__(self, header: Event, events: list[Event]) -> None:
        self.header = header
        self.events = events
        self.records = frozenset(header["records"])
        self.forwards: list[int] = []
        self.rows: dict[int, list[Row]] = {}
        self.writes: dict[int, list[Write]] = {}
        self.maps: dict[int, list[int]] = {}
        self.history: dict[str, list[int]] = {}
        self.ends: dict[str, int] = {}
        self.by_kind: dict[str, list[int]] = {}
        self.lut: dict[int, list[tuple[int, int]]] = {}
        self._owners: dict[int, list[tuple[int, str | None]]] = {}
        self._tenancies: dict[int, list[Tenancy]] = {}
        for at, event in enumerate(events):
            self.by_kind.setdefault(event["kind"], []).append(at)
            self._enter(at, event)

    def _enter(self, at: int, event: Event) -> None:
        match event["kind"]:
            case "forward":
                if is_target_forward(event):
                    self._forward(at, event)
            case "map":
                self.maps.setdefault(event["row"], []).append(at)
            case "history":
                tokens = self.history.setdefault(event["req"], [])
                tokens[event["start"] :] = event["ids"]
            case "finish" | "abort":
                self.ends.setdefault(event["req"], at)
            case "alloc":
                for slot in event["slots"]:
                    self._own(slot, at, event["owner"])
                    self._tenancies.setdefault(slot, []).append(Tenancy(at, event["owner"], None))
            case "own":
                for slot in event["slots"]:
                    self._own(slot, at, event["owner"])
            case "free":
                for slot in event["slots"]:
                    self._own(slot, at, None)
                    terms = self._tenancies.get(slot)
                    if terms and terms[-1].end is None:
                        terms[-1] = Tenancy(terms[-1].start, terms[-1].owner, at)
            case "lut":
                for full, swa in zip(event["full"], event["swa"], strict=True):
                    self.lut.setdefault(full, []).append((at, swa))

    def _own(self, slot: int, at: int, owner: str | None) -> None:
        self._owners.setdefault(slot, []).append((at, owner))

    def _forward(self, at: int, event: Event) -> None:
        self.forwards.append(at)
        rows = self.rows[at] = rows_of(event)
        for write, slot in written_by(at, event, rows):
            if slot > 0:
                self.writes.setdefault(slot, []).append(write)

    @cached_property
    def _named(self) -> dict[int, list[tuple[int, int, int]]]:
        """Slot to the cells that were ever set to it: (event, row, position), in order."""
        out: dict[int, list[tuple[int, int, int]]] = {}
        for at in self.by_kind.get("map", []):
            event = self.events[at]
            for position, slot in enumerate(event["slots"], start=event["start"]):
                if slot > 0:
                    out.setdefault(slot, []).append((at, event["row"], position))
        return out

    @cached_property
    def _row_forwards(self) -> dict[int, list[tuple[int, Row]]]:
        """Table row to the batch rows that read through it, in order."""
        out: dict[int, list[tuple[int, Row]]] = {}
        for at in self.forwards:
            if "row_as_read" not in self.events[at]:
                for row in self.rows[at]:
                    out.setdefault(row.row, []).append((at, row))
        return out

    @cached_property
    def copied_into(self) -> dict[tuple[str, int], list[tuple[int, Source]]]:
        """Pool and slot to the copies that carried canary rows into it: (event, source)."""
        out: dict[tuple[str, int], list[tuple[int, Source]]] = {}
        for at in self.by_kind.get("copy", []):
            event = self.events[at]
            if event.get("canary") is False:
                continue
            pool = event.get("dst_pool", "full")
            for slot, source in zip(event["dst"], sources_of(event), strict=True):
                out.setdefault((pool, slot), []).append((at, source))
        return out

    def prepare(self) -> None:
        """Work out now what is otherwise worked out when it is first asked for."""
        _ = self._named, self._row_forwards, self.copied_into

    def cells(self, row: int, at: int) -> dict[int, int]:
        """Position to slot of a table row as it stands before event ``at``."""
        out: dict[int, int] = {}
        for k in self.maps.get(row, []):
            if k >= at:
                break
            out.update(enumerate(self.events[k]["slots"], start=self.events[k]["start"]))
        return out

    def owner(self, slot: int, at: int) -> str | None:
        """Owner before event ``at``; None = free or not known."""
        changes = self._owners.get(slot, [])
        k = bisect_left(changes, at, key=lambda c: c[0])
        return changes[k - 1][1] if k else None

    def tenancies(self, slot: int) -> list[Tenancy]:
        return self._tenancies.get(slot, [])

    def tenancy(self, slot: int, at: int) -> Tenancy | None:
        """The tenancy that event ``at`` lies in."""
        for term in self.tenancies(slot):
            if term.start <= at and (term.end is None or at <= term.end):
                return term
        return None

    def last_write(self, slot: int, at: int) -> Write | None:
        """The last write of ``slot`` before event ``at``."""
        writes = self.writes.get(slot, [])
        k = bisect_left(writes, at, key=lambda w: w.at)
        return writes[k - 1] if k else None

    def next_write(self, slot: int, after: int) -> Write | None:
        writes = self.writes.get(slot, [])
        k = bisect_right(writes, after, key=lambda w: w.at)
        return writes[k] if k < len(writes) else None

    def reads_between(self, slot: int, after: int, until: int | None) -> list[Read]:
        """Prefix reads of ``slot`` behind ``after`` and before ``until`` (None = the end)."""
        stop = len(self.events) if until is None else until
        out = []
        for set_at, row, position in self._named.get(slot, []):
            end = min(stop, self._set_again(row, position, set_at, stop))
            forwards = self._row_forwards.get(row, [])
            first = bisect_right(forwards, max(after, set_at), key=lambda f: f[0])
            for at, batch_row in forwards[first:]:
                if at >= end:
                    break
                if position < batch_row.prefix:
                    out.append(Read(at, batch_row.b, position))
        return sorted(out, key=lambda r: (r.at, r.b, r.position))

    def first_use(self, named: Named, after: int, until: int | None, but: str = "") -> int | None:
        """The first forward behind ``after`` and before ``until`` (None = the end) that uses a cell
        as ``named`` set it, reading or writing there; batch rows of ``but`` do not count."""
        stop = len(self.events) if until is None else until
        end = min(stop, self._set_again(named.row, named.position, named.at, stop))
        forwards = self._row_forwards.get(named.row, [])
        first = bisect_right(forwards, max(after, named.at), key=lambda f: f[0])
        for at, batch_row in forwards[first:]:
            if at >= end:
                break
            if named.position < batch_row.prefix + batch_row.count and batch_row.req != but:
                return at
        return None

    def named(self, slot: int) -> Iterator[Named]:
        """The cells that were ever set to ``slot``, in order."""
        return (Named(*cell) for cell in self._named.get(slot, []))

    def _set_again(self, row: int, position: int, after: int, stop: int) -> int:
        """Place of the next map event that sets a cell behind ``after``; ``stop`` = none before."""
        maps = self.maps.get(row, [])
        for at in maps[bisect_right(maps, after) :]:
            if at >= stop:
                break
            event = self.events[at]
            if event["start"] <= position < event["start"] + len(event["slots"]):
                return at
        return stop

    def row_of(self, at: int, b: int) -> Row:
        return next(r for r in self.rows[at] if r.b == b)

    def before_forward(self, at: int) -> int:
        """Where something may be put in front of a forward and of its fingerprints."""
        while at and self._is_print(at - 1, "before"):
            at -= 1
        return at

    def behind_forward(self, at: int) -> int:
        """Where something may be put behind a forward and its fingerprints."""
        at += 1
        while at < len(self.events) and self._is_print(at, "after"):
            at += 1
        return at

    def _is_print(self, at: int, phase: str) -> bool:
        event = self.events[at]
        return event["kind"] in ("kv_hash", "sidecar_hash") and event["phase"] == phase

    def swa_slot(self, full: int, at: int) -> int:
        """What the full-to-SWA table gives before event ``at``; 0 = nothing."""
        changes = self.lut.get(full, [])
        k = bisect_left(changes, at, key=lambda c: c[0])
        return changes[k - 1][1] if k else 0

    def step(self, at: int) -> int:
        """Step of the newest forward up to event ``at``."""
        while at >= 0 and self.events[at]["kind"] != "forward":
            at -= 1
        return int(self.events[at]["step"]) if at >= 0 else 0
