"""One rank's recording: what an adapter talks to; collects events, survives what goes wrong."""

from __future__ import annotations

import atexit
import contextlib
import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from kvcanary_cli.record.copies import HostNow
from kvcanary_cli.record.drainer import Deferred, Drainer, Step
from kvcanary_cli.record.keeping import Keeper
from kvcanary_cli.record.sink import MAX_REASON, SEAL_INTERVAL_S, Sink
from kvcanary_cli.record.stream import ENDED, Stream
from kvcanary_cli.record.tokens import TokenCoder, key_path, load_key
from kvcanary_cli.record.triggers import SIGNAL, pull_on_signal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kvcanary_cli.record.copies import Mover
    from kvcanary_cli.record.options import RecordOptions
    from kvcanary_cli.record.stream import State

log = logging.getLogger("kvcanary.record")

Event = dict[str, Any]
_WRITE_S = 0.2
_CLOSE_S = 30.0


class StepIncompleteError(Exception):
    """What a step copied does not tell all of it: the step is not recorded."""


class Session:
    """The recording of one rank.

    An adapter calls ``emit`` for what the engine does and ``commit`` at the end of every step. It
    never blocks on the disk and never raises: after a fault it is not ``active`` any more.

    Where the engine's tensors are on a device, a session with a mover is ``asynchronous``: what
    needs their values is given to ``defer`` and runs on a thread of the session, in order, when
    copies of them are there. State that deferred functions change belongs to that thread.

    Attributes:
        active: Whether events are still taken.
        tokens: What becomes of token ids.
    """

    def __init__(
        self,
        options: RecordOptions,
        header: Mapping[str, Any],
        *,
        starts_mid_run: bool = False,
        mover: Mover | None = None,
        name: str | None = None,
    ) -> None:
        """Begin a recording.

        Args:
            options: Where to and how.
            header: Header fields ``engine``, ``rank``, ``pool``, ``records``, ``serving_args``;
                the others are filled in.
            starts_mid_run: Whether the engine has been running already.
            mover: Copies tensors without waiting (``copies.mover_of``); None = they are on the
                host, and nothing is deferred.
            name: Of the trace in the folder; None = the rank's.

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
        self._header = dict(header)
        self._items: list[Event | Deferred] = []
        self._incomplete = self._ended = self._has_failed = False
        if SIGNAL in options.triggers:
            pull_on_signal(options.path)
        self._sink = Sink(folder, name or _trace_name(header), self._header_of, options)
        self._keeper = Keeper(self._sink)
        self._stream = Stream(
            self._sink,
            self._keeper,
            skip_steps=options.start_after,
            starts_mid_run=starts_mid_run or options.start_after > 0,
        )
        self._mover = mover
        self._drainer = None if mover is None else Drainer(self._deliver)
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
        if later_part or self._stream.starts_mid_run:
            header["starts_mid_run"] = True
        return header

    def add_state(self, state: State) -> None:
        """Have ``state`` told again behind every gap."""
        self._stream.add_state(state)

    @property
    def dropped_steps(self) -> int:
        """Steps that did not fit into the queue."""
        return self._stream.dropped_steps

    @property
    def dropped_events(self) -> int:
        """Events in them."""
        return self._stream.dropped_events

    @property
    def asynchronous(self) -> bool:
        """Whether deferred functions run later."""
        return self._mover is not None

    def emit(self, event: Event) -> None:
        """Add an event, without ``i``; integer lists may be int64 arrays."""
        if self.active:
            self._items.append(event)

    def emit_all(self, events: list[Event]) -> None:
        """Add several."""
        if self.active:
            self._items.extend(events)

    def defer(self, make: Callable[..., list[Event]], *tensors: Any, fresh: bool = False) -> None:
        """Add the events that ``make`` gives for the values that ``tensors`` have by now.

        It runs at once, or in an asynchronous session later, on the session's thread and in the
        order of all deferred functions; also for a step that is dropped, so that what it changes
        stays true. It may raise ``StepIncompleteError`` to have its step dropped.

        Args:
            make: Gets int64 arrays of the tensors' shapes.
            tensors: Integers, on the device or not.
            fresh: Whether nobody writes to the tensors any more, so that no clone is needed.
        """
        if not self.active:
            return
        if self._mover is None:
            events, complete = self._made([Deferred(make, tuple(map(HostNow.of, tensors)))])
            self._items += events
            self._incomplete |= not complete
        else:
            copies = tuple(self._mover.begin(x, fresh=fresh) for x in tensors)
            self._items.append(Deferred(make, copies))

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
        items, self._items = self._items, []
        if self._drainer is None:
            incomplete, self._incomplete = self._incomplete, False
            events, _ = self._made(items)
            self._stream.take(events, is_step=step, complete=not incomplete)
        elif items or step or self._keeper.has_any:
            self._queue(items, is_step=step)

    def _queue(
        self, items: list[Event | Deferred], *, is_step: bool = False, force: bool = False
    ) -> None:
        assert self._mover is not None
        assert self._drainer is not None
        deferred = any(isinstance(item, Deferred) for item in items)
        fence = self._mover.fence() if deferred else None
        self._drainer.put(Step(items, fence, is_step), force=force)

    def _deliver(self, step: Step) -> None:
        """A step's copies are there; on the drainer's thread."""
        if self._ended:
            return
        try:
            if step.missed_steps:
                self._stream.lose()
                self._stream.drop(step.missed_steps, step.missed_events)
            if step.fault is not None and not self._has_failed:
                raise step.fault
            if step.fault is not None:
                # The engine's thread has noticed first: what is left to tell is why.
                ended = [item for item in step.items if _is_ended(item)]
                self._stream.take(ended, is_step=False, complete=False)
                return
            events, complete = self._made(step.items)
            self._stream.take(events, is_step=step.is_step, complete=complete)
        except Exception as error:
            self.fail(error)

    def _made(self, items: list[Event | Deferred]) -> tuple[list[Event], bool]:
        """The events of ``items``, and whether they are all."""
        events: list[Event] = []
        complete = True
        for item in items:
            if not isinstance(item, Deferred):
                events.append(item)
                continue
            try:
                events += item.make(*[copy.array() for copy in item.copies])
            except StepIncompleteError as error:
                log.warning("kvcanary: a step is not recorded: %s", error)
                complete = False
        return events, complete

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
        self._keeper.pull(by, text)
        if wait_s:
            self.commit()
            if self._drainer is not None:
                self._drainer.settle(wait_s)
            self._sink.settle(wait_s)

    def fail(self, error: BaseException) -> None:
        """End the recording at this event because of a fault of its own; logs once."""
        on_drainer = self._drainer is not None and self._drainer.is_current
        # The engine's thread may have ended in good order what the device has not finished.
        if self._has_failed or not (self.active or on_drainer):
            return
        self._has_failed, self.active = True, False
        with contextlib.suppress(Exception):
            log.error("kvcanary: recording ends, the server runs on", exc_info=error)
        ended = {"kind": ENDED, "reason": _reason(error)}
        before, self._items = self._items, []
        if self._drainer is not None and not on_drainer:
            try:
                self._queue([*before, ended], force=True)
            except Exception:
                # The device has failed: there is no fence behind the copies any more.
                self._queue([ended], force=True)
            self._drainer.close(timeout_s=0)
            return
        # What is still queued would follow what the fault left out.
        self._ended = True
        begun = self._stream.position
        try:
            before = before if self._drainer is None else []
            events, complete = self._made(before)
            complete &= not self._incomplete
            self._stream.take([*events, ended], is_step=False, complete=complete)
        except Exception:
            if self._stream.position == begun:
                # What was emitted before, or the state told again, is at fault itself.
                self._stream.forget_ahead()
                with contextlib.suppress(Exception):
                    self._stream.take([ended], is_step=False, complete=True)
        finally:
            self._sink.close(timeout_s=0)

    def close(self) -> None:
        """Write what there is and finish the trace."""
        atexit.unregister(self.close)
        if self.active:
            if left := self._stream.steps_to_skip:
                passed = self.options.start_after - left
                after = f"--start-after {self.options.start_after}"
                self.emit({"kind": ENDED, "reason": f"{after}: only {passed} forwards ran"})
            try:
                self.commit()
            except Exception as error:
                self.fail(error)
            self.active = False
        if self._drainer is not None:
            self._queue([], force=True)
            late = self._drainer.close(timeout_s=_CLOSE_S)
            if late and not self._ended:
                # Whatever arrives from now on is not told any more.
                self._ended = True
                why = f"the device did not answer within {_CLOSE_S:.0f} s: {late} steps are missing"
                self._stream.take_last([{"kind": ENDED, "reason": why}])
        self._sink.close()
        self._stream.say_dropped()


def _is_ended(item: Event | Deferred) -> TypeGuard[Event]:
    return not isinstance(item, Deferred) and item["kind"] == ENDED


def _reason(error: BaseException) -> str:
    """What ``recording_ended`` says of a fault."""
    try:
        return f"{type(error).__name__}: {error}"[:MAX_REASON]
    except Exception:
        return type(error).__name__


def _trace_name(header: Mapping[str, Any]) -> str:
    rank = header.get("rank", {})
    return "-".join(f"{axis}{rank.get(axis, 0)}" for axis in ("tp", "pp", "dp"))
