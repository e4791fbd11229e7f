"""A finding as a block for people: what was read, what was there, who did it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from kvcanary_cli.report.tables import data_table
from kvcanary_cli.report.words import ranges, safe

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
    yield Text(f"OWNERSHIP: {len(found):,} broken rules", style="bold")
    rows = [
        (
            str(f.event),
            "-" if f.step is None else str(f.step),
            f.what,
            "free list" if f.owner is None else f.owner,
            "padding row" if f.actor is None else f.actor,
            ranges(f.slots),
        )
        for f in found[:max_rows]
    ]
    headers = ("event", "step", "rule", "owner", "actor", "slots")
    yield data_table(headers, rows, width=width, right=frozenset({"event", "step"}))
    if max_rows is not None and len(found) > max_rows:
        yield f"... {len(found) - max_rows:,} more rows (--max-rows 0 shows all)"


def finding_part(finding: Finding, diagnosis: Diagnosis | None) -> Iterator[RenderableType]:
    """One finding, headline first, its SUMMARY line last."""
    yield ""
    yield Text(_headline(finding), style="bold red")
    yield Text("\n".join(_lines(finding)), overflow="fold")


def _headline(finding: Finding) -> str:
    victim = "the prefix cache" if finding.victim is None else f"request {finding.victim}"
    where = f"step {finding.first_bad_step}, {victim}"
    if finding.positions:
        where += f", positions {ranges(finding.positions)}"
    if finding.slots:
        where += f", slots {ranges(finding.slots)}"
    name = finding.cls.replace("_", "-")
    return safe(f"==kvcanary== ERROR: {name} ({finding.subtype}) {where}  [{finding.id}]")


def _lines(finding: Finding) -> list[str]:
    culprit = finding.culprit
    who = "nobody that the trace shows" if culprit.req is None else f"request {culprit.req}"
    when = [
        f"{name} {value}"
        for name, value in (("step", culprit.step), ("event", culprit.event))
        if value is not None
    ]
    when += [f"{name} {value}" for name, value in culprit.details.items()]
    cause = f"event {finding.cause_event}"
    if finding.cause_event is None:
        cause = "not recorded"
        if finding.cause_window is not None:
            cause = f"between events {finding.cause_window[0]} and {finding.cause_window[1]}"
    out = [f"CAUSE         {cause}", f"CULPRIT       {', '.join([who, *when])}"]
    out += [f"EVIDENCE      {line}" for line in finding.evidence]
    if finding.seam_slots:
        out.append(
            f"SEAM          slots {ranges(finding.seam_slots)}: content intact, only the "
            "predecessor was replaced"
        )
    if finding.blast_radius:
        out.append(f"BLAST RADIUS  {', '.join(finding.blast_radius)}")
    out += [f"NOT           {r.cls.replace('_', '-')}: {r.because}" for r in finding.ruled_out]
    out.append(f"CONFIDENCE    {finding.confidence}")
    out.append(f"REMEDY        {finding.remedy}")
    return [safe(line) for line in out]
