"""What a finding's slots held and what belonged there."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from kvcanary_cli.attribution.facts import MAX_ENTRIES
from kvcanary_cli.report.words import count, ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from kvcanary_cli.attribution.facts import Act, EntryFact, FindingFacts

# Tokens listed of one writer, and writers listed.
_MAX_TOKENS = 12
_MAX_GROUPS = 6


def accessed(facts: FindingFacts, damaged: set[int]) -> tuple[str, str]:
    """Label and line of who read, wrote, freed ... what, through which row, at which step.

    Args:
        facts: The scene.
        damaged: Slots of the finding.
    """
    label = facts.access.upper()
    who = _nobody(facts) if facts.reader is None else facts.reader
    details = [] if facts.row is None else [f"row {facts.row}"]
    if facts.mode is not None:
        details.append(facts.mode)
    if facts.prefix is not None:
        details.append(f"prefix {facts.prefix}")
    slots = {entry.slot for entry in facts.entries} - facts.not_met
    if not slots:
        slots = set(sorted(damaged)[:MAX_ENTRIES])
    total = facts.entries_total - len(facts.not_met) if facts.entries else len(damaged)
    line = f"{_of_slots(slots, total)} by {who}".strip()
    if details:
        line += f" ({', '.join(details)})"
    if facts.step is not None:
        line += f" at step {facts.step}"
    line += f", event {facts.event}"
    if facts.reasons:
        line += ": " + ", ".join(f"{name} x{times}" for name, times in facts.reasons)
    return label, line


def _of_slots(slots: Collection[int], total: int) -> str:
    if not slots:
        return ""
    more = f" and {total - len(slots):,} more" if total > len(slots) else ""
    return f"of {'slot' if total == 1 else 'slots'} {ranges(slots)}{more}"


def others(facts: FindingFacts) -> Iterator[str]:
    """What further readers of the same forward met that the first one did not."""
    for other in facts.others[:_MAX_GROUPS]:
        of_slots = _of_slots(other.slots, other.slots_total)
        yield f"{of_slots} by {other.reader} (row {other.row}, prefix {other.prefix})"
    left = len(facts.others) - _MAX_GROUPS
    if left > 0:
        yield f"... {count(left, 'more reader')}"


def _nobody(facts: FindingFacts) -> str:
    """Who acted where no request did."""
    if facts.access == "read":
        return "the prefix cache's sweep"
    if facts.access == "write":
        return "a copy" if facts.step is None else "a padding row"
    return "nobody that the trace names"


def found(facts: FindingFacts) -> Iterator[str]:
    """What stood in the slots, by writer."""
    bytes_only = {name for name, _times in facts.reasons} == {"verify_real_kv_hash"}
    for line in _groups(facts, _found_line, lambda e: e.writer):
        yield f"{line}; the KV bytes differ" if bytes_only else line


def expected(facts: FindingFacts) -> Iterator[str]:
    """What belonged there, and who had written the slots before."""
    yield from _groups(facts, _expected_line, lambda e: e.before)


def _groups(
    facts: FindingFacts,
    line: Callable[[Sequence[EntryFact], Act], str],
    act: Callable[[EntryFact], Act],
) -> Iterator[str]:
    groups = [list(group) for _, group in groupby(facts.entries, key=act)]
    for group in groups[:_MAX_GROUPS]:
        yield line(group, act(group[0]))
    left = facts.entries_total - sum(len(group) for group in groups[:_MAX_GROUPS])
    if left > 0:
        yield f"... {count(left, 'more entry', 'more entries')}"


def _found_line(group: Sequence[EntryFact], writer: Act) -> str:
    tokens = _tokens([e.found_token for e in group])
    places = [e.found_position for e in group if e.found_position is not None]
    where = f" @ {_places(places)}" if places else ""
    return f"{tokens}{where}, {written(writer)}"


def _expected_line(group: Sequence[EntryFact], before: Act) -> str:
    tokens = _tokens([e.expected_token for e in group])
    places = [e.position for e in group if e.position >= 0]
    where = f" @ {_places(places)}" if places else ""
    tail = "" if before.event is None else f"; before: {written(before)}"
    return f"{tokens}{where}{tail}"


def _places(places: Sequence[int]) -> str:
    """Positions: a range if they run on, one by one in slot order otherwise."""
    if sorted(set(places)) == list(places):
        return ranges(places)
    shown = " ".join(map(str, places[:_MAX_TOKENS]))
    return shown if len(places) <= _MAX_TOKENS else f"{shown} ..."


def _tokens(tokens: Sequence[int | None]) -> str:
    known = [str(token) for token in tokens if token is not None]
    if not known:
        return "tokens not compared"
    word = "token" if len(known) == 1 else "tokens"
    more = len(known) - _MAX_TOKENS
    return f"{word} {' '.join(known[:_MAX_TOKENS])}" + (f" and {more:,} more" if more > 0 else "")


_HOW = {"copy": "copied in for", "verify": "written in verification by", "forward": "written by"}


def written(act: Act) -> str:
    """``written by C at step 2 (event 14)``."""
    if act.how == "nothing" or act.event is None:
        return "never written in this trace"
    if act.how == "state":
        return "there when the recording began"
    who = act.req if act.req is not None else "nobody that the trace names"
    step = "" if act.step is None else f" at step {act.step}"
    moved = "" if act.moved is None else f", moved here at event {act.moved}"
    return f"{_HOW[act.how]} {who}{step} (event {act.event}){moved}"
