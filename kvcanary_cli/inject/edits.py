"""Changes to a list of events, and the list that they make."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

Event = dict[str, Any]
#: A place in the clean run, or an inserted event itself.
Mark = int | dict[str, Any]


@dataclass(slots=True)
class Edits:
    """What a fault changes.

    Attributes:
        events: The clean run, not changed.
        changed: Place to the event that replaces it.
        inserted: Place to the events that stand in front of it.
        dropped: Places that are left out.
        launched: Inserted launches and the inserted forwards that they belong to.
    """

    events: list[Event]
    changed: dict[int, Event] = field(default_factory=dict)
    inserted: dict[int, list[Event]] = field(default_factory=dict)
    dropped: set[int] = field(default_factory=set)
    launched: list[tuple[Event, Event]] = field(default_factory=list)

    def event(self, at: int) -> Event:
        """The event at ``at`` for changing; the clean one stays as it is."""
        if at not in self.changed:
            self.changed[at] = copy.deepcopy(self.events[at])
        return self.changed[at]

    def insert(self, at: int, event: Event) -> Event:
        """Put ``event`` in front of place ``at``; later ones stand behind earlier ones."""
        self.inserted.setdefault(at, []).append(event)
        return event

    @property
    def first(self) -> int:
        """The first place that differs."""
        return min([*self.changed, *self.inserted, *self.dropped], default=len(self.events))

    def tail(self, stop: int | None = None) -> tuple[list[Event], list[int | None]]:
        """The changed events from ``first`` on, copied, and the clean place of each.

        Args:
            stop: Clean place to end before.
        """
        out: list[Event] = []
        places: list[int | None] = []
        end = len(self.events) if stop is None else stop
        for at in range(self.first, end + 1):
            for event in self.inserted.get(at, ()):
                out.append(event)
                places.append(None)
            if at < end and at not in self.dropped:
                out.append(self.changed.get(at, self.events[at]))
                places.append(at)
        self._number_steps(out, places)
        return out, places

    def _number_steps(self, tail: list[Event], places: list[int | None]) -> None:
        """A forward that is inserted takes a step of its own, later ones move on."""
        shift, last = 0, self._step_before()
        for k, (event, place) in enumerate(zip(tail, places, strict=True)):
            if "step" not in event:
                continue
            if place is not None:
                if shift:
                    event = tail[k] = event | {"step": event["step"] + shift}
            elif event["kind"] == "forward":
                shift += 1
                event["step"] = last + 1
            if event["kind"] == "forward":
                last = event["step"]
        for launch, forward in self.launched:
            launch["step"] = forward["step"]

    def _step_before(self) -> int:
        for at in range(self.first - 1, -1, -1):
            if self.events[at]["kind"] == "forward":
                return int(self.events[at]["step"])
        return next((int(e["step"]) for e in self.events if e["kind"] == "forward"), 1) - 1


def substitute(edits: Edits, start: int, end: int | None, slots: dict[int, int]) -> None:
    """One tenancy of the keys of ``slots`` takes place in their values, for all that name it.

    Args:
        start: Its alloc.
        end: The free that ends it, included; None = the end of the run.
    """
    stop = len(edits.events) if end is None else end + 1
    for at in range(start, stop):
        event = edits.events[at]
        if event.get("pool", "full") != "full":
            continue
        for key in ("slots", "out_cache_loc", "full", "src", "dst"):
            values = event.get(key)
            if type(values) is list and not slots.keys().isdisjoint(values):
                values = edits.event(at)[key]
                values[:] = [slots.get(v, v) for v in values]
