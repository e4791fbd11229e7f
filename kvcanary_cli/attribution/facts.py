"""What was true around a finding's slots when it was made: the ledger moves on, these stay.

Everything here is bounded, however large the damage: what was left out is counted.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Damaged entries kept one by one.
MAX_ENTRIES = 64
#: Slots kept of one event of a slot's life.
MAX_SLOTS = 256
#: Events of the slots' life.
MAX_LIFE = 48
#: Slots of the owner map.
MAX_OWNERS = 96


@dataclass(frozen=True, slots=True)
class Act:
    """A write of a slot.

    Attributes:
        req: Who wrote, None if no request did or none is known.
        step: Step of its forward, None outside one.
        event: ``i`` of the write, None = no write is known.
        how: ``forward``, ``verify`` (a speculative batch), ``copy``, ``state`` (it was there
            when the recording began) or ``nothing``.
        moved: ``i`` of the copy that brought the content here from the slot it was written to,
            None = it was written here.
    """

    req: str | None
    step: int | None
    event: int | None
    how: str
    moved: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryFact:
    """One damaged entry.

    Attributes:
        slot, position: Where it stands, and the position it was read or written for.
        found_token, found_position: What the slot held; None if not known.
        expected_token: None if the token was not compared.
        writer, before: Last write and the write before it.
    """

    slot: int
    position: int
    found_token: int | None
    found_position: int | None
    expected_token: int | None
    writer: Act
    before: Act


@dataclass(frozen=True, slots=True, kw_only=True)
class SeamFact:
    """An intact entry whose predecessor was replaced."""

    slot: int
    position: int
    prev_slot: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotOwner:
    """One cell of the owner map.

    Attributes:
        slot: Slot.
        owner: Request, ``tree``, ``free``, ``?`` (not known) or ``reserved``.
        damaged: It belongs to the finding.
        foreign: Damaged, and it belongs to somebody whom the reader did not share it with.
        dangling: Free, and still named by a row of the batch.
    """

    slot: int
    owner: str
    damaged: bool
    foreign: bool
    dangling: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LifeEvent:
    """One event in the life of the damaged slots.

    Attributes:
        event: ``i``.
        what: ``map``, ``alloc``, ``free``, ``own``, ``publish``, ``match``, ``launch``, ``write``,
            ``copy``, ``read``, ... : the kind of event, or what it did.
        who: Request or owner, None if none is named.
        step: Step of a forward or launch.
        slots: Slots of the finding that it concerned, at most ``MAX_SLOTS``.
        slots_total: How many there were.
        note: Further words, may be empty.
    """

    event: int
    what: str
    who: str | None
    step: int | None = None
    slots: tuple[int, ...] = ()
    slots_total: int = 0
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherReader:
    """Who read, in the same forward, what the finding's reader did not.

    Attributes:
        reader: Request.
        row, prefix: As in ``FindingFacts``.
        slots: Ascending, at most ``MAX_SLOTS``.
        slots_total: How many there were.
    """

    reader: str
    row: int
    prefix: int
    slots: tuple[int, ...]
    slots_total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingFacts:
    """The scene of a finding when it was first seen.

    Attributes:
        event, step: Of the forward, sweep or event that showed it.
        mode: Mode of the forward, None outside one.
        reader: Request that read or wrote, None in a sweep.
        row, prefix: Its table row and how many positions it read; None where unknown.
        access: How it was met: ``read``, ``write`` (what a forward or copy was about to write),
            ``alloc``, ``free``, ``own``, ``publish``, ``match``, or ``check`` (fingerprints that
            the recorder compared).
        reasons: (fail reason, how many entries), of the damaged entries in that step.
        entries: Damaged entries, at most ``MAX_ENTRIES``; ``entries_total`` counts all.
        seams: Seams, at most ``MAX_ENTRIES``; ``seams_total`` counts all.
        owners: Slots around the damage, ascending; gaps are gaps.
        owners_are_writers: The map names last writers: owners of this pool are not recorded.
        life: Events in order, at most ``MAX_LIFE``; ``life_total`` counts all.
        others: Who read the damage that ``reader`` did not.
        not_met: Slots of the finding that ``reader`` did not meet in that forward.
    """

    event: int
    step: int | None
    mode: str | None
    reader: str | None
    row: int | None
    prefix: int | None
    access: str
    reasons: tuple[tuple[str, int], ...]
    entries: tuple[EntryFact, ...]
    entries_total: int
    seams: tuple[SeamFact, ...]
    seams_total: int
    owners: tuple[SlotOwner, ...]
    owners_are_writers: bool
    life: tuple[LifeEvent, ...]
    life_total: int
    others: tuple[OtherReader, ...] = ()
    not_met: frozenset[int] = frozenset()
