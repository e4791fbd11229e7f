"""Inputs of a call that were not checked: their part of the text and of the JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text

from kvcanary_cli.report.words import count, safe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvcanary_cli.attribution.report import Failed, Report


def failed_part(report: Report) -> Iterator[Text]:
    """One line for each input, whatever ``--max-rows`` says: what is missing must be seen."""
    if not report.failed:
        return
    inputs = len(report.traces) + len(report.failed)
    yield Text(f"NOT CHECKED: {len(report.failed):,} of {count(inputs, 'input')}", style="bold")
    for failed in report.failed:
        yield Text(f"  {safe(failed.message)}", overflow="fold")


def failed_dict(failed: Failed) -> dict[str, Any]:
    return {
        "path": failed.path,
        "message": failed.message,
        "hint": failed.hint,
        "exit_code": failed.exit_code,
    }
