"""Transfers whose slots changed hands while they ran, whether or not anybody read the result."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from kvcanary_cli.attribution.context import transfer_key
from kvcanary_cli.attribution.damage import Cause
from kvcanary_cli.attribution.finding_index import FindingIndex
from kvcanary_cli.attribution.ledger import FREE, NOBODY, TREE
from kvcanary_cli.attribution.result import CERTAIN, POSSIBLE, PROBABLE, Culprit, RuledOut

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvcanary_cli.attribution.book import FindingBook
    from kvcanary_cli.attribution.follow import Follower
    from kvcanary_cli.attribution.snapshot import Snapshots
    from kvcanary_cli.trace.segment import Segment

    Ints = NDArray[np.int64]

_OPEN = 4096


@dataclass(slots=True)
class _Open:
    """A transfer under way.

    Attributes:
        key: Its id.
        begun: Event of its begin.
        req: Whose it is, a name code.
        via: How it moves content.
        name: Key that a store files its content under, None without one.
        leaves: It reads the pool; else it writes it.
        slots: [n] slots of the full pool, and their ``owners`` when it began.
        pending: [n] bool, no copy of it dealt with the slot so far.
    """

    key: str
    begun: int
    req: int
    via: str
    name: str | None
    leaves: bool
    slots: Ints
    owners: NDArray[np.int32]
    pending: NDArray[np.bool_]


@dataclass(slots=True)
class _Race:
    """What was found: ``matches`` are later matches of the key that the store poisoned."""

    cause: Cause
    victim: str | None
    slots: set[int] = field(default_factory=set)
    key: str | None = None
    matches: list[int] = field(default_factory=list)


class TransferRaces:
    """Watches the windows of transfers (TAXONOMY of transfer_race, both sides).

    A window counts against a slot if somebody else was given it before the transfer was done with
    it. That a request gives slots back while nobody else gets them does no harm.

    Args:
        follower: The ledger.
        snapshots: Keeps the scene of what is found.
    """

    def __init__(self, follower: Follower, snapshots: Snapshots) -> None:
        self._follower, self._snapshots = follower, snapshots
        self._open: OrderedDict[str, _Open] = OrderedDict()
        self._races: dict[tuple[str, int], _Race] = {}

    def begin(self, segment: Segment, row: int, event: int) -> None:
        """A ``transfer_begin``."""
        table, follower = segment.tables["transfer_begin"], self._follower

        def text(name: str) -> str | None:
            return segment.text("transfer_begin", name, row) if name in table.columns else None

        key = transfer_key(segment.json("transfer_begin", "id", row))
        slots, req, state = table.get_ints("slots", row), text("req"), follower.rules.state
        if key is None or slots is None:
            return
        slots = slots[(slots > 0) & (slots < len(state.owner))]
        via = text("via") or "copy"
        self._open[key] = _Open(
            key=key,
            begun=event,
            req=NOBODY if req is None else follower.names.code(req),
            via=via,
            name=transfer_key(
                segment.json("transfer_begin", "key", row) if "key" in table.columns else None
            ),
            leaves=via in ("store", "d2h") or text("direction") == "out",
            slots=slots,
            owners=state.owner[slots].copy(),
            pending=np.ones(len(slots), dtype=np.bool_),
        )
        if len(self._open) > _OPEN:
            self._open.popitem(last=False)

    def end(self, segment: Segment, row: int, event: int, *, failed: bool) -> None:
        """A ``transfer_end`` or ``transfer_fail``: what no copy dealt with was under way so far."""
        kind = "transfer_fail" if failed else "transfer_end"
        key = transfer_key(segment.json(kind, "id", row))
        window = None if key is None else self._open.pop(key, None)
        if window is None or failed:
            return
        taken = self._taken(window) & window.pending
        if taken.any():
            self._found(window, window.slots[taken], event, copied=False)

    def copy(self, segment: Segment, row: int, event: int) -> dict[int, Cause]:
        """A ``copy`` is about to be followed.

        Returns:
            Source slot to the race that its content is the result of.
        """
        table = segment.tables["copy"]
        key = transfer_key(segment.json("copy", "id", row) if "id" in table.columns else None)
        window = None if key is None else self._open.get(key)
        if window is None:
            return {}
        source, dst = segment.json("copy", "src", row), table.get_ints("dst", row)
        used = source if window.leaves else dst
        if isinstance(used, dict) or used is None:
            return {}
        named = np.isin(window.slots, np.array(used, dtype=np.int64))
        raced = named & self._rewritten(window) if window.leaves else named & False
        window.pending &= ~named
        if not raced.any():
            return {}
        slots = window.slots[raced]
        cause = self._found(window, slots, event, copied=True)
        return dict.fromkeys(slots.tolist(), cause)

    def slots_under_way(self) -> Ints:
        """Slots of transfers that have not ended, ascending."""
        none = np.empty(0, dtype=np.int64)
        return np.unique(np.concatenate([none, *(one.slots for one in self._open.values())]))

    @property
    def any(self) -> bool:
        return bool(self._races)

    def match(self, segment: Segment, row: int, event: int) -> None:
        """A ``match`` of a key that a store poisoned."""
        if not self._races:
            return
        entry = segment.text("match", "entry", row)
        for race in self._races.values():
            if race.key is not None and race.key == entry:
                race.matches.append(event)

    def _taken(self, window: _Open) -> NDArray[np.bool_]:
        """[n] whose slot somebody else was given since the transfer began."""
        state, slots = self._follower.rules.state, window.slots
        now = state.owner[slots].copy()
        free = now == FREE
        # Given and given back again within the window.
        now[free] = state.free_by[slots][free]
        other = (now > TREE) & (now != window.owners) & (now != window.req)
        out: NDArray[np.bool_] = other & (state.alloc_event[slots] > window.begun)
        return out

    def _rewritten(self, window: _Open) -> NDArray[np.bool_]:
        """[n] whose content another request wrote since the transfer began."""
        writes, slots = self._follower.lane("target", "FULL"), window.slots
        writer = writes.req[slots]
        other = (writer > TREE) & (writer != window.owners) & (writer != window.req)
        out: NDArray[np.bool_] = other & (writes.came(slots) > window.begun)
        freed = self._follower.rules.state.free_event[slots] > window.begun
        return out & freed

    def _found(self, window: _Open, slots: Ints, event: int, *, copied: bool) -> Cause:
        follower = self._follower
        state, names = follower.rules.state, follower.names
        first = int(slots[0])
        freed = int(state.free_event[first])
        cause_event = freed if freed > window.begun else int(state.alloc_event[first])
        owner = int(state.owner[first])
        taker = names.name(int(state.free_by[first]) if owner == FREE else owner)
        by, side = names.name(window.req), "read" if window.leaves else "write"
        evidence = [
            f"transfer {window.key} ran from event {window.begun} to event {event}; slot {first} "
            f"was freed at event {freed} and given to {taker} at event {state.alloc_event[first]}"
            if freed > window.begun
            else f"transfer {window.key} ran from event {window.begun} to event {event}; slot "
            f"{first} was given to {taker} at event {state.alloc_event[first]}"
        ]
        confidence = CERTAIN
        if copied:
            writes = follower.lane("target", "FULL")
            evidence.append(
                f"the copy at event {event} read what {names.name(int(writes.req[first]))} wrote "
                f"there at event {writes.event[first]}"
            )
        else:
            confidence = PROBABLE if self._rewritten(window).any() else POSSIBLE
            evidence.append(
                f"no copy of it is recorded: when it {'read' if window.leaves else 'wrote'} the "
                "slot, the trace does not show"
            )
        if window.name is not None:
            evidence.append(
                f"what is filed under key {window.name} {'is' if copied else 'may be'} another "
                f"request's than {by}'s"
            )
        cause = Cause(
            cls="transfer_race",
            subtype=f"{window.via}_{side}_after_free",
            cause_event=cause_event,
            corrupting_event=event if copied else None,
            culprit=Culprit(req=by, step=None, event=event, details={"transfer": window.key}),
            ruled_out=[
                RuledOut("transfer_mismatch", "the slots changed hands while the transfer ran")
            ],
            confidence=confidence,
            evidence=evidence,
        )
        race = self._races.setdefault((window.key, cause_event), _Race(cause, None))
        race.slots.update(slots.tolist())
        race.key = window.name
        ended = follower.context.ended
        if not window.leaves and owner > TREE and owner not in ended:
            race.victim = taker
        self._snapshots.note_transfer(cause_event, slots, by, event, side)
        return race.cause

    def explain(self, book: FindingBook) -> None:
        """Report what no damaged read showed; call it behind everything that explains one."""
        findings = FindingIndex(book.findings)
        for race in self._races.values():
            shown = book.by_cause.get(book.cause_key(race.cause, "target", "FULL"))
            same = findings.caused_by(race.cause.cause_event)
            other = all(f.pool_kind != "FULL" or f.slots.isdisjoint(race.slots) for f in same)
            if shown is None and other:
                slots = np.array(sorted(race.slots), dtype=np.int64)
                none = np.empty(0, dtype=np.int64)
                race.cause.evidence.append("no damaged content was read in this trace")
                shown = book.add(race.cause, race.victim, None, slots, none, read=False)
                findings.add(shown)
            if shown is not None and race.matches:
                at = ", ".join(str(event) for event in race.matches[:8])
                shown.evidence.append(
                    f"key {race.key} was matched {len(race.matches)} times since (events {at})"
                )
