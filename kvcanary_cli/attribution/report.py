"""One call's result: every trace's diagnosis, and where ranks disagree."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from kvcanary_cli.attribution.ranks import compare_ranks
from kvcanary_cli.replay.result import Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcanary_cli.attribution.diagnose import Diagnosis
    from kvcanary_cli.attribution.result import Finding


@dataclass(frozen=True)
class Report:
    """What a ``replay`` call found.

    Attributes:
        traces: One diagnosis per trace, in the order given.
        divergences: Findings that only several ranks together show.
    """

    traces: tuple[Diagnosis, ...]
    divergences: tuple[Finding, ...] = ()

    @classmethod
    def of(cls, traces: Sequence[Diagnosis]) -> Report:
        """Put diagnoses together, compare their ranks and number the findings."""
        several = len(traces) > 1
        divergences = compare_ranks([d.rank for d in traces]) if several else []
        report = cls(tuple(traces), tuple(divergences))
        for number, finding in enumerate(report.findings, 1):
            finding.id = f"F{number}"
        if several:
            for diagnosis in traces:
                for finding in diagnosis.findings:
                    finding.rank = diagnosis.rank.number
        return report

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """All findings: each trace's in its order, then the divergences."""
        return (*(f for d in self.traces for f in d.findings), *self.divergences)

    @property
    def verdict(self) -> str:
        """The gravest verdict; clean only if every trace was checked and is clean."""
        verdicts = {d.verdict for d in self.traces}
        if self.divergences:
            verdicts.add(Verdict.CORRUPT)
        for verdict in (Verdict.CORRUPT, Verdict.CAPACITY):
            if verdict in verdicts:
                return verdict
        return Verdict.CLEAN if verdicts == {Verdict.CLEAN} else Verdict.NOT_CHECKED
