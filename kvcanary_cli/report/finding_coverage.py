"""What a finding rests on: recorded families, ranks, lost events, and what its confidence means."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcanary_cli.attribution.classes import class_pages
from kvcanary_cli.replay.coverage import WITHOUT
from kvcanary_cli.report.words import count

if TYPE_CHECKING:
    from kvcanary_cli.attribution.diagnose import Diagnosis
    from kvcanary_cli.attribution.result import Finding

# Families whose absence weakens any finding, most telling first.
_TELLING = ("alloc", "map", "history", "transfer", "launch", "prefix", "kv_hash", "namespace")
_MEANING = {
    "certain": "the trace holds every event of it, from the cause to the damage",
    "probable": "the damage is certain, one link to its cause is inferred",
    "possible": "the damage is certain, its cause is the likeliest of several",
}


def coverage_line(finding: Finding, diagnosis: Diagnosis, ranks: int) -> str:
    """Families that the class needs and those that are missing, ranks, lost events, reads."""
    result = diagnosis.replay
    records = set(result.trace.records)
    page = class_pages()[finding.cls]
    ways = sorted(page.needs, key=lambda way: (len(way - records), sorted(way)))
    needed = ways[0] if ways else frozenset()
    present, absent = sorted(needed & records), sorted(needed - records)
    parts = [f"needs {', '.join(sorted(needed))}" if needed else "needs the forwards"]
    if present and not absent:
        parts[0] += ", recorded"
    elif absent:
        parts[0] += f"; {', '.join(absent)} not recorded"
    missing = [name for name in _TELLING if name not in records]
    missing += [name for name in finding.unseen if name not in missing]
    if missing:
        parts.append("absent: " + ", ".join(f"{name} ({WITHOUT[name]})" for name in missing))
    else:
        parts.append("nothing telling is absent")
    parts.append(f"{ranks} of {count(max(diagnosis.rank.world, ranks), 'rank')}")
    reads = count(result.coverage.entries_verified, "read")
    parts.append(f"{reads} verified, {result.coverage.lost_events:,} events lost")
    return "; ".join(parts)


def confidence_line(finding: Finding) -> str:
    """The word, what it means, and what keeps it from being more."""
    meaning = _MEANING[finding.confidence]
    if finding.cause_event is None:
        meaning = "the damage is certain; what did it is not in the trace"
    line = f"{finding.confidence}: {meaning}"
    if finding.unseen:
        unseen = ", ".join(f"{name} ({WITHOUT[name]})" for name in finding.unseen)
        line = (
            f"{finding.confidence}: it rests on events that did not happen, of kinds that were "
            f"not recorded: {unseen}; "
            + (
                "a sound engine may leave the same trace"
                if finding.confidence == "possible"
                else "such an event may be the cause instead"
            )
        )
    if finding.lost_within:
        line += f"; {count(finding.lost_within, 'lost event')} before it may hold another cause"
    return line
