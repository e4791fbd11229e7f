"""A finding as labelled lines: the report that an engineer reads in an incident."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from kvcanary_cli.attribution.classes import class_pages
from kvcanary_cli.report import finding_entries as entries
from kvcanary_cli.report.finding_coverage import confidence_line, coverage_line
from kvcanary_cli.report.finding_life import freed, reallocated, timeline
from kvcanary_cli.report.finding_slots import LEGEND, slot_map
from kvcanary_cli.report.finding_summary import MAX_RANGES
from kvcanary_cli.report.words import party, ranges, safe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvcanary_cli.attribution.diagnose import Diagnosis
    from kvcanary_cli.attribution.facts import FindingFacts
    from kvcanary_cli.attribution.result import Finding

LABEL_WIDTH = 14
# Requests named in the blast radius.
_MAX_NAMES = 12
# A terminal narrower than this gets labels on lines of their own.
_MIN_WIDTH = 40


def headline(finding: Finding) -> str:
    """``==kvcanary== ERROR: use-after-free (freed_by_dedup) step 3, request B, ...``."""
    # What nothing of the pool was hit by has nobody to name, if it was no request.
    parts = [party(finding.victim)] if finding.victim is not None or finding.slots else []
    if finding.first_bad_step is not None:
        parts.insert(0, f"step {finding.first_bad_step}")
    if finding.positions:
        parts.append(_numbered("position", finding.positions))
    if finding.slots:
        parts.append(_numbered("slot", finding.slots))
    lane = "full" if finding.pool_kind == "FULL" else finding.pool_kind.lower()
    if finding.worker != "target":
        lane = f"{finding.worker} {lane}"
    rank = finding.rank if finding.rank is not None else finding.cause_rank
    where = lane if rank is None else f"{lane}, rank {rank}"
    name = finding.cls.replace("_", "-")
    return safe(
        f"==kvcanary== ERROR: {name} ({finding.subtype}) {', '.join(parts)}".rstrip()
        + f"  [{where}]  {finding.id}"
    )


def block_lines(
    finding: Finding, diagnosis: Diagnosis | None, ranks: int
) -> Iterator[tuple[str, str]]:
    """Label and text of each line between headline and SUMMARY; a repeated label is empty.

    Args:
        finding: The finding.
        diagnosis: Of the trace that it was found in; None for what only several ranks show.
        ranks: How many traces the call looked at.
    """
    facts = finding.facts
    if facts is not None:
        yield from _scene(finding, facts)
    yield "CAUSE", _cause(finding)
    yield "CULPRIT", _culprit(finding)
    yield from _under("EVIDENCE", iter(finding.evidence))
    if facts is not None:
        yield from _under("FREED", freed(facts))
        yield from _under("REALLOCATED", reallocated(facts))
        yield from _under("TIMELINE", timeline(finding, facts))
    yield from _seam(finding, facts)
    if facts is not None and facts.owners:
        yield "SLOTS", slot_map(facts.owners)
        yield "", LEGEND + ("; names are last writers" if facts.owners_are_writers else "")
    yield "BLAST RADIUS", _blast(finding)
    yield from _under("NOT", (f"{r.cls.replace('_', '-')}: {r.because}" for r in finding.ruled_out))
    if diagnosis is not None:
        yield "COVERAGE", coverage_line(finding, diagnosis, ranks)
    yield "CONFIDENCE", confidence_line(finding)
    yield "REMEDY", finding.remedy
    fixes = [f"{fix.ref}: {fix.what}" for fix in class_pages()[finding.cls].upstream]
    yield from _under("UPSTREAM", iter(fixes))


def _numbered(noun: str, numbers: set[int]) -> str:
    runs = ranges(numbers).split(", ")
    shown = ", ".join(runs[:MAX_RANGES])
    more = f" and {len(runs) - MAX_RANGES:,} more ranges" if len(runs) > MAX_RANGES else ""
    return f"{noun if len(numbers) == 1 else noun + 's'} {shown}{more}"


def _scene(finding: Finding, facts: FindingFacts) -> Iterator[tuple[str, str]]:
    label, line = entries.accessed(facts, finding.slots)
    if facts.entries or facts.reader is not None or facts.step is not None:
        yield label, line
        yield from (("", other) for other in entries.others(facts))
    if facts.entries:
        yield from _under("  found", entries.found(facts))
        yield from _under("  expected", entries.expected(facts))


def _under(label: str, lines: Iterator[str]) -> Iterator[tuple[str, str]]:
    for line in lines:
        yield label, line
        label = ""


def _cause(finding: Finding) -> str:
    if finding.cause_event is not None:
        line = f"event {finding.cause_event}"
    elif finding.cause_window is not None:
        first, last = finding.cause_window
        line = f"between events {first} and {last}: no recorded event did it"
    else:
        line = "not recorded"
    if finding.corrupting_event not in (None, finding.cause_event):
        line += f"; the wrong content came at event {finding.corrupting_event}"
    return line


def _culprit(finding: Finding) -> str:
    culprit = finding.culprit
    who = "nobody that the trace names" if culprit.req is None else party(culprit.req)
    words = [
        f"{name} {value}"
        for name, value in (("step", culprit.step), ("event", culprit.event))
        if value is not None
    ]
    words += [f"{name.replace('_', ' ')} {value}" for name, value in culprit.details.items()]
    return ", ".join([who, *words])


def _seam(finding: Finding, facts: FindingFacts | None) -> Iterator[tuple[str, str]]:
    if not finding.seam_slots:
        return
    seams = () if facts is None else facts.seams
    if len(finding.seam_slots) == 1 and len(seams) == 1:
        seam = seams[0]
        yield (
            "SEAM",
            f"slot {seam.slot} (position {seam.position}): content intact, its chain value differs "
            f"because slot {seam.prev_slot} was replaced",
        )
        return
    yield (
        "SEAM",
        f"{_numbered('slot', finding.seam_slots)}: content intact, only the predecessor was "
        "replaced",
    )


def _blast(finding: Finding) -> str:
    names = list(finding.blast_radius)
    if not names and any("what it read is discarded" in text for text in finding.evidence):
        return "no request that still ran read the damage in this trace"
    if not names:
        return "no request read the damage in this trace"
    since = "" if finding.first_bad_step is None else f" from step {finding.first_bad_step} on"
    if names == [finding.victim]:
        return f"{names[0]}{since}; no other reader"
    shown = ", ".join(names[:_MAX_NAMES])
    more = f" and {len(names) - _MAX_NAMES:,} more" if len(names) > _MAX_NAMES else ""
    return f"{shown}{more}{since}"


def laid_out(lines: Iterator[tuple[str, str]], width: int) -> str:
    """Labelled lines as text, wrapped under their labels to ``width`` columns."""
    out: list[str] = []
    for label, line in lines:
        text = safe(line)
        if width < _MIN_WIDTH:
            out.extend(filter(None, [label, textwrap.indent(text, "  ")]))
            continue
        head = label.ljust(LABEL_WIDTH)
        room = width - LABEL_WIDTH
        parts = [text] if len(text) <= room else textwrap.wrap(text, room) or [text]
        out.append(f"{head}{parts[0]}".rstrip())
        out.extend(" " * LABEL_WIDTH + part for part in parts[1:])
    return "\n".join(out)
