"""One damaged entry, with everything that the rules ask about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvcanary_cli.attribution.ledger import NEVER
from kvcanary_cli.attribution.result import CERTAIN, Culprit, RuledOut

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvcanary_cli.attribution.context import Window
    from kvcanary_cli.attribution.ledger import Writes
    from kvcanary_cli.replay.forwards import Forward


@dataclass(slots=True, kw_only=True)
class Damage:
    """A violating entry of the lane ``worker``/``pool_kind``.

    Attributes:
        victim: Name code of the reader, or ``TREE`` in a sweep.
        row: Row of the request table, -1 in a sweep.
        position: Position that was read for (verify), or where the token belonged (write).
        slot: Slot.
        stored_position, stored_token, expected_token: What was found; the last one None if it
            was not compared.
        kv_only: Only the KV fingerprint differs, and with ``seam`` the chain value.
        seam: The slot's predecessor was replaced since.
        unmapped: The reader's row names no slot at ``position``.
        mapped_slot: What the table names at ``position``; 0 = not known.
        step, event: Of the forward or sweep.
        forward: The forward, None in a sweep.
        true_position: Where the victim's row ends by its lengths: what is read from there on was
            not there to be read.
        row_offset: How far the row's positions are off that end, 0 = not at all.
        writes: The lane's writers.
        full_slot: The reader's slot of the full pool, in a SWA lane; 0 = not known.
        full_writes: Writers of the full pool.
    """

    worker: str
    pool_kind: str
    victim: int
    row: int
    position: int
    slot: int
    stored_position: int
    stored_token: int
    expected_token: int | None
    kv_only: bool
    step: int
    event: int
    forward: Forward | None
    true_position: int | None
    row_offset: int
    writes: Writes
    full_slot: int = 0
    full_writes: Writes | None = None
    seam: bool = False
    unmapped: bool = False
    mapped_slot: int = 0

    def writer_event(self) -> int:
        """When the content was written, here or where it was moved from."""
        return int(self.writes.event[self.slot])

    def came_event(self) -> int:
        """When the content came into the slot."""
        return max(self.writer_event(), int(self.writes.moved_event[self.slot]))


@dataclass(slots=True, kw_only=True)
class Cause:
    """What a rule concluded; causes of one ``group`` are one finding whatever their events.

    ``follows`` are events that, if they turn out to be another finding's cause, are this one's.
    ``awaited`` is a transfer that had not brought the content yet when it was read.
    ``sources`` are slots that the damage was in before copies moved it to where it was met.
    ``other_side`` are evidence, told once even where other damage showed the cause before, which
    makes the cause as sure as ``confidence`` says, and a slot that is damaged as well, or None.
    ``of_reader`` is a reader, and evidence that is told once of each that has the same cause.
    ``rests_on`` names families whose silence the conclusion rests on: where one of them was not
    recorded, what was not seen may have happened, and the cause is at most so sure.
    """

    cls: str
    subtype: str
    cause_event: int | None
    corrupting_event: int | None
    culprit: Culprit
    cause_window: tuple[int, int] | None = None
    ruled_out: list[RuledOut] = field(default_factory=list)
    confidence: str = CERTAIN
    evidence: list[str] = field(default_factory=list)
    group: tuple[object, ...] | None = None
    follows: tuple[int, ...] = ()
    sources: tuple[int, ...] = ()
    rests_on: Mapping[str, str] = field(default_factory=dict)
    awaited: Window | None = None
    other_side: tuple[str, int | None] | None = None
    of_reader: tuple[str, tuple[str, ...]] | None = None


def at_event(event: int) -> str:
    """When something happened, in words."""
    return "before the record" if event == NEVER else f"at event {event}"


def event_or_none(event: int) -> int | None:
    return None if event == NEVER else int(event)
