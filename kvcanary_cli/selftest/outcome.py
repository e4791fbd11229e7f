"""What one planted fault was diagnosed as, held against its truth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcanary_cli.attribution.result import Finding, OwnershipFinding
    from kvcanary_cli.inject.planting import Built, FaultKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One injected fault.

    Attributes:
        kind: Name of the fault.
        seed: Seed it was drawn with.
        detected: Whether anything was found.
        cls_right, subtype_right, step_right, culprit_right: Whether the finding that covers the
            damage says the right thing; the culprit includes the cause event.
        said: ``class/subtype`` that was said, empty if nothing.
        others: Class and sub-type of further findings.
        truth: One line about the fault.
    """

    kind: str
    seed: int
    detected: bool
    cls_right: bool
    subtype_right: bool
    step_right: bool
    culprit_right: bool
    said: str
    others: tuple[str, ...]
    truth: str


def judge(
    kind: FaultKind,
    seed: int,
    built: Built,
    findings: Sequence[Finding],
    ownership: Sequence[OwnershipFinding],
) -> Outcome:
    """Hold findings against the truth of a planted fault."""
    planted = built.planted
    finding = _covering(planted.slots, findings)
    broken = [o for o in ownership if o.what != "leak"]
    truth = (
        f"{planted.note}; step {planted.step}, slots {sorted(planted.slots)[:6]}, "
        f"causes {built.causes}, culprits {sorted(map(str, planted.culprits))}"
    )
    if finding is None:
        return Outcome(
            kind=kind.name,
            seed=seed,
            detected=bool(broken),
            cls_right=False,
            subtype_right=False,
            step_right=False,
            culprit_right=False,
            said="",
            others=(),
            truth=truth,
        )
    right_req = (
        finding.culprit.req in planted.culprits if planted.culprits else finding.culprit.req is None
    )
    right_event = not built.causes or finding.cause_event in built.causes
    cls_right = finding.cls == (planted.cls or kind.cls)
    return Outcome(
        kind=kind.name,
        seed=seed,
        detected=True,
        cls_right=cls_right,
        subtype_right=cls_right and finding.subtype in planted.subtypes,
        step_right=finding.first_bad_step in {planted.step, planted.also_step or planted.step},
        culprit_right=right_req and right_event,
        said=f"{finding.cls}/{finding.subtype} step {finding.first_bad_step} "
        f"cause {finding.cause_event} culprit {finding.culprit.req}",
        others=tuple(f"{f.cls}/{f.subtype}" for f in findings if f is not finding),
        truth=truth,
    )


def _covering(slots: set[int], findings: Sequence[Finding]) -> Finding | None:
    """The first finding that names a damaged slot, or the first of all."""
    for finding in findings:
        if slots & finding.slots:
            return finding
    return findings[0] if findings else None
