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


@dataclass(frozen=True, slots=True)
class Group:
    """Events that are written together or not at all.

    Attributes:
        events: In order, with ``i``.
        cost_bytes: About what they take in memory.
        new_part: Whether a new trace begins with them, which they hold all state for.
    """

    events: list[dict[str, Any]]
    cost_bytes: int
    new_part: bool = False


class Sink:
    """The queue and its thread.

    Attributes:
        failure: Why writing has ended, or None.
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
        self._folder, self._name = folder, name
        self._header_of, self._options = header_of, options
        self._queue: deque[Group] = deque()
        self._queued_bytes = 0
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closing = False
        self._part_due = False
        self._parts: list[Path] = []
        self._part_number = 0
        self._part_bytes = self._sealed_segments = 0
        self._thread = threading.Thread(target=self._run, name="kvcanary-record", daemon=True)
        self._thread.start()

    def offer(self, group: Group) -> bool:
        """Hand ``group`` over; False if the queue is full, in which case nothing was taken."""
        with self._lock:
            full = self._queued_bytes + group.cost_bytes > self._options.queue_bytes
            if self._closing or (full and self._queue):
                return False
            self._queue.append(group)
            self._queued_bytes += group.cost_bytes
            if group.new_part:
                self._part_due = False
        return True

    @property
    def part_due(self) -> bool:
        """Whether the next group should begin a new part of the ring."""
        return self._part_due

    def close(self, timeout_s: float = 30.0) -> None:
        """Write what is queued and finish the trace."""
        with self._lock:
            self._closing = True
        self._wake.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)

    # The writer's thread.

    def _run(self) -> None:
        writer: FolderWriter | None = None
        try:
            writer = self._open()
            sealed_at = written_at = time.monotonic()
            unsealed = False
            while True:
                closing = self._closing
                group = self._take()
                if group is not None:
                    if group.new_part:
                        _finish(writer)
                        writer = self._open()
                    for event in group.events:
                        writer.write_event(event)
                    unsealed, written_at = True, time.monotonic()
                now = time.monotonic()
                due = now - sealed_at >= SEAL_INTERVAL_S or now - written_at >= _SEAL_IDLE_S
                if unsealed and (due or (closing and group is None)):
                    writer.seal()
                    self._measure(self._parts[-1])
                    sealed_at, unsealed = now, False
                if group is None:
                    if closing:
                        break
                    self._wake.wait(_POLL_S)
            _finish(writer)
        except Exception as error:
            self._fail(error)

    def _take(self) -> Group | None:
        with self._lock:
            if not self._queue:
                return None
            group = self._queue.popleft()
            self._queued_bytes -= group.cost_bytes
            return group

    def _open(self) -> FolderWriter:
        from kvcanary_cli.trace.folder_writer import FolderWriter
        from kvcanary_cli.trace.header import parse_header

        self._folder.mkdir(parents=True, exist_ok=True)
        first = not self._parts
        target = self._free_name()
        header = parse_header(self._header_of(not first), str(target))
        writer = FolderWriter(target, header, live=True)
        self._parts.append(target)
        self._part_bytes = self._sealed_segments = 0
        while self._options.ring_bytes and len(self._parts) > _RING_PARTS:
            from kvcanary_cli.trace.writer import remove

            remove(self._parts.pop(0))
        return writer

    def _free_name(self) -> Path:
        """A name that no earlier recording has: none is ever overwritten."""
        while True:
            self._part_number += 1
            number = "" if self._part_number == 1 else f".{self._part_number}"
            target = self._folder / f"{self._name}{number}.kvtrace"
            if not target.exists():
                return target

    def _measure(self, part: Path) -> None:
        from kvcanary_cli.trace.manifest import segment_name

        while (segment := part / segment_name(self._sealed_segments)).exists():
            self._part_bytes += segment.stat().st_size
            self._sealed_segments += 1
        options = self._options
        if options.ring_bytes and self._part_bytes >= options.ring_bytes // _RING_PARTS:
            self._part_due = True
        if options.max_bytes and self._part_bytes >= options.max_bytes:
            raise _SizeReached(f"{part} has reached --max-bytes {options.max_bytes}")

    def _fail(self, error: Exception) -> None:
        with self._lock:
            self._closing = True
            self._queue.clear()
            self._queued_bytes = 0
        self.failure = str(error) or type(error).__name__
        if isinstance(error, _SizeReached):
            log.warning("kvcanary: recording ends: %s", self.failure)
        else:
            log.error(
                "kvcanary: recording ends, the server runs on: %s: %s",
                type(error).__name__,
                self.failure,
            )


class _SizeReached(Exception):
    """The trace has the size that was asked for."""


def _finish(writer: FolderWriter) -> None:
    writer.__exit__(None, None, None)
