"""What a log holds, counted by kind."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvcanary_cli.catalog.entry import Severity

if TYPE_CHECKING:
    from kvcanary_cli.catalog.entry import Entry

_CLEAN = {Severity.INFO}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a message stands.

    Attributes:
        line: Line number from 1.
        timestamp: Time of its line, or of the nearest line above that has one; None if none has.
        text: The message's line, shortened.
    """

    line: int
    timestamp: str | None
    text: str


@dataclass(slots=True)
class Count:
    """How often something occurred, and where first and last."""

    first: Place
    last: Place
    count: int = 1

    def add(self, place: Place) -> None:
        self.count += 1
        self.last = place


@dataclass(slots=True)
class LogSummary:
    """All that was recognised in a log.

    Attributes:
        path: The log, ``-`` for stdin.
        lines: Lines read.
        size_bytes: Bytes read.
        kinds: Count for each code.
        violations: Count for each launch tag and reason of the frozen violation lines.
        unknown: Lines that begin like a canary's message and are in no entry, numbers left out.
        unknown_dropped: Further such lines whose form was not kept.
        last_fields: Values of the last message of each code.
        most_violations: Largest ``violations`` of a statistics line or block, 0 if none.
        ring_overflow: Whether a block said that the ring overflowed.
    """

    path: str
    lines: int = 0
    size_bytes: int = 0
    kinds: dict[str, Count] = field(default_factory=dict)
    violations: dict[tuple[str, str], Count] = field(default_factory=dict)
    unknown: dict[str, Count] = field(default_factory=dict)
    unknown_dropped: int = 0
    last_fields: dict[str, dict[str, str]] = field(default_factory=dict)
    most_violations: int = 0
    ring_overflow: bool = False

    @property
    def recognised(self) -> int:
        """Number of lines with a known message."""
        return sum(count.count for count in self.kinds.values())

    def grave(self, entries: dict[str, Entry]) -> list[str]:
        """Codes in the log that are more than information.

        Args:
            entries: The catalogue.
        """
        return [code for code in self.kinds if entries[code].severity not in _CLEAN]

    def verdict(self, entries: dict[str, Entry]) -> str:
        """``found``, ``clean``, or ``not_checked`` if no line of the canary was recognised.

        Args:
            entries: The catalogue.
        """
        if self.grave(entries) or self.unknown or self.most_violations:
            return "found"
        return "clean" if self.kinds else "not_checked"
