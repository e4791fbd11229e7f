"""From the engine's thread to the disk: a bounded queue, and a thread that writes the trace.

Segments are sealed at least once a second, so that a killed process loses one second at most. The
engine's thread never waits for the disk: what does not fit into the queue is refused.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvcanary_cli.record.room import Room
from kvcanary_cli.record.triggers import Trigger, TriggerFile

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kvcanary_cli.record.options import RecordOptions
    from kvcanary_cli.trace.folder_writer import FolderWriter

log = logging.getLogger("kvcanary.record")

SEAL_INTERVAL_S = 0.8
#: A server that has nothing to do may be stopped any moment.
_SEAL_IDLE_S = 0.3
_POLL_S = 0.1
#: A ring of two parts keeps between half of what was asked for and all of it.
_RING_PARTS = 2
#: Rings of one rank that triggers may keep: a canary that reports on and on must not fill the disk.
KEPT_RINGS = 4
#: Characters of the reason that ``recording_ended`` gives.
MAX_REASON = 500


@dataclass(frozen=True, slots=True)
class Group:
    """Events that are written together or not at all.

    Attributes:
        events: In order, with ``i``.
        cost_bytes: About what they take in memory.
        new_part: Whether a new trace begins with them, which they hold all state for.
        keeps: Whether the ring is kept as it is behind them; the next group begins a new part.
        is_last: Whether nothing follows: it is taken though the queue be full.
    """

    events: list[dict[str, Any]]
    cost_bytes: int
    new_part: bool = False
    keeps: bool = False
    is_last: bool = False


def _load_writer() -> None:
    """Import what the thread writes with: an import cannot finish while the process ends."""
    import torch  # noqa: F401

    import kvcanary_cli.record.checked_writer
    import kvcanary_cli.trace.header
    import kvcanary_cli.trace.writer  # noqa: F401


class Sink:
    """The queue and its thread.

    Attributes:
        failure: Why writing has ended, or None.
        kept_rings: How often the ring was kept.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        header_of: Callable[[bool], dict[str, Any]],
        options: RecordOptions,
    ) -> None:
        """Start writing.

        Args:
            folder: Folder of the recording; made if it is not there.
            name: Name of this rank's trace, without suffix.
            header_of: Makes the header; its argument says whether the trace is a later part.
            options: Sizes.
        """
        self.failure: str | None = None
        self.kept_rings = 0
        self._folder, self._name = folder, name
        self._header_of, self._options = header_of, options
        self._queue: deque[Group] = deque()
        self._queued_bytes = 0
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._settled = threading.Event()
        self._closing = False
        # Parts of a ring that were asked for, that are begun, and the last that is full: the part
        # that is full may not be the one that the engine's thread is in by now.
        self._asked_part = self._begun_part = 0
        self._full_part = -1
        self._part_began = time.monotonic()
        self._parts: list[Path] = []
        self._part_number = 0
        self._room = Room(_limit(options))
        self._sealed_at = time.monotonic()
        self._unsealed = False
        self._last_i = -1
        self._file = TriggerFile(folder) if options.triggers else None
        self._heard: deque[Trigger] = deque()
        self._writer: FolderWriter | None = None
        _load_writer()
        self._thread = threading.Thread(target=self._run, name="kvcanary-record", daemon=True)
        self._thread.start()

    def offer(self, group: Group) -> bool:
        """Hand ``group`` over; False if the queue is full, in which case nothing was taken."""
        with self._lock:
            full = self._queued_bytes + group.cost_bytes > self._options.queue_bytes
            if self._closing or (full and self._queue and not group.is_last):
                return False
            self._queue.append(group)
            self._queued_bytes += group.cost_bytes
            self._settled.clear()
            if group.new_part:
                self._asked_part += 1
                self._part_began = time.monotonic()
        return True

    @property
    def part_due(self) -> bool:
        """Whether the next group should begin a new part of the ring."""
        seconds = self._options.ring_seconds
        if seconds and time.monotonic() - self._part_began >= seconds / _RING_PARTS:
            return True
        return self._full_part == self._asked_part

    def pull(self, by: str, text: str) -> Trigger | None:
        """Tell the other ranks of a trigger; None if the file system refuses."""
        if self._file is None:
            return None
        try:
            return self._file.pull(by, text)
        except OSError as error:
            log.warning("kvcanary: other ranks are not told of the trigger: %s", error)
            return Trigger(by, text, self._file.origin)

    @property
    def has_heard(self) -> bool:
        """Whether ``heard`` will give one."""
        return bool(self._heard)

    def heard(self) -> Trigger | None:
        """The next trigger that another rank or a signal told of."""
        return self._heard.popleft() if self._heard else None

    def settle(self, timeout_s: float) -> bool:
        """Wait until all that was handed over is on disk; whether it is."""
        self._wake.set()
        return self._settled.wait(timeout_s)

    def close(self, timeout_s: float = 30.0) -> None:
        """Write what is queued and finish the trace."""
        with self._lock:
            self._closing = True
        self._wake.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)

    # The writer's thread.

    def _run(self) -> None:
        try:
            self._write()
        except Exception as error:
            self._fail(error)

    def _write(self) -> None:
        self._sealed_at = written_at = listened_at = time.monotonic()
        while True:
            closing = self._closing
            group = self._take()
            if group is not None:
                self._write_group(group)
                written_at = time.monotonic()
            now = time.monotonic()
            due = now - self._sealed_at >= SEAL_INTERVAL_S or now - written_at >= _SEAL_IDLE_S
            hurry = group is None and (closing or self._wake.is_set())
            if due or hurry:
                self._seal()
            if self._file is not None and now - listened_at >= _POLL_S:
                self._heard.extend(self._file.fresh())
                listened_at = now
            if group is None:
                if closing:
                    break
                with self._lock:
                    if not self._queue and not self._unsealed:
                        self._settled.set()
                        self._wake.clear()
                self._wake.wait(_POLL_S)
        if not self._part_number:
            self._open()
        if self._writer is not None:
            _finish(self._writer)
        self._settled.set()

    def _take(self) -> Group | None:
        with self._lock:
            if not self._queue:
                return None
            group = self._queue.popleft()
            self._queued_bytes -= group.cost_bytes
            return group

    def _write_group(self, group: Group) -> None:
        self._begun_part += group.new_part
        if group.new_part or self._writer is None:
            if self._writer is not None:
                _finish(self._writer)
            # With its first events, for only then it is known how the trace begins.
            self._open()
        elif self._room.is_tight(group.cost_bytes) and not group.is_last:
            self._seal()
        assert self._writer is not None
        for event in group.events:
            self._writer.write_event(event)
            self._last_i = event["i"]
        self._room.hold(group.cost_bytes)
        self._unsealed = True
        if group.keeps:
            _finish(self._writer)
            self._writer, self._unsealed = None, False
            self._keep()

    def _seal(self) -> None:
        """Put what was written on disk, and look how much that is by now."""
        if not self._unsealed or self._writer is None:
            return
        self._writer.seal()
        self._sealed_at, self._unsealed = time.monotonic(), False
        if not self._room.measure(self._parts[-1]):
            return
        if not self._options.is_ring:
            raise _SizeReached(f"--max-bytes {self._options.max_bytes} is reached")
        self._full_part = self._begun_part

    def _keep(self) -> None:
        """Give the ring's parts names of their own, which nothing removes any more."""
        number = 1
        while any(self._folder.glob(f"{self._name}.kept{number}.*")):
            number += 1
        for part in self._parts:
            rest = part.name.removeprefix(self._name)
            target = part.with_name(f"{self._name}.kept{number}{rest}")
            part.rename(target)
            log.warning("kvcanary: %s: the ring is kept", target)
        self._parts.clear()
        self.kept_rings += 1

    def _open(self) -> None:
        from kvcanary_cli.record.checked_writer import CheckedWriter
        from kvcanary_cli.trace.header import parse_header

        self._folder.mkdir(parents=True, exist_ok=True)
        later = self._part_number > 0
        target = self._free_name()
        header = parse_header(self._header_of(later), str(target))
        self._writer = CheckedWriter(target, header)
        self._parts.append(target)
        self._room.begin()
        while self._options.is_ring and len(self._parts) > _RING_PARTS:
            from kvcanary_cli.trace.writer import remove

            remove(self._parts.pop(0))

    def _free_name(self) -> Path:
        """A name that no earlier recording has: none is ever overwritten."""
        while True:
            self._part_number += 1
            number = "" if self._part_number == 1 else f".{self._part_number}"
            target = self._folder / f"{self._name}{number}.kvtrace"
            if not target.exists():
                return target

    def _fail(self, error: Exception) -> None:
        with self._lock:
            self._closing = True
            self._queue.clear()
            self._queued_bytes = 0
        self.failure = str(error) or type(error).__name__
        if isinstance(error, _SizeReached):
            log.warning("kvcanary: recording ends: %s", self.failure)
            self._last_word(self.failure)
        else:
            from kvcanary_cli.record.checked_writer import EngineStateError
            from kvcanary_cli.trace.notes import ENGINE_STATE

            kind, more = type(error).__name__, {}
            if isinstance(error, EngineStateError):
                kind, self._last_i = ENGINE_STATE, error.index - 1
                more = {"refused": error.refused}
            reason = f"{kind}: {self.failure}"
            log.error("kvcanary: recording ends, the server runs on: %s", reason)
            self._last_word(reason, more)
        self._settled.set()

    def _last_word(self, reason: str, more: dict[str, Any] | None = None) -> None:
        """Say in the trace why it ends here, if it can still be written to; ``more`` are fields."""
        if self._writer is None:
            return
        event = {"kind": "recording_ended", "i": self._last_i + 1, "reason": reason[:MAX_REASON]}
        event |= more or {}
        try:
            self._writer.write_event(event)
            _finish(self._writer)
        except Exception:
            self._short_word(event)

    def _short_word(self, event: dict[str, Any]) -> None:
        """The last word without what is held back: on a full disk, that makes room for it."""
        assert self._writer is not None
        try:
            self._writer.drop_unsealed()
            self._writer.write_event(event)
            _finish(self._writer)
        except Exception as error:
            log.warning("kvcanary: the trace does not say that it ended early: %s", error)


def _limit(options: RecordOptions) -> int:
    """Bytes of a trace at most, 0 = any number: a ring's parts have them together."""
    if not options.is_ring:
        return options.max_bytes
    sizes = [size for size in (options.ring_bytes, options.max_bytes) if size]
    return min(sizes, default=0) // _RING_PARTS


class _SizeReached(Exception):
    """The trace has the size that was asked for."""


def _finish(writer: FolderWriter) -> None:
    writer.__exit__(None, None, None)
