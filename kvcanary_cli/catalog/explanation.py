"""From a code or a message to what the user is told."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcanary_cli.catalog.fill import fill
from kvcanary_cli.catalog.load import catalogue
from kvcanary_cli.catalog.match import LABEL_CODES, VIOLATION, Match, find_messages
from kvcanary_cli.catalog.numbers import values_of, violation_remarks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcanary_cli.catalog.entry import Entry

_CAPACITIES = "KVC-B"


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """An entry with the numbers of one message filled in.

    Attributes:
        entry: The entry.
        match: The message, or None if only the code was given.
        further: Other messages of the same entry, in order; the texts speak of ``match``.
        remarks: What follows from the values of this message.
    """

    entry: Entry
    match: Match | None
    further: tuple[Match, ...] = ()
    remarks: tuple[str, ...]
    meaning: tuple[str, ...]
    when: tuple[str, ...]
    do: tuple[str, ...]
    before: tuple[str, ...]
    after: tuple[str, ...]

    @property
    def related(self) -> tuple[Entry, ...]:
        """The related entries."""
        return related_of(self.entry)


def related_of(entry: Entry) -> tuple[Entry, ...]:
    """The related entries; the text of another release has those of today's text as well."""
    codes = list(entry.related)
    if entry.variant_of is not None:
        codes = [entry.variant_of, *codes, *catalogue()[entry.variant_of].related]
    return tuple(catalogue()[code] for code in dict.fromkeys(codes) if code != entry.code)


def explain_code(entry: Entry) -> Explanation:
    """Explain an entry without a message."""
    return _explain(entry, None)


def explain_text(text: str) -> list[Explanation]:
    """Explain the messages in ``text`` by order of appearance; each entry once.

    Several messages of one entry become one explanation; empty if there is none.

    Args:
        text: A message as it was copied, or a bare fail reason such as ``verify_chain_hash``.
    """
    label = LABEL_CODES.get(text.strip())
    if label is not None:
        return [explain_code(catalogue()[label])]
    return _explain_all([(match.entry, match) for match in find_messages(text)])


def merged(explanations: Sequence[Explanation]) -> list[Explanation]:
    """The explanations with each entry once, all messages of it gathered."""
    return _explain_all(
        [
            (one.entry, match)
            for one in explanations
            for match in ((one.match, *one.further) if one.match else (None,))
        ]
    )


def _explain_all(found: Sequence[tuple[Entry, Match | None]]) -> list[Explanation]:
    by_code: dict[str, dict[str, Match]] = {}
    for entry, match in found:
        matches = by_code.setdefault(entry.code, {})
        if match is not None:
            matches.setdefault(repr(match.fields), match)
    return [
        _explain(catalogue()[code], _worst(code, list(matches.values())), list(matches.values()))
        for code, matches in by_code.items()
    ]


def _worst(code: str, matches: Sequence[Match]) -> Match | None:
    """The message that the texts speak of: the first, of capacities the one that needs most."""
    if len(matches) > 1 and catalogue()[code].family.startswith(_CAPACITIES):
        return max(matches, key=_largest_number)
    return matches[0] if matches else None


def _largest_number(match: Match) -> int:
    return max((int(text) for text in match.fields.values() if text.isdecimal()), default=0)


def _explain(entry: Entry, match: Match | None, matches: Sequence[Match] = ()) -> Explanation:
    fields = match.fields if match else {}
    values = values_of(entry, fields)

    def filled(texts: Sequence[str]) -> tuple[str, ...]:
        return tuple(fill(text, values) for text in texts)

    remarks = [
        case.say for case in entry.cases if re.search(case.matches, fields.get(case.field, "\0"))
    ]
    if entry.code == VIOLATION:
        for one in matches:
            remarks += violation_remarks(one.fields)
    return Explanation(
        entry=entry,
        match=match,
        further=tuple(one for one in matches if one is not match),
        remarks=tuple(dict.fromkeys(remarks)),
        meaning=filled(entry.meaning),
        when=filled(entry.when),
        do=filled(entry.do),
        before=filled(entry.before),
        after=filled(entry.after),
    )
