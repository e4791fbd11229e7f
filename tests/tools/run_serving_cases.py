"""Hold the serving rules to real launches.

    python tests/tools/run_serving_cases.py FILE

FILE is JSON with ``cases``: each a launch (``input.values``), its ``gpu`` and ``sglang_version``,
what its server showed (``observed``) and ``checks``, each with ``rule``, ``spec``, ``observed``,
``verdict`` and an optional ``relative_tolerance``. Predictions are computed from the launch, never
taken from the file. One line a check: case, verdict, what was recorded, rule, predicted, observed,
tolerance; then a count. Exit status 0 nothing new, 1 a check that is marked agree in the file
disagrees, 2 wrong usage, 4 not a case file.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from kvcanary_cli.errors import KvCanaryError
from tests.tools.serving_case import BadFileError, Case, read_cases
from tests.tools.serving_case_rules import NotComputableError, compute

EXIT_SAME, EXIT_NEW, EXIT_BAD_FILE = 0, 1, 4


@dataclass(frozen=True)
class Outcome:
    """One check.

    Attributes:
        case: Case id.
        spec: Section of the rules.
        rule: The rule's text.
        predicted: What was computed, or why nothing was.
        observed: What the source shows; None = it does not show it.
        tolerance: Relative tolerance, 0 = exact.
        verdict: agree, disagree, not_checkable or not_computable.
        recorded: Verdict in the file.
    """

    case: str
    spec: str
    rule: str
    predicted: Any
    observed: Any
    tolerance: float
    verdict: str
    recorded: str

    @property
    def new_disagreement(self) -> bool:
        return self.verdict == "disagree" and self.recorded == "agree"

    def __str__(self) -> str:
        changed = "" if self.verdict == self.recorded else f" (recorded: {self.recorded})"
        within = f" within {self.tolerance:g}" if self.tolerance else ""
        return (
            f"{self.case}  {self.verdict}{changed}  [{self.spec}] {self.rule}: "
            f"predicted {_short(self.predicted)}, observed {_short(self.observed)}{within}"
        )


def _short(value: Any) -> str:
    if value is None:
        return "not shown"
    if isinstance(value, list) and len(value) > 8:
        return f"[{', '.join(map(str, value[:5]))}, ..., {value[-1]}] ({len(value)})"
    return str(round(value, 4)) if isinstance(value, float) else str(value)


def same(predicted: Any, observed: Any, tolerance: float) -> bool:
    """Equal; numbers within the relative tolerance, floats never closer than 1e-9."""
    numbers = (int, float)
    if isinstance(predicted, bool) or isinstance(observed, bool):
        return predicted is observed
    if isinstance(predicted, numbers) and isinstance(observed, numbers):
        return abs(predicted - observed) <= max(tolerance, 1e-9) * abs(observed)
    return bool(predicted == observed)


def check_case(case: Case) -> list[Outcome]:
    """All checks of one launch."""
    outcomes = []
    for check in case.checks:
        observed = check.get("observed")
        tolerance = float(check.get("relative_tolerance") or 0.0)
        try:
            predicted = compute(case, check)
        except NotComputableError as error:
            predicted, verdict = str(error), "not_computable"
        except KvCanaryError as error:
            predicted, verdict = error.message, "not_computable"
        else:
            verdict = "agree" if same(predicted, observed, tolerance) else "disagree"
            if observed is None:
                verdict = "not_checkable"
        outcomes.append(
            Outcome(
                case.id,
                str(check.get("spec", "")),
                check["rule"],
                predicted,
                observed,
                tolerance,
                verdict,
                check["verdict"],
            )
        )
    return outcomes


def check_file(path: Path) -> list[Outcome]:
    """All checks of a file.

    Raises:
        BadFileError: It cannot be read as a case file.
    """
    try:
        raw = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise BadFileError(f"{path}: {error}") from None
    try:
        return [outcome for case in read_cases(raw) for outcome in check_case(case)]
    except (KeyError, TypeError, AttributeError) as error:
        raise BadFileError(f"{path}: a case has not the expected shape ({error!r})") from None


def main(arguments: list[str] | None = None) -> int:
    """Check a file, print a line a check, and return the exit status."""
    parser = argparse.ArgumentParser(description="Hold the serving rules to real launches.")
    parser.add_argument("file", type=Path, metavar="FILE")
    path = parser.parse_args(arguments).file
    try:
        outcomes = check_file(path)
    except BadFileError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_BAD_FILE
    for outcome in outcomes:
        print(outcome)
    counts = Counter(outcome.verdict for outcome in outcomes)
    new = sum(outcome.new_disagreement for outcome in outcomes)
    cases = len({outcome.case for outcome in outcomes})
    parts = ", ".join(
        f"{counts[verdict]} {verdict}"
        for verdict in ("agree", "disagree", "not_checkable", "not_computable")
    )
    print(f"{cases} cases, {len(outcomes)} checks: {parts}; {new} new disagreements")
    return EXIT_NEW if new else EXIT_SAME


if __name__ == "__main__":
    sys.exit(main())
