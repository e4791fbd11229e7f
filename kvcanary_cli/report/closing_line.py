"""The last line of a replay's text: the verdict, what it rests on, and what makes it less."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from kvcanary_cli.attribution.result import LEAK
from kvcanary_cli.replay.result import Verdict
from kvcanary_cli.report.words import count, safe

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvcanary_cli.attribution.report import Report
    from kvcanary_cli.replay.result import ReplayResult

_STYLE = {
    Verdict.CLEAN: "bold green",
    Verdict.CORRUPT: "bold red",
    Verdict.CAPACITY: "bold yellow",
    Verdict.NOT_CHECKED: "bold yellow",
}


def closing_line(report: Report) -> Text:
    """The line, in one piece however narrow the terminal is."""
    results = [diagnosis.replay for diagnosis in report.traces]
    facts = [*_found(report, results), *_checked(report, results), *_less(results)]
    text = f"SUMMARY: kvcanary replay: {_word(report)}: {', '.join(facts)}"
    return Text(text, style=_STYLE[report.verdict], no_wrap=True, overflow="ignore")


def _word(report: Report) -> str:
    if report.verdict is Verdict.CORRUPT and not report.findings:
        violations = sum(len(diagnosis.replay.violations) for diagnosis in report.traces)
        rules = {found.what for diagnosis in report.traces for found in diagnosis.ownership}
        # Slots that nobody gave back are lost to the pool; no content is wrong.
        if not violations and rules == {LEAK}:
            return "LEAK"
    return report.verdict.upper().replace("_", " ")


def _found(report: Report, results: Sequence[ReplayResult]) -> Iterator[str]:
    yield count(len(report.findings), "finding")
    yield count(sum(len(result.violations) for result in results), "violation")
    steps = [v.step for r in results for v in r.violations.chunks]
    steps += [f.first_bad_step for f in report.findings if f.first_bad_step is not None]
    if steps:
        yield f"first at step {min(steps)}"
    ownership = sum(len(diagnosis.ownership) for diagnosis in report.traces)
    if ownership:
        yield count(ownership, "broken ownership rule")
    overflows = sum(len(result.capacity_violations) for result in results)
    yield count(overflows, "capacity violation")


def _checked(report: Report, results: Sequence[ReplayResult]) -> Iterator[str]:
    steps = sum(result.coverage.steps for result in results)
    entries = sum(result.coverage.entries_verified for result in results)
    yield f"{count(steps, 'step')} and {count(entries, 'entry', 'entries')} checked"
    skipped = sum(result.coverage.entries_skipped for result in results)
    if skipped:
        yield f"{count(skipped, 'entry', 'entries')} not checked"
    left_out = {what for result in results for what in result.coverage.not_recorded}
    if left_out:
        yield f"{count(len(left_out), 'part')} of the engine's KV not recorded"
    if report.is_several:
        yield count(len(results), "trace")
    if report.failed:
        yield f"{len(report.failed):,} NOT CHECKED"


def _less(results: Sequence[ReplayResult]) -> Iterator[str]:
    """What keeps the verdict from being about all that the server did."""
    ended = [r.coverage.ended_at_event for r in results if r.coverage.ended_at_event is not None]
    if ended:
        yield f"recording ended early at event {ended[0]}"
    lost = sum(result.coverage.lost_events for result in results)
    if lost:
        yield f"{count(lost, 'event')} lost in recording"
    stops = [r.coverage.stopped_at_step for r in results if r.coverage.stopped_at_step is not None]
    if stops:
        yield f"stopped at step {stops[0]}"
    beyond = sum(result.ring_lost for result in results)
    if beyond:
        yield f"{count(beyond, 'violation')} beyond the ring"
    if not results:
        return
    if results[0].step_filter:
        yield f"only {results[0].step_filter} checked"
    if results[0].report_filters:
        others = sum(result.filtered_out for result in results)
        names = safe("; ".join(results[0].report_filters))
        yield f"only {names}: {count(others, 'violation')} elsewhere"
