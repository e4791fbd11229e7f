"""One fault, one finding: a rank's own fault that ranks differ by is told once, where it is.

What the other ranks did at that step is evidence of it: they are its witnesses.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvcanary_cli.attribution.result import POSSIBLE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcanary_cli.attribution.diagnose import Diagnosis
    from kvcanary_cli.attribution.result import Finding


@dataclass(slots=True)
class _Witnesses:
    """Ranks that differ from one by a fault of its own, and the first difference in words."""

    finding: Finding
    told: str
    ranks: list[int] = field(default_factory=list)


class RankFolds:
    """Takes divergences in; what a rank's own finding tells already goes to that finding."""

    def __init__(self) -> None:
        self._witnesses: dict[int, _Witnesses] = {}

    def take(self, divergence: Finding, ranks: tuple[Diagnosis, Diagnosis]) -> bool:
        """Whether ``divergence`` of ``ranks`` is one of their own findings, seen from outside.

        If not, what their own findings make of it is told in it.
        """
        for own, other in (ranks, ranks[::-1]):
            for finding in own.findings:
                if _tells(finding, divergence) and not _has_twin(finding, other.findings):
                    told = divergence.evidence[0]
                    seen = self._witnesses.setdefault(id(finding), _Witnesses(finding, told))
                    seen.ranks.append(other.rank.number)
                    return True
        _tell_own_faults(divergence, ranks)
        return False

    def tell(self) -> None:
        """Name the witnesses in the evidence of each finding."""
        for seen in self._witnesses.values():
            which = ", ".join(map(str, sorted(set(seen.ranks))))
            several = "ranks" if len(set(seen.ranks)) > 1 else "rank"
            told = f"{several} {which} did otherwise: {seen.told}"
            if told not in seen.finding.evidence:
                seen.finding.evidence.append(told)


def _tells(finding: Finding, divergence: Finding) -> bool:
    """Whether the divergence is what ``finding`` of one of its ranks says or leads to."""
    req, step = divergence.victim, divergence.first_bad_step
    if req is None or step is None:
        return False
    if req in (finding.victim, finding.culprit.req) and step in (
        finding.first_bad_step,
        finding.culprit.step,
    ):
        return True
    # Whoever read damage goes on with other tokens than its like on a rank without it.
    since = finding.first_bad_step
    read_it = req == finding.victim or req in finding.blast_radius
    return divergence.subtype == "fed_tokens" and read_it and since is not None and since <= step


def _has_twin(finding: Finding, findings: Sequence[Finding]) -> bool:
    """Whether the other rank has the same fault, so that the ranks do not differ by it."""
    return any(
        (f.cls, f.subtype, f.victim, f.first_bad_step, f.positions)
        == (finding.cls, finding.subtype, finding.victim, finding.first_bad_step, finding.positions)
        for f in findings
    )


def _tell_own_faults(divergence: Finding, ranks: Sequence[Diagnosis]) -> None:
    """Say it where a rank had a fault of its own by then: the other one is not to agree with it."""
    until = divergence.first_bad_step
    for diagnosis in ranks:
        faults = [f for f in diagnosis.findings if f.first_bad_step is not None]
        first = min(faults, key=_first_bad_step, default=None)
        if first is None or until is None or _first_bad_step(first) > until:
            continue
        divergence.ruled_out = []
        divergence.confidence = POSSIBLE
        divergence.evidence.append(
            f"rank {diagnosis.rank.number} has a finding of its own by then: {first.cls} "
            f"({first.subtype}) at step {first.first_bad_step}; the ranks may differ for that"
        )


def _first_bad_step(finding: Finding) -> int:
    return finding.first_bad_step or 0
