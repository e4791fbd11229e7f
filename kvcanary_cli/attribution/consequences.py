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
    writers: dict[int | None, list[Finding]] = {}
    for finding in findings:
        if finding.cls == "late_write" and finding.corrupting_event is not None:
            writers.setdefault(finding.corrupting_event, []).append(finding)
    own: list[Finding] = []
    for finding in findings:
        seen = None if finding.facts is None else finding.facts.event
        late = (other for other in writers.get(seen, ()) if _read_on_the_way(finding, other))
        writer = next(late, None)
        if writer is None:
            own.append(finding)
        else:
            _fold_read(finding, writer)
    # By cause event, the numbers of those in ``kept``: a trace may have one fault many times.
    kept: list[Finding] = []
    numbers: dict[int | None, list[int]] = {}
    for finding in sorted(own, key=_when):
        events = {finding.cause_event, *finding.follows} - {None}
        earlier = sorted(n for event in events for n in numbers.get(event, ()))
        cause = next((kept[n] for n in earlier if _same_cause(finding, kept[n])), None)
        if cause is None:
            numbers.setdefault(finding.cause_event, []).append(len(kept))
            kept.append(finding)
        else:
            _fold(finding, cause)
    ids = set(map(id, kept))
    findings[:] = [finding for finding in own if id(finding) in ids]


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
