"""The events of a rank on their way to the disk: a step is numbered and taken whole, or dropped."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Protocol

from kvcanary_cli.record.sink import Group

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcanary_cli.record.keeping import Keeper
    from kvcanary_cli.record.sink import Sink

log = logging.getLogger("kvcanary.record")

Event = dict[str, Any]
#: Why the recording ended.
ENDED = "recording_ended"
#: What an event takes beside its arrays.
_EVENT_BYTES = 400
_SAY_DROPPED_EVERY_S = 60.0
_SLOW = "the disk or the copies do not keep up"


class State(Protocol):
    """Something whose changes events tell; after a gap it must be told as a whole.

    One that is changed by deferred functions alone may have a method ``lost``: steps were missed
    whose changes it never saw, so that it knows nothing any more.
    """

    def retell(self, *, gap: bool) -> list[Event]:
        """All of it, as events.

        Args:
            gap: Whether the trace goes on behind lost events (else it is a new one, empty).
        """


class Stream:
    """Steps in order, on the thread that makes their events.

    Attributes:
        dropped_steps: Steps that did not fit into the queue.
        dropped_events: Events in them.
        starts_mid_run: Whether what is recorded begins in a running engine.
        position: Number of the next event.
    """

    def __init__(
        self, sink: Sink, keeper: Keeper, *, skip_steps: int, starts_mid_run: bool
    ) -> None:
        """Nothing has been taken.

        Args:
            sink: Takes what is recorded.
            keeper: Says which triggers are due.
            skip_steps: Steps to let pass first.
            starts_mid_run: Whether the engine has been running already.
        """
        self.dropped_steps = self.dropped_events = 0
        self.starts_mid_run = starts_mid_run
        self.position = 0
        self._sink, self._keeper = sink, keeper
        self._skip_steps = skip_steps
        self._states: list[State] = []
        # State told again, which stands in front of the next step.
        self._ahead: list[Event] = []
        self._new_part = self._taken_any = False
        self._said_dropped = 0.0

    def add_state(self, state: State) -> None:
        """Have ``state`` told again behind every gap."""
        self._states.append(state)

    @property
    def steps_to_skip(self) -> int:
        """Steps that still pass unrecorded."""
        return self._skip_steps

    def take(self, events: list[Event], *, is_step: bool, complete: bool) -> None:
        """Number a step's events and pass them to the disk, or drop them.

        Args:
            events: All of them.
            is_step: Whether a forward is among them.
            complete: Whether they tell all of the step; else it is dropped.
        """
        if self._skip_steps:
            # What --start-after leaves out stays out; why nothing follows is told.
            events = [event for event in events if event["kind"] == ENDED]
        if self._skip_steps and not events:
            self._skip_steps -= is_step
            self._keeper.forget()
            if not self._skip_steps:
                self._retell(gap=False)
            return
        ended = [event for event in events if event["kind"] == ENDED]
        if not complete:
            self.drop(1, len(events) - len(ended))
            self.take_last(ended)
            return
        triggers = self._keeper.due()
        events = [*self._ahead, *events, *(trigger.event for trigger in triggers)]
        if not events:
            return
        self._ahead = []
        keeps = bool(triggers) and self._keeper.may_keep()
        if not self._offer(events, new_part=self._new_part, keeps=keeps):
            self._keeper.put_back(triggers)
            if len(events) > len(ended):
                self.drop(1, len(events) - len(ended))
            self.take_last(ended)
            return
        self._taken_any = True
        self._new_part = keeps or self._sink.part_due
        if keeps:
            self._keeper.kept()
        if self._new_part:
            self._retell(gap=False)

    def _offer(self, events: Sequence[Event], **how: bool) -> bool:
        for k, event in enumerate(events, self.position):
            event["i"] = k
        taken = self._sink.offer(Group(list(events), sum(map(_cost, events)), **how))
        if taken:
            self.position += len(events)
        return taken

    def take_last(self, ended: list[Event]) -> None:
        """Pass on why the recording ends though its last step was dropped."""
        if ended:
            self._ahead = []
            self._offer(ended, is_last=True)

    def drop(self, steps: int, events: int) -> None:
        """``steps`` with at least ``events`` are not recorded; the state is told again."""
        self.position += max(1, events)
        self.dropped_steps += steps
        self.dropped_events += events
        now = time.monotonic()
        if now - self._said_dropped >= _SAY_DROPPED_EVERY_S:
            self._said_dropped = now
            log.warning("kvcanary: %s: %s not recorded so far", _SLOW, self._dropped)
        if not self._taken_any:
            # A trace that lost its beginning has no gap: it starts here, and its header says so.
            self.starts_mid_run = True
        self._retell(gap=self._taken_any and not self._new_part)

    def lose(self) -> None:
        """Steps were missed whose changes nobody saw."""
        for state in self._states:
            lost = getattr(state, "lost", None)
            if lost is not None:
                lost()

    def forget_ahead(self) -> None:
        """What was to be told again is at fault itself."""
        self._ahead = []

    def _retell(self, *, gap: bool) -> None:
        self._ahead = [event for state in self._states for event in state.retell(gap=gap)]

    @property
    def _dropped(self) -> str:
        return f"{self.dropped_steps} steps ({self.dropped_events} events)"

    def say_dropped(self) -> None:
        """At the end: how much was dropped in all, if anything."""
        if self.dropped_steps:
            log.warning("kvcanary: %s were not recorded in all: %s", self._dropped, _SLOW)


def _cost(event: Event) -> int:
    """About what ``event`` takes in memory."""
    return _EVENT_BYTES + sum(
        getattr(value, "nbytes", 0) or (8 * len(value) if isinstance(value, list) else 0)
        for value in event.values()
    )
