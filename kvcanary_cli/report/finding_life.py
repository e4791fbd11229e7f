"""What happened to a finding's slots, event by event, and who freed and got them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcanary_cli.report.words import ranges

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvcanary_cli.attribution.facts import FindingFacts, LifeEvent
    from kvcanary_cli.attribution.result import Finding

_WHAT = {
    "transfer_begin": "transfer begins",
    "row_release": "row released",
    "lut": "translation of",
    "verified": "sound when read:",
    "state": "recording begins:",
    "check": "fingerprints compared:",
}
# Lines of the timeline; the first and last halves are shown.
_MAX_LINES = 24


def timeline(finding: Finding, facts: FindingFacts) -> Iterator[str]:
    """One line per event, the cause and the corrupting one marked."""
    lines = [_line(event, finding) for event in facts.life]
    left = facts.life_total - len(lines)
    if len(lines) > _MAX_LINES:
        half = _MAX_LINES // 2
        left += len(lines) - _MAX_LINES
        lines = [*lines[:half], *lines[-half:]]
    if left:
        lines.insert(len(lines) // 2, f"... {left} more events")
    yield from lines


def _line(event: LifeEvent, finding: Finding) -> str:
    words = [f"event {event.event}", _WHAT.get(event.what, event.what)]
    if event.slots:
        words.append(slots_words(event))
    if event.who is not None:
        words.append(
            f"by {event.who}" if event.what not in _OF else f"{_OF[event.what]} {event.who}"
        )
    if event.step is not None:
        words.append(f"(step {event.step})")
    if event.note:
        words.append(f"({event.note})")
    marks = []
    if event.event == finding.cause_event and event.what not in _NO_CAUSE:
        marks.append("<- cause")
    if event.event == finding.corrupting_event and event.what in _CORRUPTS:
        marks.append("<- corrupts")
    return "  ".join([" ".join(words), *marks])


_OF = {
    "alloc": "to",
    "check": "of",
    "match": "for",
    "end": "of",
    "row_release": "of",
    "transfer_begin": "for",
}
_NO_CAUSE = frozenset({"read", "verified", "launch", "end"})
_CORRUPTS = frozenset({"write", "copy", "move", "map", "accept", "publish", "match"})


def slots_words(event: LifeEvent) -> str:
    """``slots 5-7``, with how many are left out."""
    word = "slot" if event.slots_total == 1 else "slots"
    more = event.slots_total - len(event.slots)
    return f"{word} {ranges(event.slots)}" + (f" and {more:,} more" if more else "")


def freed(facts: FindingFacts) -> Iterator[str]:
    """Who gave the slots back, when and why, and whether a row still named them."""
    for event in facts.life:
        if event.what != "free":
            continue
        giver = "" if event.who is None else f"by {event.who} "
        line = f"{giver}at event {event.event}, {slots_words(event)}"
        if event.note:
            line += f": {event.note}"
        held = [e for e in facts.life if e.what == "map" and e.event < event.event and e.slots]
        mine = {slot for e in held for slot in e.slots} & set(event.slots)
        if mine and facts.row is not None and facts.event > event.event:
            since = max(e.event for e in held)
            line += f"; row {facts.row} named them since event {since} and was not remapped"
        yield line


def reallocated(facts: FindingFacts) -> Iterator[str]:
    """To whom freed slots went."""
    frees = [e for e in facts.life if e.what == "free"]
    for event in facts.life:
        before = [e for e in frees if e.event < event.event and set(e.slots) & set(event.slots)]
        if event.what == "alloc" and before:
            taker = "" if event.who is None else f"to {event.who} "
            yield f"{taker}at event {event.event}, {slots_words(event)}"
