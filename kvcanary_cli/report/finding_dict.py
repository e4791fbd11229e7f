"""Findings and ownership findings as JSON values (docs/output.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvcanary_cli.report.finding_scene import scene_dict
from kvcanary_cli.report.finding_summary import summary_line

if TYPE_CHECKING:
    from kvcanary_cli.attribution.result import Finding, OwnershipFinding


def ownership_dict(found: OwnershipFinding) -> dict[str, Any]:
    return {
        "event": found.event,
        "step": found.step,
        "what": found.what,
        "owner": found.owner,
        "actor": found.actor,
        "slots": list(found.slots),
    }


def finding_dict(finding: Finding) -> dict[str, Any]:
    """A finding; keys that say nothing for it (``cause_window``, ``cause_rank``) are left out."""
    culprit = finding.culprit
    out: dict[str, Any] = {
        "id": finding.id,
        "class": finding.cls,
        "subtype": finding.subtype,
        "worker": finding.worker,
        "pool_kind": finding.pool_kind,
        "first_bad_step": finding.first_bad_step,
        "cause_event": finding.cause_event,
        "corrupting_event": finding.corrupting_event,
        "victim": {
            "req": finding.victim,
            "positions": None if finding.positions is None else sorted(finding.positions),
        },
        "culprit": {
            "req": culprit.req,
            "step": culprit.step,
            "event": culprit.event,
            **culprit.details,
        },
        "slots": sorted(finding.slots),
        "seam_slots": sorted(finding.seam_slots),
        "ruled_out": [{"class": r.cls, "because": r.because} for r in finding.ruled_out],
        "confidence": finding.confidence,
        "evidence": list(finding.evidence),
        "remedy": finding.remedy,
        "blast_radius": list(finding.blast_radius),
        "violations": finding.violations,
        "lost_within": finding.lost_within,
        "unseen": list(finding.unseen),
    }
    out["summary"] = summary_line(finding)
    if finding.facts is not None:
        out["scene"] = scene_dict(finding.facts)
    if finding.cause_window is not None:
        out["cause_window"] = list(finding.cause_window)
    if finding.cause_rank is not None:
        out["cause_rank"] = finding.cause_rank
    if finding.rank is not None:
        out["rank"] = finding.rank
    return out
