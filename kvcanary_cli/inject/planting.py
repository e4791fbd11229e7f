"""A planted fault and its truth, and the kinds of faults as a table."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvcanary_cli.inject.contents import BadRead, Watch
from kvcanary_cli.inject.fingerprints import Bytes

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from kvcanary_cli.inject.clean_run import CleanRun
    from kvcanary_cli.inject.edits import Edits, Mark

Event = dict[str, Any]
#: How often a kind draws anew before it says that the run offers no occasion.
TRIES = 80


@dataclass(slots=True, kw_only=True)
class Planted:
    """One fault.

    Attributes:
        edits: What it changes.
        slots: Slots whose content, name or bytes it makes wrong.
        causes: Any of these events is a right cause.
        culprits: Any of these requests is a right culprit, None = nobody; empty = nobody.
        subtypes: Any of these is a right sub-type.
        victims: Who loses data; filled by ``watch`` where the reads decide.
        step: First step at which it can be seen.
        also_step: Another step that is right, where it hangs on what the slot held before.
        until: Clean place behind which everything that it must show has happened.
        bytes: (event, pool, half, slot, fingerprint): bytes that change in front of the event.
        histories: Tokens of requests that it adds.
        note: One sentence for people.
        cls: Class that a diagnosis should give; "" = that of its kind.
    """

    edits: Edits
    slots: set[int]
    causes: list[Mark]
    culprits: set[str | None] = field(default_factory=set)
    subtypes: set[str] = field(default_factory=set)
    victims: set[str] = field(default_factory=set)
    step: int | None = None
    also_step: int | None = None
    until: int = 0
    bytes: list[tuple[Mark, str, str, int, int]] = field(default_factory=list)
    histories: dict[str, list[int]] = field(default_factory=dict)
    note: str = ""
    cls: str = ""


@dataclass(frozen=True, slots=True)
class FaultKind:
    """One kind of fault.

    Attributes:
        name: As users call it.
        cls: Class that a diagnosis should give.
        meaning: One line.
        needs: Families that a trace must have recorded.
        plant: Draws an occasion and plants it; None = this draw found none.
        several_ranks: The fault shows only beside the clean rank.
    """

    name: str
    cls: str
    meaning: str
    needs: frozenset[str]
    plant: Callable[[CleanRun, random.Random], Planted | None]
    several_ranks: bool = False

    def missing(self, run: CleanRun) -> list[str]:
        """Families that the trace lacks."""
        return sorted(self.needs - run.records)


@dataclass(frozen=True, slots=True)
class Built:
    """A planted fault as events.

    Attributes:
        first: Clean place from which on ``tail`` replaces the run.
        tail: Numbered events.
        causes: ``i`` of the right causes.
        planted: What it was built from.
    """

    first: int
    tail: list[Event]
    causes: list[int]
    planted: Planted


def watch(run: CleanRun, planted: Planted, suspects: set[int] | None = None) -> bool:
    """Find who reads the damage first, and fill ``victims``, ``step`` and ``until``.

    Returns:
        Whether anybody does.
    """
    tail, places = planted.edits.tail()
    follower = Watch(run, planted.edits, suspects or planted.slots, planted.histories)
    bad = follower.bad_reads(tail)
    if not bad:
        return False
    planted.victims |= {read.req for read in bad}
    planted.step = bad[0].step
    planted.until = _place_behind(places, bad[0].k, run)
    return True


def first_bad_reads(run: CleanRun, planted: Planted, suspects: set[int]) -> list[BadRead]:
    """The wrong reads of the first forward that has any."""
    tail, _places = planted.edits.tail()
    return Watch(run, planted.edits, suspects, planted.histories).bad_reads(tail)


def _place_behind(places: list[int | None], k: int, run: CleanRun) -> int:
    """Clean place behind the forward at ``k`` of a tail, and its fingerprints."""
    for place in places[k:]:
        if place is not None:
            return run.behind_forward(place)
    return len(run.events)


def build(run: CleanRun, planted: Planted, stop: int | None = None) -> Built:
    """Number the events anew, and make fingerprints and causes fit.

    Args:
        run: The clean run.
        planted: The fault.
        stop: Clean place to end before, None = the end.
    """
    edits = planted.edits
    tail, places = edits.tail(stop)
    where = {id(event): k for k, event in enumerate(tail)}
    of_place = {place: k for k, place in enumerate(places) if place is not None}

    def find(mark: Mark) -> int | None:
        return of_place.get(mark) if isinstance(mark, int) else where.get(id(mark))

    changes: dict[int, list[Any]] = {}
    for mark, *change in planted.bytes:
        at = find(mark)
        if at is not None:
            changes.setdefault(at, []).append(change)
    tail = Bytes(run, edits.first).rewrite(tail, places, changes)
    numbered = _numbered(run, edits, tail, places)
    causes = []
    for mark in planted.causes:
        at = find(mark)
        if at is not None:
            causes.append(int(numbered[at]["i"]))
        elif isinstance(mark, int) and mark < edits.first:
            causes.append(int(run.events[mark]["i"]))
    return Built(edits.first, numbered, causes, planted)


def _numbered(
    run: CleanRun, edits: Edits, tail: list[Event], places: list[int | None]
) -> list[Event]:
    """``i`` anew: no gap more or less than in the clean run."""
    first = run.events[edits.first]["i"] if edits.first < len(run.events) else None
    if first is None:
        first = run.events[-1]["i"] + 1
    out, shift = [], 0
    last_place, i = edits.first - 1, first - 1
    for event, place in zip(tail, places, strict=True):
        if place is None:
            i += 1
            shift += 1
        else:
            shift -= sum(1 for at in range(last_place + 1, place) if at in edits.dropped)
            i = run.events[place]["i"] + shift
            last_place = place
        out.append({"kind": event["kind"], "i": i} | {k: v for k, v in event.items() if k != "i"})
        out[-1]["i"] = i
    return out
