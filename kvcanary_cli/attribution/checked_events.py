"""Which events outside of forwards belong to the steps that a replay was asked to check."""

from __future__ import annotations


class CheckedEvents:
    """An event belongs to the next forward; behind the last one there is, to that one.

    Gaps do not matter: their stretches share one of these.
    """

    def __init__(self) -> None:
        # ``i`` of the last forward, of the last one before the range, and of the last one in it.
        self._last: int | None = None
        self._before: int | None = None
        self._within: int | None = None

    def note(self, event: int, *, checked: bool) -> None:
        """A forward goes by; ``checked``: its step is one to check."""
        if checked:
            if self._within is None:
                self._before = self._last
            self._within = event
        self._last = event

    def begin_at(self, event: int) -> None:
        """What stands before the first forward, at ``event``, is a cut's state: of no step."""
        if self._last is None:
            self._last = event

    def goes_on(self) -> None:
        """A forward that is not read here follows."""
        self._last = None

    def __contains__(self, event: int) -> bool:
        if self._within is None or (self._before is not None and event <= self._before):
            return False
        return event <= self._within or self._within == self._last
