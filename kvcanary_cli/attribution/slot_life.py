"""The life of a few slots as the ledger still knows it, in order of events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvcanary_cli.abi.constants import PoolKind
from kvcanary_cli.attribution.facts import MAX_SLOTS, LifeEvent
from kvcanary_cli.attribution.ledger import BY_COPY, BY_STATE, NEVER, NOBODY, TREE
from kvcanary_cli.attribution.ownership import BAD_WHATS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvcanary_cli.attribution.follow import Follower
    from kvcanary_cli.replay.forwards import Forward

    Ints = NDArray[np.int64]


class Life:
    """Collects events; those alike but for their slots become one.

    Args:
        follower: The ledger.
    """

    def __init__(self, follower: Follower) -> None:
        self._follower = follower
        self._events: dict[tuple[int, str, str | None, int | None, str], set[int]] = {}

    def add(
        self,
        event: int,
        what: str,
        who: str | None,
        slots: Ints,
        *,
        step: int | None = None,
        note: str = "",
    ) -> None:
        if event != NEVER:
            key = (int(event), what, who, step, note)
            self._events.setdefault(key, set()).update(slots.tolist())

    def drop(self, event: int, what: str) -> None:
        """Forget what was said of an event, which is going to be told with more."""
        self._events = {k: v for k, v in self._events.items() if k[:2] != (event, what)}

    def add_row(
        self, row: int, positions: dict[int, int], forward: Forward | None, reader: str | None
    ) -> None:
        """When the cells of ``row`` that name the slots were set, and when the row was released.

        Args:
            row: Row of the request table.
            positions: Slot to the position that it was read for.
            forward: The reading forward, None in a sweep.
            reader: Whose release of the row matters.
        """
        facts = self._follower.context.row(row)
        if forward is None or row not in forward.row_as_read:
            for slot, position in list(positions.items())[:MAX_SLOTS]:
                event = facts.mapped_at(position)
                self.add(event, "map", None, _one(slot), note=f"row {row}")
        who = self._follower.names.name(facts.released_by)
        if facts.released_event != NEVER and who == reader:
            none = np.empty(0, dtype=np.int64)
            self.add(facts.released_event, "row_release", who, none, note=f"row {row}")
            self.add(
                facts.first_map_after(facts.released_event), "map", None, none, note=f"row {row}"
            )

    def add_free(self, event: int, slots: Ints) -> None:
        """Tell the free at ``event``, which need not be the last one of each of ``slots``."""
        past = self._follower.rules.state.past_frees
        for slot in slots[:MAX_SLOTS].tolist():
            free = past.first(slot, event - 1, event + 1)
            if free is not None:
                self.add(event, "free", free.by, _one(slot), note=free.reason)

    def told(self) -> list[LifeEvent]:
        """The events in order."""
        out = []
        for (event, what, who, step, note), slots in self._events.items():
            out.append(
                LifeEvent(
                    event=event,
                    what=what,
                    who=who,
                    step=step,
                    slots=tuple(sorted(slots)[:MAX_SLOTS]),
                    slots_total=len(slots),
                    note=note,
                )
            )
        return sorted(out, key=lambda e: (e.event, _ORDER.get(e.what, 5)))


# One forward reads before it writes.
_ORDER = {"read": 1, "write": 2}


def _one(slot: int) -> Ints:
    return np.array([slot], dtype=np.int64)


def slots_life(
    follower: Follower,
    lane: tuple[str, str],
    slots: Ints,
    *,
    reader: str | None,
    writer: str | None,
) -> Life:
    """What the ledger knows of ``slots``.

    Args:
        follower: The ledger.
        lane: Worker and pool of the slots.
        slots: [n] slots.
        reader, writer: Whose end, and whose match, is told as well.
    """
    life = Life(follower)
    scene = _Scene(follower, life, lane, slots)
    if lane[1] == "FULL":
        scene.owners()
    else:
        scene.translations()
    scene.writers()
    for name in dict.fromkeys((reader, writer)):
        if name is not None:
            scene.request(name)
    return life


@dataclass(slots=True)
class _Scene:
    follower: Follower
    life: Life
    lane: tuple[str, str]
    slots: Ints

    def owners(self) -> None:
        state, names, slots = self.follower.rules.state, self.follower.names, self.slots
        for event in _events(state.alloc_event[slots]):
            mine = slots[state.alloc_event[slots] == event]
            # Whoever holds a slot since its alloc got it there; later owners got it otherwise.
            since = state.since[mine] == event
            owner = int(state.owner[mine[since][0]]) if since.any() else NOBODY
            self.life.add(event, "alloc", names.name(owner), mine)
        for event in _events(state.free_event[slots]):
            mine = slots[state.free_event[slots] == event]
            for by in np.unique(state.free_by[mine]).tolist():
                some = mine[state.free_by[mine] == by]
                reason = state.reasons[int(state.free_reason[some[0]])]
                self.life.add(event, "free", names.name(by), some, note=reason)
        self._broken()
        for event in _events(state.published_event[slots]):
            mine = slots[state.published_event[slots] == event]
            by = int(state.published_by[mine[0]])
            self.life.add(event, "publish", None if by == TREE else names.name(by), mine)

    def _broken(self) -> None:
        """The last broken rules, where neither the last alloc nor the last free is that event."""
        state, slots = self.follower.rules.state, self.slots
        bad = state.bad_event[slots]
        told = (bad == state.alloc_event[slots]) | (bad == state.free_event[slots])
        for event in _events(bad[~told]):
            mine = slots[(bad == event) & ~told]
            by = self.follower.names.name(state.custody.broken_by(int(mine[0])))
            self.life.add(event, BAD_WHATS[int(state.bad_what[mine[0]])], by, mine)

    def translations(self) -> None:
        writes = self.follower.lane(*self.lane)
        lut_event = self.follower.context.lut_event
        slots = self.slots[:MAX_SLOTS]
        full = writes.batch_row[slots].tolist()
        events = np.array([lut_event.get(slot, NEVER) for slot in full], dtype=np.int64)
        for event in _events(events):
            mine = sorted(
                slot for slot, at in zip(full, events.tolist(), strict=True) if at == event
            )
            note = (
                f"full slots {mine[0]} to {mine[-1]}" if len(mine) > 1 else f"full slot {mine[0]}"
            )
            self.life.add(event, "lut", None, slots[events == event], note=note)

    def writers(self) -> None:
        follower, slots = self.follower, self.slots
        writes, names = follower.lane(*self.lane), follower.names
        self._acts(writes.before_req, writes.before_step, writes.before_event, None)
        self._acts(writes.req, writes.step, writes.event, writes.kind)
        for event in _events(writes.moved_event[slots]):
            mine = slots[writes.moved_event[slots] == event]
            copy = follower.context.copies.get(event)
            via = "moved within the pool" if copy is None else copy.via
            self.life.add(event, "move", None, mine, note=via)
        reads = writes.sound_reads(slots)
        for event in _events(reads):
            for note, mine in self._compared(event, slots[reads == event]):
                self.life.add(event, "verified", None, mine, note=note)
        for event in _events(writes.pad_event[slots]):
            mine = slots[writes.pad_event[slots] == event]
            step, row = int(writes.pad_step[mine[0]]), int(writes.pad_row[mine[0]])
            self.life.add(
                event, "write", "padding", mine, step=step, note=f"batch row {row} is padding"
            )
        for slot in slots[:MAX_SLOTS].tolist():
            copy = follower.context.copies.get(int(writes.event[slot]))
            if copy is not None:
                name = names.name(copy.by)
                note = "" if copy.transfer is None else f"transfer {copy.transfer}"
                self.life.add(copy.begun_event, "transfer_begin", name, _one(slot), note=note)
            forked = follower.context.cow_event.get(slot, NEVER)
            self.life.add(forked, "fork", None, _one(slot), note="copy on write intended")

    def _compared(self, event: int, slots: Ints) -> list[tuple[str, Ints]]:
        """What of ``slots``, read at ``event``, was not compared there, and of which of them."""
        pool = self.follower.pool
        lane = None if pool is None else pool.lanes.get((self.lane[0], PoolKind[self.lane[1]]))
        if lane is None or not lane.kv:
            return [("", slots)]
        looked = np.min([kv.agreed[slots] for kv in lane.kv.values()], axis=0)
        looked[looked >= event] = event
        writes = self.follower.lane(*self.lane)
        came = writes.came(slots)
        looked[looked < np.where(came <= event, came, writes.before_event[slots])] = NEVER
        return [
            (
                ""
                if last == event
                else "its bytes were not compared"
                if last == NEVER
                else f"its bytes were compared at event {last} for the last time",
                slots[looked == last],
            )
            for last in np.unique(looked).tolist()
        ]

    def _acts(
        self,
        req: NDArray[np.int32],
        step: NDArray[np.int32],
        event: Ints,
        kind: NDArray[np.int8] | None,
    ) -> None:
        follower, slots = self.follower, self.slots
        for when in _events(event[slots]):
            mine = slots[event[slots] == when]
            moved = self.follower.lane(*self.lane).moved_event[mine] != NEVER
            moved &= kind is not None
            for code, away in {*zip(req[mine].tolist(), moved.tolist(), strict=True)}:
                some = mine[(req[mine] == code) & (moved == away)]
                first = int(some[0])
                at = None if int(step[first]) == NOBODY else int(step[first])
                what, note = "write", "elsewhere, moved here later" if away else ""
                if kind is not None and kind[first] == BY_COPY:
                    copy = follower.context.copies.get(when)
                    what, note = "copy", copy.via if copy is not None else ""
                elif kind is not None and kind[first] == BY_STATE:
                    what, note = "state", "there when the recording began"
                who = None if code == TREE else follower.names.name(code)
                self.life.add(when, what, who, some, step=at, note=note)
                if at is not None:
                    launched = follower.context.launches.get((code, at), NEVER)
                    self.life.add(launched, "launch", who, some, step=at)

    def request(self, name: str) -> None:
        """When ``name`` ended, and when it matched the slots."""
        context, code = self.follower.context, self.follower.names.code(name)
        none = np.empty(0, dtype=np.int64)
        self.life.add(context.ended.get(code, NEVER), "end", name, none, note="finished or aborted")
        for slot in self.slots[:MAX_SLOTS].tolist():
            match = context.matched(code, slot)
            if match is not None:
                self.life.add(match.event, "match", name, _one(slot), note=f"entry {match.entry}")
        accept = context.accepts.get(code)
        if accept is not None:
            nodes = ", ".join(map(str, accept.nodes[:16]))
            self.life.add(accept.event, "accept", name, none, note=f"nodes {nodes}")


def _events(column: Ints) -> list[int]:
    """Different events of a column, newest last, bounded."""
    events: list[int] = np.unique(column[column != NEVER]).tolist()
    return events[-MAX_SLOTS:]
