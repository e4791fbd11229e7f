"""The text of ``suggest-flags``: the smallest change first, then the alternatives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from kvcanary_cli.report.capacities_text import summary_line
from kvcanary_cli.report.capacities_words import flag_value, setting, size
from kvcanary_cli.report.words import count, safe
from kvcanary_cli.serving.check_result import Status, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from kvcanary_cli.serving.check_result import CheckReport, Suggestion
    from kvcanary_cli.serving.suggest import Outcome

_MAX_ALTERNATIVES = 5


def suggest_summary(outcome: Outcome) -> str:
    """One line: what to change, or why nothing helps."""
    if outcome.before.verdict is Verdict.NOT_CHECKED:
        rest = summary_line(outcome.before)
        if not outcome.suggestions:
            return rest
        return f"set {flags_line(outcome.suggestions[0])}; otherwise {rest}"
    if outcome.passes_already:
        open_checks = _unknown_checks(outcome.before)
        if not open_checks:
            return "no change is needed: every check passes"
        return (
            f"no check fails, but {count(len(open_checks), 'check')} could not be made "
            f"({', '.join(dict.fromkeys(open_checks))}), so whether a change is needed is unknown"
        )
    if outcome.suggestions:
        return f"set {flags_line(outcome.suggestions[0])}"
    if outcome.rejected:
        costs = [c for one in outcome.rejected if (c := one.fix.cost_bytes) is not None]
        if not costs:
            return "nothing is known to fit the budget: the cost of each change is unknown"
        return f"nothing fits the budget: the cheapest change costs {size(min(costs))} per rank"
    names = ", ".join(f"{check.code} {check.name}".strip() for check in outcome.unfixable)
    return f"no flag makes every check pass: {names or summary_line(outcome.before)}"


def _unknown_checks(report: CheckReport) -> list[str]:
    return [
        f"{check.code} {check.name}".strip()
        for check in report.checks
        if check.status is Status.UNKNOWN
    ]


def flags_line(suggestion: Suggestion) -> str:
    """The changed flags as they are written on a command line."""
    return " ".join(setting(change.flag, change.after) for change in suggestion.fix.changes)


def render_suggestions(outcome: Outcome, budget_bytes: int | None) -> Iterator[RenderableType]:
    """The outcome, part by part."""
    before = outcome.before
    yield Text(safe(f"sources: {', '.join(before.sources)}"))
    basis = before.resolution.version_basis
    because = "" if basis == "given" else f" ({basis})"
    yield Text(safe(f"server: sglang {before.resolution.version}{because}"))
    yield Text(safe(f"as it is: {summary_line(before)}"))
    for check in before.failing:
        yield Text(safe(f"  {check.code or check.name}: {check.message or check.cause}"))
    for refusal in before.refusals:
        if not refusal.certain:
            yield Text(safe(f"  {refusal.code} may be raised: {refusal.source}"))
    yield ""
    for k, suggestion in enumerate(outcome.suggestions[:_MAX_ALTERNATIVES]):
        yield from _suggestion("suggestion" if not k else f"alternative {k}", suggestion)
    if not outcome.suggestions and outcome.rejected:
        yield Text(f"the memory budget of {size(budget_bytes)} per rank binds:")
        for unknown in before.unknown:
            yield Text(safe(f"  {unknown.name} is unknown: give {unknown.give}"))
        for suggestion in outcome.rejected[:_MAX_ALTERNATIVES]:
            yield from _suggestion("over budget", suggestion)
    if outcome.unfixable:
        yield Text("no flag helps against:")
        for check in outcome.unfixable:
            yield Text(safe(f"  {check.code} {check.name}: {check.cause}"))
        refused = {(check.code, check.message) for check in outcome.unfixable}
        advised = [one.fix for one in before.refusals if (one.code, one.message) in refused]
        for fix in dict.fromkeys(advised):
            yield Text(safe(f"  {fix}"))
    if outcome.before.verdict is Verdict.NOT_CHECKED or (
        outcome.passes_already and _unknown_checks(before)
    ):
        for unknown in before.unknown:
            yield Text(safe(f"  {unknown.name} is unknown: give {unknown.give}"))
    for line in outcome.advice:
        yield Text(safe(line))
    yield Text(safe(suggest_summary(outcome)), style="bold")


def _suggestion(title: str, suggestion: Suggestion) -> Iterator[RenderableType]:
    fix = suggestion.fix
    yield Text(safe(f"{title}: {flags_line(suggestion)}"), style="bold")
    for change in fix.changes:
        before = "not set" if change.before is None else flag_value(change.before)
        yield Text(safe(f"  {change.flag}: {before} -> {flag_value(change.after)}"))
    yield Text(safe(f"  why: {fix.why}"))
    yield Text(f"  memory per rank: {_cost(suggestion)}")
    for effect in fix.effects:
        yield Text(safe(f"  changes: {effect}"))
    passed = sum(check.status == "ok" for check in suggestion.report.checks)
    left = len(_unknown_checks(suggestion.report))
    yield Text(
        f"  verified: the checks were run again with it, {count(passed, 'check')} passed"
        + (f", {left} unknown" if left else "")
    )
    yield ""


def _cost(suggestion: Suggestion) -> str:
    """The cost, and what it counts."""
    cost = suggestion.fix.cost_bytes
    if cost is None:
        return "unknown"
    moved = any(effect.startswith("KV slots ") for effect in suggestion.fix.effects)
    counted = "the canary's buffers and the change of the KV cache" if moved else "canary buffers"
    return f"{size(cost)} ({counted})"
