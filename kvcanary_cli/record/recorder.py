"""What the recorders of all engines are: hooks, and a follower until a fault or the end."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Protocol

from kvcanary_cli.errors import KvCanaryError
from kvcanary_cli.record.patching import Patcher

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcanary_cli.record.options import RecordOptions
    from kvcanary_cli.record.patching import Hook
    from kvcanary_cli.record.session import Session

log = logging.getLogger("kvcanary.record")


class HasSession(Protocol):
    """What turns an engine's calls into events."""

    session: Session


class Recorder:
    """Places the hooks; an engine's recorder makes its follower when the engine is there.

    Attributes:
        options: What to record.
        patcher: The hooks.
        follower: What turns calls into events; None before the engine is there.
    """

    def __init__(self, options: RecordOptions) -> None:
        self.options = options
        self.follower: Any = None
        self._ended = False
        self.patcher = Patcher(self._hooks(), self._is_recording, self._fault)

    def _hooks(self) -> Sequence[Hook]:
        """The engine's hooks, bound to this recorder."""
        raise NotImplementedError

    def _is_recording(self) -> bool:
        """Not any more where the recording has ended by itself."""
        follower: HasSession | None = self.follower
        return not self._ended and (follower is None or follower.session.active)

    def _fault(self, error: Exception) -> None:
        """A fault of the recorder: the recording ends, the engine does not notice."""
        self._ended = True
        if self.follower is not None:
            self.follower.session.fail(error)
        elif isinstance(error, KvCanaryError | OSError):
            # A place that cannot be written to, a file that is no key: nothing to be traced back.
            log.error("kvcanary: not recording, the server runs on: %s", error)
        else:
            log.error("kvcanary: not recording, the server runs on", exc_info=error)

    def close(self) -> None:
        """Finish the trace."""
        self._ended = True
        if self.follower is not None:
            self.follower.session.close()
