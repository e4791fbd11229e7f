"""Explanations, the catalogue's list and a log's counts as JSON, schema version 1."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvcanary_cli import __version__
from kvcanary_cli.catalog.load import catalogue
from kvcanary_cli.report.explain_log_text import ordered_kinds

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvcanary_cli.catalog.entry import Entry
    from kvcanary_cli.catalog.explanation import Explanation
    from kvcanary_cli.catalog.log_result import Count, LogSummary, Place

SCHEMA_VERSION = 1


def _head() -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "tool": {"name": "kvcanary", "version": __version__},
        "command": "explain",
    }


def _entry_head(entry: Entry) -> dict[str, Any]:
    return {
        "code": entry.code,
        "title": entry.title,
        "severity": entry.severity.value,
        "raised_as": entry.raised_as,
        "phase": entry.phase.value,
        "versions": {"first": entry.first, "last": entry.last},
        "message": entry.message,
        "regex": entry.matcher.strict.pattern,
        "variant_of": entry.variant_of,
    }


def _explanation(explanation: Explanation) -> dict[str, Any]:
    match = explanation.match
    return {
        **_entry_head(explanation.entry),
        "matched": None if match is None else {"fields": match.fields, "whole": match.whole},
        "further": [
            {"fields": other.fields, "whole": other.whole} for other in explanation.further
        ],
        "remarks": list(explanation.remarks),
        "meaning": list(explanation.meaning),
        "when": list(explanation.when),
        "do": list(explanation.do),
        "example": {"before": list(explanation.before), "after": list(explanation.after)},
        "related": [{"code": other.code, "title": other.title} for other in explanation.related],
    }


def explanations_object(
    explanations: Sequence[Explanation], unmatched: Sequence[tuple[str, Sequence[Entry]]]
) -> dict[str, Any]:
    """Explanations, and texts in which no message was found with the nearest entries.

    Args:
        explanations: In the order of the arguments.
        unmatched: Text and nearest entries.
    """
    return {
        **_head(),
        "entries": [_explanation(explanation) for explanation in explanations],
        "unmatched": [
            {"text": text, "nearest": [entry.code for entry in nearest]}
            for text, nearest in unmatched
        ],
    }


def list_object(entries: Iterable[Entry]) -> dict[str, Any]:
    """The whole catalogue without the explanations."""
    return {**_head(), "catalogue": [_entry_head(entry) for entry in entries]}


def _place(place: Place) -> dict[str, Any]:
    return {"line": place.line, "timestamp": place.timestamp, "text": place.text}


def _count(found: Count) -> dict[str, Any]:
    return {"count": found.count, "first": _place(found.first), "last": _place(found.last)}


def log_object(summary: LogSummary) -> dict[str, Any]:
    """What a log holds."""
    entries = catalogue()
    return {
        **_head(),
        "log": {
            "path": summary.path,
            "lines": summary.lines,
            "size_bytes": summary.size_bytes,
        },
        "kinds": [
            {
                "code": entry.code,
                "severity": entry.severity.value,
                "title": entry.title,
                **_count(found),
                "last_fields": summary.last_fields[entry.code],
            }
            for entry, found in ordered_kinds(summary, entries)
        ],
        "violations": [
            {"launch_tag": tag, "fail_reasons": reason.split("+"), **_count(found)}
            for (tag, reason), found in summary.violations.items()
        ],
        "violations_counted_by_server": summary.most_violations,
        "ring_overflow": summary.ring_overflow,
        "unrecognised": [
            {"form": form, **_count(found)} for form, found in summary.unknown.items()
        ],
        "unrecognised_dropped": summary.unknown_dropped,
        "verdict": summary.verdict(entries),
    }
