"""A finding as a block for people: what was read, what was there, who did it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from kvcanary_cli.report.finding_block import block_lines, headline, laid_out
from kvcanary_cli.report.finding_summary import summary_line
from kvcanary_cli.report.tables import data_table
from kvcanary_cli.report.words import count, ranges

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from kvcanary_cli.attribution.diagnose import Diagnosis
    from kvcanary_cli.attribution.result import Finding


def ownership_part(
    diagnosis: Diagnosis, width: int, max_rows: int | None
) -> Iterator[RenderableType]:
    """The broken ownership rules as a table; nothing if none was broken."""
    found = diagnosis.ownership
    if not found:
        return
    yield ""
    yield Text(f"OWNERSHIP: {count(len(found), 'broken rule')}", style="bold")
    rows = [
        (
            str(f.event),
            "-" if f.step is None else str(f.step),
            f.what,
            "free list" if f.owner is None else f.owner,
            ("a copy" if f.step is None else "padding row") if f.actor is None else f.actor,
            ranges(f.slots),
        )
        for f in found[:max_rows]
    ]
    headers = ("event", "step", "rule", "owner", "actor", "slots")
    yield data_table(headers, rows, width=width, right=frozenset({"event", "step"}))
    if max_rows is not None and len(found) > max_rows:
        yield f"... {len(found) - max_rows:,} more rows (--max-rows 0 shows all)"


def finding_part(
    finding: Finding, diagnosis: Diagnosis | None, width: int, ranks: int
) -> Iterator[RenderableType]:
    """One finding: headline, block, and its frozen SUMMARY line last."""
    yield ""
    yield Text(headline(finding), style="bold red", overflow="fold")
    block = laid_out(block_lines(finding, diagnosis, ranks), width)
    yield Text(block, overflow="fold")
    yield summary_line(finding)
