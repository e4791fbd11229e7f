"""What a question about a trace is told while the trace goes by, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvcanary_cli.errors import NothingCheckedError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kvcanary_cli.attribution.inspect_pass import Scene
    from kvcanary_cli.replay.forwards import Forward
    from kvcanary_cli.trace.segment import Segment

    Ints = NDArray[np.int64]

#: Lines of a life that are kept; what is left out is counted.
MAX_LINES = 2000
#: What a line says that stands for lost events.
GAP = "events lost"


@dataclass(slots=True)
class Answer:
    """What was asked and what the trace says.

    Attributes:
        title: The question's object in words.
        facts: (name, value) of what holds over all; values are JSON values.
        columns: Names of the table's columns.
        rows: The table: one dictionary a line, keys are ``columns``; values are JSON values.
        left_out: Lines that were not kept.
    """

    title: str
    facts: list[tuple[str, Any]] = field(default_factory=list)
    columns: tuple[str, ...] = ()
    rows: list[dict[str, Any]] = field(default_factory=list)
    left_out: int = 0


class Question:
    """Base of the questions; the trace goes by event by event.

    Attributes:
        columns: Names of the table's columns.
        done: Nothing further can change the answer.
        first_event, last_event: Range of events seen.
        trace: Name of the trace that is asked, None so far.
        known_since: First event behind the last gap, None without one.
        told_since: The same, when the last line was kept.
    """

    columns: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.done = False
        self.trace: str | None = None
        self.first_event: int | None = None
        self.last_event: int | None = None
        self.known_since: int | None = None
        self.told_since: int | None = None
        self.rows: list[dict[str, Any]] = []
        self.left_out = 0
        # Gaps that no line stands behind so far.
        self._gaps: list[dict[str, Any]] = []

    def seen(self, event: int) -> bool:
        """An event goes by; whether the question wants it."""
        if self.first_event is None:
            self.first_event = event
        self.last_event = event
        return not self.done

    def event(self, scene: Scene, segment: Segment, k: int, kind: str, row: int) -> None:
        """An event other than a forward, before it is applied."""

    def forward(self, scene: Scene, forward: Forward, lanes: list[Ints]) -> None:
        """A forward, after its reads and before its writes."""

    def begin_anew(self, event: int) -> None:
        """Events were lost before ``event``: nothing known from before them holds."""
        line = dict.fromkeys(self.columns) | {"event": event, "what": GAP}
        if "note" in line:
            line["note"] = f"lost after event {self.last_event}; nothing known before them holds"
        self._gaps.append(line)
        self.known_since = event

    def after(self, scene: Scene, event: int) -> None:
        """The event has been applied."""

    def end(self, scene: Scene) -> None:
        """The trace has ended."""

    def add(self, row: dict[str, Any]) -> None:
        """Keep a line; the beginning is kept, and the newest line of a full table is counted."""
        self.tell_gaps()
        self.told_since = self.known_since
        self._keep(row)

    def tell_gaps(self) -> None:
        """Let the table say where events were lost."""
        for line in self._gaps if "what" in self.columns else ():
            self._keep(line)
        self._gaps.clear()

    def _keep(self, row: dict[str, Any]) -> None:
        if len(self.rows) < MAX_LINES:
            self.rows.append(row)
        else:
            self.left_out += 1

    def answer(self) -> Answer:
        """The answer, after the pass.

        Raises:
            NothingCheckedError: The thing asked for does not occur.
        """
        raise NotImplementedError

    def gap_facts(self) -> list[tuple[str, Any]]:
        """From where on what the last lines say is known, where events were lost."""
        return [] if self.told_since is None else [("known since event", self.told_since)]

    def nothing(self, message: str, hint: str | None = None) -> NothingCheckedError:
        """The error for a thing that does not occur."""
        if self.first_event is None:
            name = self.trace or "the trace"
            return NothingCheckedError(
                f"{name}: no events", hint="kvcanary trace info says what the header promises"
            )
        return NothingCheckedError(message, hint=hint)
