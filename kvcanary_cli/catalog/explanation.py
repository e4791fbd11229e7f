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


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """An entry with the numbers of one message filled in.

    Attributes:
        entry: The entry.
        match: The message, or None if only the code was given.
        remarks: What follows from the values of this message.
    """

    entry: Entry
    match: Match | None
    remarks: tuple[str, ...]
    meaning: tuple[str, ...]
    when: tuple[str, ...]
    do: tuple[str, ...]
    before: tuple[str, ...]
    after: tuple[str, ...]

    @property
    def related(self) -> tuple[Entry, ...]:
        """The related entries."""
        return tuple(catalogue()[code] for code in self.entry.related)


def explain_code(entry: Entry) -> Explanation:
    """Explain an entry without a message."""
    return _explain(entry, None)


def explain_text(text: str) -> list[Explanation]:
    """Explain every message in ``text``, in order; empty if there is none.

    Args:
        text: A message as it was copied, or a bare fail reason such as ``verify_chain_hash``.
    """
    label = LABEL_CODES.get(text.strip())
    if label is not None:
        return [explain_code(catalogue()[label])]
    explanations = []
    seen: set[tuple[str, str]] = set()
    for match in find_messages(text):
        key = (match.entry.code, repr(match.fields))
        if key not in seen:
            seen.add(key)
            explanations.append(_explain(match.entry, match))
    return explanations


def _explain(entry: Entry, match: Match | None) -> Explanation:
    fields = match.fields if match else {}
    values = values_of(entry, fields)

    def filled(texts: Sequence[str]) -> tuple[str, ...]:
        return tuple(fill(text, values) for text in texts)

    remarks = [
        case.say for case in entry.cases if re.search(case.matches, fields.get(case.field, "\0"))
    ]
    if entry.code == VIOLATION and match is not None:
        remarks += violation_remarks(fields)
    return Explanation(
        entry=entry,
        match=match,
        remarks=tuple(remarks),
        meaning=filled(entry.meaning),
        when=filled(entry.when),
        do=filled(entry.do),
        before=filled(entry.before),
        after=filled(entry.after),
    )
