"""What the trace said besides owners and writes: rows, forks, matches, launches, transfers, rings.

Kept only as far back as a finding can reach; names are codes of ``ledger.Names``.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from kvcanary_cli.attribution.by_code import ByCode, DecodedRows
from kvcanary_cli.attribution.cargo import Cargos, OtherTiers
from kvcanary_cli.attribution.ledger import NEVER, NOBODY
from kvcanary_cli.attribution.row_table import RowTable
from kvcanary_cli.backends.cpu.event_state import NO_ROW

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvcanary_cli.attribution.damage import Cause
    from kvcanary_cli.attribution.earlier_frees import Taken
    from kvcanary_cli.trace.segment import Segment

    Ints = NDArray[np.int64]

# Copies and matches older than this many are forgotten, unless a slot still names them.
_REMEMBERED = 65536
_WINDOWS = 1024
# Of each request.
_MATCHES = 64


@dataclass(frozen=True, slots=True)
class MapFact:
    """Cells [start, stop) of a row were set by event ``event``; ``owner`` of the last slot then."""

    event: int
    start: int
    stop: int
    owner: int = NOBODY


@dataclass(frozen=True, slots=True)
class RowFacts:
    """One row of the request table.

    Attributes:
        table: Holds its tenants, its map events, and when it was given back.
        row: Its number.
    """

    table: RowTable
    row: int

    @property
    def tenant(self) -> int:
        """Request that last ran in it."""
        return int(self.table.tenants[self.row])

    @property
    def ran(self) -> list[tuple[int, int]]:
        """The last changes of tenant: (request, event of its forward)."""
        return self.table.last_tenants(self.row)

    @property
    def released_event(self) -> int:
        """Last row_release; ``NEVER`` = none."""
        return int(self.table.released[self.row, 0])

    @property
    def released_by(self) -> int:
        """Who gave it back then; ``NOBODY`` = nobody."""
        return int(self.table.released[self.row, 1])

    @property
    def maps(self) -> list[MapFact]:
        """Its map events, newest last; those wholly covered by a newer one are dropped."""
        return [MapFact(*fact) for fact in self.table.newest_first(self.row)][::-1]

    def run(self, req: int, event: int) -> None:
        """``req`` runs in the row."""
        if req != self.tenant:
            self.table.run(self.row, req, event)

    def release(self, event: int, req: int) -> None:
        """``req`` gives the row back."""
        self.table.released[self.row] = event, req

    def taker(self, victim: int, since: int) -> int:
        """Who else than ``victim`` ran in the row after event ``since``; ``NOBODY`` = nobody."""
        return next((req for req, at in self.ran if at > since and req != victim), NOBODY)

    def map(self, event: int, start: int, stop: int, owner: int = NOBODY) -> None:
        self.table.map(self.row, event, start, stop, owner)

    def mapped_at(self, position: int) -> int:
        """Event that last set the cell of ``position``."""
        for event, start, stop, _owner in self.table.newest_first(self.row):
            if start <= position < stop:
                return event
        return NEVER

    def mapped_at_each(self, positions: Ints) -> Ints:
        """[n] events that last set the cells of ``positions`` [n]."""
        cells = np.full(int(positions.max(initial=-1)) + 1, NEVER, dtype=np.int64)
        for fact in self.maps:
            cells[fact.start : fact.stop] = fact.event
        found: Ints = cells[positions]
        return found

    def maps_between(self, event: int) -> int:
        """First event of the run of map events without a gap that ``event`` belongs to."""
        events = sorted(f.event for f in self.maps)
        at = events.index(event) if event in events else -1
        while at > 0 and events[at - 1] == events[at] - 1:
            at -= 1
        return events[at] if at >= 0 else event

    def fact_after(self, event: int) -> MapFact | None:
        """The first remembered map event after ``event``."""
        later = [fact for fact in self.maps if fact.event > event]
        return min(later, key=lambda fact: fact.event, default=None)

    def first_map_after(self, event: int) -> int:
        """``i`` of the first remembered map event after ``event``."""
        fact = self.fact_after(event)
        return NEVER if fact is None else fact.event


@dataclass(frozen=True, slots=True)
class CopyFact:
    """A copy event.

    ``canary``: the canary rows travelled; ``via_row``: row that its destination was looked up in.
    """

    event: int
    by: int
    via: str
    transfer: str | None
    begun_event: int
    canary: bool = True
    via_row: int | None = None


@dataclass(frozen=True, slots=True)
class MatchFact:
    """A request was served from a published prefix.

    Attributes:
        event, entry: Of the match.
        slots: [n] int32, from position 0 on.
        namespace: What the request asked under, None = not recorded.
        published: What the entry was published under, None = not recorded.
        lost: Slots that were free, or another request's, when they were matched.
    """

    event: int
    entry: str
    slots: NDArray[np.int32]
    namespace: str | None = None
    published: str | None = None
    lost: frozenset[int] = frozenset()

    def __contains__(self, slot: int) -> bool:
        return bool((self.slots == slot).any())

    def position(self, slot: int) -> int:
        """Position that the match serves from ``slot``, which is one of its slots."""
        return int((self.slots == slot).argmax())


@dataclass(slots=True)
class Window:
    """An asynchronous transfer into the pool.

    Attributes:
        key: Its id.
        begun, ended, failed: Events, ``NEVER`` = not seen.
        slots: Where its content was to go.
        brought: Slots that copies of it wrote, with the event.
    """

    key: str
    begun: int
    slots: Ints
    ended: int = NEVER
    failed: int = NEVER
    brought: dict[int, int] = field(default_factory=dict)
    _sorted: Ints | None = None

    def names(self, slots: Ints) -> NDArray[np.bool_]:
        """[n] which of ``slots`` [n] its content was to go to; a transfer may have many copies."""
        if self._sorted is None:
            self._sorted = np.sort(self.slots)
        at = np.minimum(np.searchsorted(self._sorted, slots), len(self._sorted) - 1)
        named: NDArray[np.bool_] = self._sorted[at] == slots
        return named


@dataclass(frozen=True, slots=True)
class AcceptFact:
    """Speculative verification accepted some nodes of a request's draft."""

    event: int
    nodes: tuple[int, ...]
    tokens: tuple[int, ...]
    committed_len: int | None = None


@dataclass(frozen=True, slots=True)
class PutFact:
    """A sampled token went into a future ring."""

    event: int
    req: int
    token: int
    step: int


@dataclass(slots=True)
class Context:
    """Everything that is not slot by slot.

    ``adapters`` holds the version of each adapter that is loaded; ``cow_from``, by a forked slot,
    the last fork that meant a copy of it and where to; ``unlisted`` entries of the prefix cache
    that were published without their slots, with who did that, None = not told; ``left`` the
    namespaces of entries that the device's index let go, which other tiers may hold; ``aliased``
    by event, matches that served a request the entry of another namespace; ``recycled`` rows
    that were found to be given away in flight, by the first map event of the new tenant or
    ``NEVER``, with the cause of that; ``moved`` slots whose content
    was damaged before the copy at that event brought it, with the cause; ``taken``, by event,
    reader and slot of a read or match that broke a rule, the free that took the slot from the
    reader or from the entry, None = none did; ``served``, by transfer,
    the request that it works for and the key of what it moves; ``misled`` why a copy (by event)
    wrote a slot that was not its own; ``unfilled``, by
    transfer, its begin and why what it brought is no content of its key; ``misread``, by request,
    row and the first forward that named the row for it, the request's own row, where that one was
    another's.
    """

    table: RowTable = field(default_factory=RowTable)
    rows: dict[int, RowFacts] = field(default_factory=dict)
    ended: dict[int, int] = field(default_factory=dict)
    adapters: dict[str, str] = field(default_factory=dict)
    cow_event: dict[int, int] = field(default_factory=dict)
    cow_from: dict[int, tuple[int, int]] = field(default_factory=dict)
    recycled: dict[tuple[int, int], int] = field(default_factory=dict)
    launches: dict[tuple[int, int], int] = field(default_factory=dict)
    copies: OrderedDict[int, CopyFact] = field(default_factory=OrderedDict)
    transfers: dict[str, int] = field(default_factory=dict)
    served: dict[str, tuple[int, str | None]] = field(default_factory=dict)
    cargos: Cargos = field(default_factory=Cargos)
    tiers: OtherTiers = field(default_factory=OtherTiers)
    misled: dict[tuple[int, int], Cause] = field(default_factory=dict)
    misread: dict[tuple[int, int, int], int] = field(default_factory=dict)
    taken: dict[tuple[int, int, int], Taken | None] = field(default_factory=dict)
    windows: deque[Window] = field(default_factory=lambda: deque(maxlen=_WINDOWS))
    entries: dict[str, str] = field(default_factory=dict)
    unlisted: dict[str, int | None] = field(default_factory=dict)
    left: OrderedDict[str, str] = field(default_factory=OrderedDict)
    aliased: dict[int, tuple[int, MatchFact]] = field(default_factory=dict)
    unfilled: dict[str, tuple[int, Cause]] = field(default_factory=dict)
    matches: dict[int, list[MatchFact]] = field(default_factory=dict)
    accepts: dict[int, AcceptFact] = field(default_factory=dict)
    puts: dict[int, deque[PutFact]] = field(default_factory=dict)
    gets: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    last_step_of: ByCode = field(default_factory=ByCode)
    lut_event: dict[int, int] = field(default_factory=dict)
    moved: dict[int, tuple[int, Cause]] = field(default_factory=dict)
    batch_row_slot: DecodedRows = field(default_factory=DecodedRows)
    # By event, of forwards whose padding wrote slots: rows that were requests, and all rows.
    pad_batches: dict[int, tuple[int, int]] = field(default_factory=dict)

    def padded_batch(self, event: int) -> str:
        """How many rows of the batch at ``event`` were requests, and how many there were."""
        raw, padded = self.pad_batches[event]
        return f"raw batch size {raw}, padded to {padded}"

    def namespace(self, name: str) -> str:
        """A namespace with the version of its adapter, which an engine may leave out."""
        version = self.adapters.get(name)
        return name if version is None else f"{name}@{version}"

    def row(self, row: int) -> RowFacts:
        facts = self.rows.get(row)
        if facts is None:
            self.table.has_rows(row + 1)
            if self.table.tenants[row] == NO_ROW:
                self.table.tenants[row] = NOBODY
            facts = self.rows[row] = RowFacts(self.table, row)
        return facts

    def copy(self, fact: CopyFact) -> None:
        self.copies[fact.event] = fact
        if len(self.copies) > _REMEMBERED:
            self.copies.popitem(last=False)

    def match(self, req: int, fact: MatchFact) -> None:
        facts = self.matches.setdefault(req, [])
        facts.append(fact)
        if len(facts) > _MATCHES:
            del facts[0]
        known = None not in (fact.namespace, fact.published)
        if known and fact.namespace != fact.published and len(self.aliased) < _REMEMBERED:
            self.aliased[fact.event] = req, fact

    def leave(self, entry: str) -> None:
        """The device's index lets ``entry`` go; another tier may have it still."""
        namespace = self.entries.pop(entry, None)
        if namespace is not None:
            self.left[entry] = namespace
            if len(self.left) > _REMEMBERED:
                self.left.popitem(last=False)

    def note_match(
        self,
        req: int,
        segment: Segment,
        row: int,
        event: int,
        lost: frozenset[int] = frozenset(),
    ) -> None:
        """Remember the match in row ``row`` of its table, of the request with code ``req``."""
        columns = segment.tables["match"].columns
        slots = columns["slots"].span(row)
        entry = segment.text("match", "entry", row) or ""
        asked = None
        if "namespace" in columns:
            asked = segment.text("match", "namespace", row)
        namespace = None if asked is None else self.namespace(asked)
        published = self.entries.get(entry)
        if published is None and _is_off_device(segment, row):
            published = self.left.get(entry)
        its = slots.astype(np.int32)
        self.match(req, MatchFact(event, entry, its, namespace, published, lost))

    def matched(self, req: int, slot: int) -> MatchFact | None:
        """The newest match of ``req`` that served ``slot``."""
        for fact in reversed(self.matches.get(req, ())):
            if slot in fact:
                return fact
        return None

    def serves(self, transfer: str | None) -> int:
        """Name code of the request that a transfer works for, ``NOBODY`` = not told."""
        return NOBODY if transfer is None else self.served.get(transfer, (NOBODY, None))[0]

    def window(self, key: str) -> Window | None:
        """The newest remembered transfer with this id."""
        return next((w for w in reversed(self.windows) if w.key == key), None)

    def window_onto(self, slot: int, since: int) -> Window | None:
        """The newest remembered transfer into ``slot`` that began after event ``since``."""
        for window in reversed(self.windows):
            if window.begun > since and bool((window.slots == slot).any()):
                return window
        return None


def transfer_key(value: Any) -> str | None:
    """A transfer's id as text, None without one."""
    return None if value is None else str(value)


def _is_off_device(segment: Segment, row: int) -> bool:
    """Whether a match was served from another tier: its entry need not be the device's."""
    if "tier" not in segment.tables["match"].columns:
        return False
    return segment.text("match", "tier", row) not in (None, "device")
