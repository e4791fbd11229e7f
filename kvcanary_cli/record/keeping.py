"""When a ring is kept: triggers that are due, and how often that may be."""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import TYPE_CHECKING

from kvcanary_cli.record.sink import KEPT_RINGS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcanary_cli.record.sink import Sink
    from kvcanary_cli.record.triggers import Trigger

log = logging.getLogger("kvcanary.record")

#: A canary that reports in every step says the same thing: its first report keeps the ring.
_TRIGGER_REST_S = 10.0


class Keeper:
    """Triggers of one rank, its own and those that it hears of."""

    def __init__(self, sink: Sink) -> None:
        """None was pulled.

        Args:
            sink: Tells other ranks, and hears of them.
        """
        self._sink = sink
        self._triggers: deque[Trigger] = deque()
        self._kept_at = float("-inf")
        self._said_enough = False

    def pull(self, by: str, text: str) -> None:
        """Something was reported here; may be called from any thread."""
        trigger = self._sink.pull(by, text)
        if trigger is not None:
            self._triggers.append(trigger)

    @property
    def has_any(self) -> bool:
        """Whether ``due`` will give one."""
        return bool(self._triggers) or self._sink.has_heard

    def due(self) -> list[Trigger]:
        """Triggers that came since the last step."""
        while (heard := self._sink.heard()) is not None:
            self._triggers.append(heard)
        due = []
        while self._triggers:
            due.append(self._triggers.popleft())
        return due

    def put_back(self, triggers: Sequence[Trigger]) -> None:
        """Their step was dropped: they are due with the next one."""
        self._triggers.extendleft(reversed(triggers))

    def forget(self) -> None:
        """What was pulled by now is of no interest."""
        self._triggers.clear()

    def may_keep(self) -> bool:
        """Whether the ring is kept for what is due now; says once that it is not any more."""
        if time.monotonic() - self._kept_at < _TRIGGER_REST_S:
            return False
        if self._sink.kept_rings < KEPT_RINGS:
            return True
        if not self._said_enough:
            self._said_enough = True
            log.warning("kvcanary: %d rings are kept already: the ring goes on", KEPT_RINGS)
        return False

    def kept(self) -> None:
        """The ring is kept."""
        self._kept_at = time.monotonic()
