"""What a replay found that no finding tells, for formats that carry findings only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcanary_cli.report.words import count

if TYPE_CHECKING:
    from kvcanary_cli.attribution.diagnose import Diagnosis


def unexplained(diagnosis: Diagnosis) -> str | None:
    """One sentence, None if findings tell it all.

    ``--strict-upstream`` makes no findings, and filters may leave violations without theirs: what
    was found must not be missing because nobody explains it.
    """
    if diagnosis.findings:
        return None
    violations, rules = len(diagnosis.replay.violations), len(diagnosis.ownership)
    if not violations and not rules:
        return None
    return f"{count(violations, 'violation')} and {count(rules, 'broken ownership rule')}"
