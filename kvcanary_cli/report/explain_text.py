"""Explanations and the catalogue's list as text."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from kvcanary_cli.catalog.entry import Phase
from kvcanary_cli.report.words import safe

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.table import Table
    from rich.text import Text

    from kvcanary_cli.catalog.entry import Entry
    from kvcanary_cli.catalog.explanation import Explanation

# Prose wider than this is hard to read, however wide the terminal is.
_WIDEST_PROSE = 100
_NARROWEST_PROSE = 40
_MOST_FURTHER = 10


def _prose(text: str, width: int, first: str, rest: str) -> list[str]:
    columns = max(_NARROWEST_PROSE, min(width, _WIDEST_PROSE))
    return textwrap.wrap(
        safe(text),
        columns,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _section(title: str, texts: Iterable[str], width: int, *, numbered: bool) -> list[str]:
    lines = ["", title]
    for number, text in enumerate(texts, 1):
        mark = f"{number}. " if numbered else "- "
        lines += _prose(text, width, "  " + mark, " " * (2 + len(mark)))
    return lines


def _appears(entry: Entry) -> str:
    return f"Appears {entry.phase.words}."


def explanation_lines(explanation: Explanation, *, width: int) -> Iterator[str]:
    """One explanation as lines.

    Args:
        explanation: What to print.
        width: Columns for prose; messages and examples are never broken.
    """
    entry, match = explanation.entry, explanation.match
    yield f"{entry.code}  {entry.severity}, {entry.raised_as}"
    yield f"  {entry.title}"
    yield f"  {_appears(entry)}"
    if entry.variant_of:
        yield f"  The same message in later releases: {entry.variant_of}."
    yield ""
    yield f"Message ({entry.versions})"
    yield f"  {entry.message}"
    if match is not None and match.fields:
        shown = ", ".join(f"{name} = {safe(value)}" for name, value in match.fields.items())
        yield ""
        yield "In your message" + ("" if match.whole else ", which is cut short")
        yield f"  {shown}"
        for match in explanation.further[:_MOST_FURTHER]:
            shown = ", ".join(f"{name} = {safe(value)}" for name, value in match.fields.items())
            yield f"  also: {shown}" + ("" if match.whole else ", cut short")
        if len(explanation.further) > _MOST_FURTHER:
            yield f"  and {len(explanation.further) - _MOST_FURTHER} more; kvcanary explain --log"
    if explanation.remarks:
        for remark in explanation.remarks:
            yield from _prose(remark, width, "  ", "  ")
    yield ""
    yield "What it means"
    for text in explanation.meaning:
        yield from _prose(text, width, "  ", "  ")
    yield from _section("When it happens", explanation.when, width, numbered=False)
    yield from _section("What to do, best first", explanation.do, width, numbered=True)
    yield ""
    yield "Example"
    for name, lines in (("before:", explanation.before), ("after:", explanation.after)):
        for number, line in enumerate(lines):
            yield f"  {name if number == 0 else '':<9}{safe(line)}"
    if explanation.related:
        yield ""
        yield "Related"
        for other in explanation.related:
            yield f"  {other.code}  {other.title}"


def list_table(entries: Sequence[Entry], *, width: int) -> Table | Text:
    """The catalogue: code, severity and meaning."""
    # Imported here: an explanation is plain lines and does without Rich.
    from kvcanary_cli.report.tables import data_table

    return data_table(
        ["code", "severity", "meaning"],
        [
            [
                entry.code,
                entry.severity.value,
                entry.title + (" (never released)" if entry.phase is Phase.NEVER else ""),
            ]
            for entry in entries
        ],
        width=width,
        right=frozenset(),
    )


def suggestion_lines(entries: Iterable[Entry]) -> list[str]:
    """Entries near to a text that is in none."""
    return [f"  {entry.code}  {entry.title}: {entry.message}" for entry in entries]
