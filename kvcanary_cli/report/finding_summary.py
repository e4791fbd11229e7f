"""The frozen line of a finding, for grep and for programs (docs/attribution.md).

``SUMMARY: kvcanary: CLASS SUBTYPE victim=V writer=W cause_event=E first_bad_step=S slots=L``
and, where they apply, ``lane=WORKER/POOL`` and ``rank=N``. Fields keep their order; new ones are
only ever added at the end.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from kvcanary_cli.report.words import ranges, safe

if TYPE_CHECKING:
    from kvcanary_cli.attribution.result import Finding

#: Ranges of slots in the line; what is left out follows as ``+N`` slots.
MAX_RANGES = 32
UNKNOWN = "-"


def summary_line(finding: Finding) -> str:
    """The line, without its end."""
    cause = UNKNOWN if finding.cause_event is None else str(finding.cause_event)
    if finding.cause_event is None and finding.cause_window is not None:
        cause = f"{finding.cause_window[0]}-{finding.cause_window[1]}"
    fields = {
        "victim": quoted(finding.victim),
        "writer": quoted(finding.culprit.req),
        "cause_event": cause,
        "first_bad_step": number(finding.first_bad_step),
        "slots": slot_list(finding.slots),
    }
    if (finding.worker, finding.pool_kind) != ("target", "FULL"):
        fields["lane"] = f"{finding.worker}/{finding.pool_kind}"
    if finding.rank is not None:
        fields["rank"] = str(finding.rank)
    name = finding.cls.replace("_", "-")
    words = " ".join(f"{key}={value}" for key, value in fields.items())
    return f"SUMMARY: kvcanary: {name} {finding.subtype} {words}"


def number(value: int | None) -> str:
    return UNKNOWN if value is None else str(value)


def quoted(name: str | None) -> str:
    """A name as one word: as it is, or as a JSON string if blanks or odd characters are in it."""
    if name is None:
        return UNKNOWN
    plain = name and name != UNKNOWN and '"' not in name and not any(c.isspace() for c in name)
    return name if plain and safe(name) == name else json.dumps(name)


def slot_list(slots: set[int]) -> str:
    """``5-7,9``; ``-`` without any; ``...,+N`` if N slots are left out."""
    if not slots:
        return UNKNOWN
    runs = ranges(slots).split(", ")
    if len(runs) <= MAX_RANGES:
        return ",".join(runs)
    ordered = sorted(slots)
    last = int(runs[MAX_RANGES - 1].split("-")[-1])
    left = sum(1 for slot in ordered if slot > last)
    return ",".join([*runs[:MAX_RANGES], f"+{left}"])
