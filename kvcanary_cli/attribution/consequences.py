"""Findings of one cause become one: the first keeps its class, the others its damage."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvcanary_cli.attribution.result import Finding

# Classes whose cause event is one that moves slots or rows: it explains all that follows from it.
# Two faults of one forward are two, whatever they have in common.
_LIFETIME = frozenset({"use_after_free", "double_alloc", "late_write", "transfer_race"})
# What the row of a request that is gone leads to.
_MET_BY_OVERRUN = frozenset({"use_after_free", "bad_translation", "unwritten_read"})


def fold_consequences(findings: list[Finding]) -> None:
    """Fold each finding into an earlier one that it follows from; ``findings`` shrinks in place.

    A finding follows from another one of its rank and worker if that one's cause is also its
    own, or if it is what the other one's overrun read on its way. What the lanes of another worker
    show of the same event is the same finding, too.
    """
    for finding in list(findings):
        writer = next((other for other in findings if _read_on_the_way(finding, other)), None)
        if writer is not None:
            findings.remove(finding)
            _fold_read(finding, writer)
    kept: list[Finding] = []
    for finding in sorted(findings, key=_when):
        cause = next((other for other in kept if _same_cause(finding, other)), None)
        if cause is None:
            kept.append(finding)
        else:
            _fold(finding, cause)
    findings[:] = [finding for finding in findings if any(finding is one for one in kept)]


def _when(finding: Finding) -> tuple[bool, int, int]:
    step = finding.first_bad_step
    return step is None, step or 0, int(finding.id[1:])


def _explains_later(finding: Finding) -> bool:
    return (
        finding.cls in _LIFETIME
        or finding.subtype == "row_recycled_in_flight"
        or finding.subtype == "phantom_hit"
    )


def _same_cause(finding: Finding, first: Finding) -> bool:
    if first.cause_event is None:
        return False
    if finding.worker != first.worker and finding.cause_event == first.cause_event:
        both = _explains_later(finding) and _explains_later(first)
        return both or (finding.cls, finding.subtype) == (first.cls, first.subtype)
    if finding.worker != first.worker:
        return False
    if not (_explains_later(finding) and _explains_later(first)):
        return False
    if finding.cause_event == first.cause_event:
        return True
    parties = {first.victim, first.culprit.req, *first.blast_radius}
    return first.cause_event in finding.follows and finding.culprit.req in parties


def _fold(finding: Finding, first: Finding) -> None:
    if finding.pool_kind == first.pool_kind:
        first.slots |= finding.slots
        first.seam_slots = (first.seam_slots | finding.seam_slots) - first.slots
    if finding.victim == first.victim and None not in (finding.positions, first.positions):
        assert finding.positions is not None
        assert first.positions is not None
        first.positions |= finding.positions
    first.blast_radius |= finding.blast_radius
    first.violations += finding.violations
    first.follows |= finding.follows
    if finding.worker != first.worker:
        lane = finding.worker if finding.pool_kind == "FULL" else f"{finding.worker} SWA"
        at = "" if finding.first_bad_step is None else f", from step {finding.first_bad_step} on"
        first.evidence.append(f"the {lane} lane shows it, too{at}")
    if (finding.cls, finding.subtype) != (first.cls, first.subtype):
        first.evidence.append(
            f"the same cause also gave {finding.cls} ({finding.subtype}) "
            + (f"at step {finding.first_bad_step}" if finding.first_bad_step is not None else "")
        )


def _read_on_the_way(finding: Finding, late: Finding) -> bool:
    """Whether ``finding`` is but what the forward of a late write read before it wrote."""
    return (
        finding is not late
        and late.cls == "late_write"
        and finding.cls in _MET_BY_OVERRUN
        and finding.worker == late.worker
        and finding.victim is not None
        and finding.victim == late.culprit.req
        and finding.facts is not None
        and finding.facts.event == late.corrupting_event
        and finding.last_event in (None, late.corrupting_event)
    )


def _fold_read(finding: Finding, late: Finding) -> None:
    late.violations += finding.violations
    late.evidence.append(
        f"the same forward of {finding.victim} read {len(finding.slots)} slots that it had no "
        f"longer: {finding.cls} ({finding.subtype})"
    )
