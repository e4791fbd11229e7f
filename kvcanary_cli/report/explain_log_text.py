"""What a log holds, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcanary_cli.catalog.entry import Severity
from kvcanary_cli.report.tables import data_table
from kvcanary_cli.report.words import count, safe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.table import Table
    from rich.text import Text

    from kvcanary_cli.catalog.entry import Entry
    from kvcanary_cli.catalog.log_result import Count, LogSummary

_ORDER = {severity: number for number, severity in enumerate(Severity)}
_PLACES = ("count", "first line", "first time", "last line", "last time")
_RIGHT = frozenset({"count", "first line", "last line"})


def _places(found: Count) -> list[str]:
    return [
        f"{found.count:,}",
        str(found.first.line),
        found.first.timestamp or "-",
        str(found.last.line),
        found.last.timestamp or "-",
    ]


def ordered_kinds(summary: LogSummary, entries: dict[str, Entry]) -> list[tuple[Entry, Count]]:
    """The kinds in the log, the gravest first, then by first occurrence."""
    return sorted(
        ((entries[code], found) for code, found in summary.kinds.items()),
        key=lambda kind: (_ORDER[kind[0].severity], kind[1].first.line, kind[0].code),
    )


def log_parts(
    summary: LogSummary, entries: dict[str, Entry], *, width: int
) -> Iterator[str | Table | Text]:
    """The log's kinds, its violations by tag and reason, and what to look at first.

    Args:
        summary: What was counted.
        entries: The catalogue.
        width: Columns of the terminal.
    """
    kinds = ordered_kinds(summary, entries)
    yield (
        f"{safe(summary.path)}: {count(summary.lines, 'line')}, {summary.size_bytes:,} bytes; "
        f"{count(summary.recognised, 'message')} of the canary of {count(len(kinds), 'kind')}"
    )
    if kinds:
        yield ""
        yield data_table(
            ["code", "severity", *_PLACES, "meaning"],
            [[e.code, e.severity.value, *_places(found), e.title] for e, found in kinds],
            width=width,
            right=_RIGHT,
        )
    if summary.violations:
        yield ""
        yield "Violations by launch tag and reason, in order of appearance"
        yield data_table(
            ["launch_tag", "fail_reason", *_PLACES],
            [
                [tag, reason, *_places(found)]
                for (tag, reason), found in sorted(
                    summary.violations.items(), key=lambda item: item[1].first.line
                )
            ],
            width=width,
            right=_RIGHT,
        )
    yield from _remarks(summary, entries)
    first = [(entry, found) for entry, found in kinds if entry.severity is not Severity.INFO]
    if first:
        yield ""
        yield "First of each"
        for entry, found in first:
            yield f"  {entry.code}  line {found.first.line}: {safe(found.first.text)}"
    if summary.unknown:
        yield ""
        yield "Like messages of the canary, but in no entry of the catalogue"
        for found in summary.unknown.values():
            yield f"  {found.count:,} x, first in line {found.first.line}: " + safe(
                found.first.text
            )
        if summary.unknown_dropped:
            yield f"  and {count(summary.unknown_dropped, 'line')} of further forms"
    if first:
        yield ""
        yield "Next: kvcanary explain " + " ".join(entry.code for entry, _ in first[:4])


def _remarks(summary: LogSummary, entries: dict[str, Entry]) -> Iterator[str]:
    """What follows from the counts."""
    remarks = []
    lines = sum(found.count for found in summary.violations.values())
    if summary.most_violations > lines:
        remarks.append(
            f"The server counted {count(summary.most_violations, 'violation')}, the log shows "
            f"{count(lines, 'violation line')}: the rest was lost in the ring or cut off."
        )
    if summary.ring_overflow:
        remarks.append("The violation ring overflowed: later violations are not in the log.")
    if "KVC-B08" in summary.kinds:
        remarks.append(
            "Verification was skipped in some forwards (KVC-B08): they count as unchecked."
        )
    if summary.kinds and "KVC-L01" not in summary.kinds:
        remarks.append("There is no install line (KVC-L01): the log may begin after the start.")
    if "KVC-L01" in summary.kinds and not summary.grave(entries) and not summary.unknown:
        remarks.append("The canary was installed and reported nothing.")
    if remarks:
        yield ""
        yield from remarks
