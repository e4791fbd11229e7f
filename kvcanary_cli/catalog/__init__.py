"""The error catalogue: what each message of the canary means, and what to do about it.

Plain text and regular expressions only: nothing here needs torch, and it works offline.
"""

from __future__ import annotations

from kvcanary_cli.catalog.entry import Entry, Phase, Severity
from kvcanary_cli.catalog.explanation import Explanation, explain_code, explain_text, merged
from kvcanary_cli.catalog.load import catalogue, entry_of
from kvcanary_cli.catalog.log_result import LogSummary
from kvcanary_cli.catalog.log_scan import scan_log
from kvcanary_cli.catalog.match import plain_marks
from kvcanary_cli.catalog.nearest import nearest_codes, nearest_entries

__all__ = [
    "Entry",
    "Explanation",
    "LogSummary",
    "Phase",
    "Severity",
    "catalogue",
    "entry_of",
    "explain_code",
    "explain_text",
    "merged",
    "nearest_codes",
    "nearest_entries",
    "plain_marks",
    "scan_log",
]
