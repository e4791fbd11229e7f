"""What a reader noticed in a trace that it could use: said once, never hidden."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kvcanary_cli.trace.fields import printable

# Confidence and cuts depend on them; each costs a replay much more than its note.
_MAX_GAPS = 100_000
_SHOWN_GAPS = 3
_REASON_CHARS = 300


@dataclass(frozen=True, slots=True)
class Gap:
    """Lost events between two events: ``i`` went from ``after_i`` to ``before_i``."""

    after_i: int
    before_i: int

    @property
    def count(self) -> int:
        return self.before_i - self.after_i - 1


@dataclass(frozen=True, slots=True)
class TornSegment:
    """A folder's last segment that could not be read.

    Attributes:
        name: Its file name.
        events: How many events it held, or None if nothing says so.
        why: What is wrong with it.
    """

    name: str
    events: int | None
    why: str


#: How the reason begins where the engine named what its pool does not have.
ENGINE_STATE = "the engine's state does not fit its pool"


@dataclass(frozen=True, slots=True)
class RecordingEnd:
    """The recorder gave up before the server ended.

    Attributes:
        event: ``i`` of its last word.
        reason: Why.
        refused: What the trace says of the event that no reader would accept, in whose place the
            last word stands; None where it ended for another reason.
    """

    event: int
    reason: str
    refused: dict[str, Any] | None = None


@dataclass(slots=True)
class TraceNotes:
    """Filled while a trace is read, and complete after its last segment.

    Attributes:
        unknown_kinds: Event kinds outside the schema, with their counts.
        unknown_fields: ``kind.field`` outside the schema, with their counts.
        unknown_families: Entries of the header's ``records`` that this version does not know.
        undeclared: Families that the header's ``records`` lacks although events of them came,
            with their counts.
        gaps: The first gaps of ``i``.
        gap_count: All of them.
        lost_events: Events lost in all gaps.
        torn: Segments of a folder that were lost.
        still_recording: Whether the folder's recorder had not finished.
        seal_interval_s: How often that recorder put its events on disk, None if it does not say.
        ended: Where and why the recorder gave up, None if it does not say that it did.
    """

    unknown_kinds: dict[str, int] = field(default_factory=dict)
    unknown_fields: dict[str, int] = field(default_factory=dict)
    unknown_families: tuple[str, ...] = ()
    undeclared: dict[str, int] = field(default_factory=dict)
    gaps: list[Gap] = field(default_factory=list)
    gap_count: int = 0
    lost_events: int = 0
    torn: list[TornSegment] = field(default_factory=list)
    still_recording: bool = False
    seal_interval_s: float | None = None
    ended: RecordingEnd | None = None

    def clear(self) -> None:
        """Forget what the events said; another pass over them says it again."""
        self.unknown_kinds.clear()
        self.unknown_fields.clear()
        self.undeclared.clear()
        self.gaps.clear()
        self.torn.clear()
        self.gap_count = self.lost_events = 0
        self.ended = None

    @property
    def missing_events(self) -> int:
        """Events lost in gaps and, as far as it is known, in torn segments."""
        return self.lost_events + sum(torn.events or 0 for torn in self.torn)

    def add_gap(self, after_i: int, before_i: int) -> None:
        gap = Gap(after_i, before_i)
        self.gap_count += 1
        self.lost_events += gap.count
        if len(self.gaps) < _MAX_GAPS:
            self.gaps.append(gap)

    def _unclosed(self) -> str:
        if self.seal_interval_s is None:
            return "it still runs, or was killed"
        return (
            "it still runs, or was killed, which costs at most the last "
            f"{self.seal_interval_s:g} s of events where the disk kept up"
        )

    def messages(self) -> list[str]:
        """One sentence for each thing noticed, in a fixed order."""
        out = []
        if self.gap_count:
            shown = ", ".join(f"{g.count} after i={g.after_i}" for g in self.gaps[:_SHOWN_GAPS])
            more = ", ..." if self.gap_count > _SHOWN_GAPS else ""
            out.append(f"{self.lost_events} events were lost while recording ({shown}{more})")
        for torn in self.torn:
            events = "an unknown number of" if torn.events is None else str(torn.events)
            out.append(f"segment {torn.name} is torn: {events} events are missing ({torn.why})")
        if self.ended is not None:
            out.append(
                f"the recording ended early, at event i={self.ended.event}: "
                f"{printable(self.ended.reason, _REASON_CHARS)}: "
                "what the server did from there on is not known"
            )
        elif self.still_recording:
            out.append(f"the recorder has not closed this trace: {self._unclosed()}")
        for kind, count in sorted(self.unknown_kinds.items()):
            out.append(
                f"unknown event kind '{printable(kind)}' ({count} events): kept, not interpreted"
            )
        for name, count in sorted(self.unknown_fields.items()):
            out.append(f"unknown field '{printable(name)}' ({count} events): kept, not interpreted")
        for family in self.unknown_families:
            out.append(f"unknown family '{printable(family)}' in the header's records: ignored")
        for family, count in sorted(self.undeclared.items()):
            out.append(
                f"{count} events of family '{family}', which the header's records does not list"
            )
        return out
