"""One rank's recording: collects events, hands them on step by step, survives what goes wrong."""

from __future__ import annotations

import atexit
import logging
import time
from collections import deque
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from kvcanary_cli.record.sink import KEPT_RINGS, MAX_REASON, SEAL_INTERVAL_S, Group, Sink
from kvcanary_cli.record.tokens import TokenCoder, key_path, load_key
from kvcanary_cli.record.triggers import SIGNAL, Trigger, pull_on_signal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvcanary_cli.record.options import RecordOptions

log = logging.getLogger("kvcanary.record")

Event = dict[str, Any]
#: What an event takes beside its arrays.
_EVENT_BYTES = 400
_SAY_DROPPED_EVERY_S = 60.0
_WRITE_S = 0.2
#: A canary that reports in every step says the same thing: its first report keeps the ring.
_TRIGGER_REST_S = 10.0


class State(Protocol):
    """Something whose changes events tell; after a gap it must be told as a whole."""

    def retell(self, *, gap: bool) -> list[Event]:
        """All of it, as events.

        Args:
            gap: Whether the trace goes on behind lost events (else it is a new one, empty).
        """


class Session:
    """The recording of one rank.

    An adapter calls ``emit`` for what the engine does and ``commit`` at the end of every step. It
    never blocks on the disk and never raises: after a fault it is not ``active`` any more.

    Attributes:
        active: Whether events are still taken.
        tokens: What becomes of token ids.
        dropped_steps: Groups that did not fit into the queue.
        dropped_events: Events in them.
    """

    def __init__(
        self,
        options: RecordOptions,
        header: Mapping[str, Any],
        *,
        starts_mid_run: bool = False,
    ) -> None:
        """Begin a recording.

        Args:
            options: Where to and how.
            header: Header fields ``engine``, ``rank``, ``pool``, ``records``, ``serving_args``;
                the others are filled in.
            starts_mid_run: Whether the engine has been running already.

        Raises:
            InputError: The key file cannot be used.
            OSError: The file system refuses.
        """
        folder = Path(options.path)
        folder.mkdir(parents=True, exist_ok=True)
        key = load_key(key_path(options.path)) if options.tokens == "salted" else None
        self.options = options
        self.tokens = TokenCoder(options.tokens, key)
        self.active = True
        self.dropped_steps = self.dropped_events = 0
        self._starts_mid_run = starts_mid_run or options.start_after > 0
        self._header = dict(header)
        self._states: list[State] = []
        self._events: list[Event] = []
        self._cost = 0
        self._i = 0
        self._new_part = False
        self._skip_steps = options.start_after
        self._said_dropped = 0.0
        self._triggers: deque[Trigger] = deque()
        self._kept_at = float("-inf")
        self._said_enough = False
        if SIGNAL in options.triggers:
            pull_on_signal(options.path)
        self._sink = Sink(folder, _trace_name(header), self._header_of, options)
        atexit.register(self.close)

    def _header_of(self, later_part: bool) -> Event:
        header: Event = {
            "kind": "header",
            "format": "kvcanary-trace",
            "version": 1,
            "chain": "splitmix64-mix3",
            "tokens": self.tokens.mode,
            "created_at": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            # What a segment takes to be written comes on top of the interval between two.
            "seal_interval_s": round(SEAL_INTERVAL_S + _WRITE_S, 3),
            **self._header,
        }
        if later_part or self._starts_mid_run:
            header["starts_mid_run"] = True
        return header

    def add_state(self, state: State) -> None:
        """Have ``state`` told again behind every gap."""
        self._states.append(state)

    def emit(self, event: Event) -> None:
        """Add an event, without ``i``; integer lists may be int64 arrays."""
        if not self.active or self._skip_steps:
            return
        self._events.append(event)
        self._cost += _EVENT_BYTES + sum(
            getattr(value, "nbytes", 0) or (8 * len(value) if isinstance(value, list) else 0)
            for value in event.values()
        )

    def emit_all(self, events: list[Event]) -> None:
        """Add several."""
        for event in events:
            self.emit(event)

    def commit(self, *, step: bool = False) -> None:
        """Hand over what was emitted since the last call: all of it, or none if it does not fit.

        Args:
            step: Whether a forward was among it, for ``start_after``.
        """
        if not self.active:
            return
        if self._sink.failure is not None:
            self.active = False
            return
        if self._skip_steps:
            self._skip_steps -= step
            if not self._skip_steps:
                self._retell(gap=False)
            return
        triggers = self._due_triggers()
        if not self._events:
            return
        events, new_part = self._events, self._new_part
        keeps = bool(triggers) and self._may_keep()
        for k, event in enumerate(events, self._i):
            event["i"] = k
        self._i += len(events)
        taken = self._sink.offer(Group(events, self._cost, new_part, keeps))
        self._events, self._cost = [], 0
        if not taken:
            self._triggers.extendleft(reversed(triggers))
            self.dropped_steps += 1
            self.dropped_events += len(events)
            self._say_dropped()
            self._retell(gap=not new_part)
            return
        self._new_part = keeps or self._sink.part_due
        if keeps:
            self._kept_at = time.monotonic()
        if self._new_part:
            self._retell(gap=False)

    def trigger(self, by: str, text: str = "", *, wait_s: float = 0.0) -> None:
        """Keep the ring as it is after this step, here and in the other ranks.

        An adapter calls it when the engine's own canary reports something. Without ``--trigger``
        for ``by`` nothing happens. May be called from any thread.

        Args:
            by: ``canary``, or ``signal``.
            text: What was reported, in the engine's words.
            wait_s: Give up the step at hand here, and wait so long for the disk: for an engine
                that ends itself right after. Only on the thread that emits.
        """
        if not self.active or by not in self.options.triggers:
            return
        trigger = self._sink.pull(by, text)
        if trigger is not None:
            self._triggers.append(trigger)
        if wait_s:
            self.commit()
            self._sink.settle(wait_s)

    def _due_triggers(self) -> list[Trigger]:
        """Triggers that came since the last step, each told as an event of this one."""
        while (heard := self._sink.heard()) is not None:
            self._triggers.append(heard)
        due = []
        while self._triggers:
            trigger = self._triggers.popleft()
            due.append(trigger)
            self.emit(trigger.event)
        return due

    def _may_keep(self) -> bool:
        if time.monotonic() - self._kept_at < _TRIGGER_REST_S:
            return False
        if self._sink.kept_rings < KEPT_RINGS:
            return True
        if not self._said_enough:
            self._said_enough = True
            log.warning("kvcanary: %d rings are kept already: the ring goes on", KEPT_RINGS)
        return False

    def _retell(self, *, gap: bool) -> None:
        for state in self._states:
            self.emit_all(state.retell(gap=gap))

    def _say_dropped(self) -> None:
        now = time.monotonic()
        if now - self._said_dropped >= _SAY_DROPPED_EVERY_S:
            self._said_dropped = now
            log.warning(
                "kvcanary: the disk does not keep up: %d steps (%d events) not recorded so far",
                self.dropped_steps,
                self.dropped_events,
            )

    def fail(self, error: BaseException) -> None:
        """End the recording at this event because of a fault of its own; logs once."""
        if not self.active:
            return
        log.error("kvcanary: recording ends, the server runs on", exc_info=error)
        self._events.append(
            {"kind": "recording_ended", "reason": f"{type(error).__name__}: {error}"[:MAX_REASON]}
        )
        self.commit()
        self.active = False
        self._sink.close(timeout_s=0)

    def close(self) -> None:
        """Write what there is and finish the trace."""
        if self.active:
            self.commit()
            self.active = False
        self._sink.close()
        if self.dropped_steps:
            log.warning(
                "kvcanary: %d steps (%d events) were not recorded in all: the disk did not keep up",
                self.dropped_steps,
                self.dropped_events,
            )


def _trace_name(header: Mapping[str, Any]) -> str:
    rank = header.get("rank", {})
    return "-".join(f"{axis}{rank.get(axis, 0)}" for axis in ("tp", "pp", "dp"))
