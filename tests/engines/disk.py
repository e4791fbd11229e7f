"""A disk that is as fast as a test needs it to be, however fast the real one is."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvcanary_cli.record.recorder import Recorder
    from kvcanary_cli.record.sink import Group

_POLL_S = 0.001
#: Steps that find no room while a segment is written.
_LOST = 5
#: Groups of events that a segment has, where the time between two would be another's.
_GROUPS = 20


def catch_up(recorder: Recorder | None) -> None:
    """Wait until the disk has taken all that was recorded so far."""
    session = _session(recorder)
    while session is not None and session.active and session._sink._queue:
        time.sleep(_POLL_S)


def fall_behind() -> None:
    """Let each segment take so long that some steps find no room meanwhile."""
    from kvcanary_cli.record.sink import Sink
    from kvcanary_cli.record.stream import Stream

    seal, write, drop = Sink._seal, Sink._write_group, Stream.drop
    dropped, written = [0], [0]

    def counted(self: Stream, steps: int, events: int) -> None:
        dropped[0] += steps
        drop(self, steps, events)

    def slow(self: Sink) -> None:
        before = dropped[0]
        was_unsealed = self._unsealed
        seal(self)
        while was_unsealed and dropped[0] < before + _LOST and not self._closing:
            time.sleep(_POLL_S)

    def sealed(self: Sink, group: Group) -> None:
        write(self, group)
        written[0] += 1
        if written[0] % _GROUPS == 0:
            self._seal()

    Sink._write_group = sealed  # type: ignore[method-assign]
    Stream.drop = counted  # type: ignore[method-assign]
    Sink._seal = slow  # type: ignore[method-assign]


def _session(recorder: Any) -> Any:
    follower = None if recorder is None else recorder.follower
    return None if follower is None else follower.session
