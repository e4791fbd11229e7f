"""A replay's result for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from kvcanary_cli.replay.result import Verdict
from kvcanary_cli.report import finding_summary
from kvcanary_cli.report.closing_line import closing_line
from kvcanary_cli.report.failed import failed_part
from kvcanary_cli.report.finding_text import finding_part, ownership_part
from kvcanary_cli.report.fold import fold_violations
from kvcanary_cli.report.tables import data_table
from kvcanary_cli.report.words import count, safe

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

    from kvcanary_cli.attribution.diagnose import Diagnosis
    from kvcanary_cli.attribution.report import Report
    from kvcanary_cli.attribution.result import Finding
    from kvcanary_cli.replay.result import CapacityFinding, ReplayResult
    from kvcanary_cli.report.fold import FoldedViolation

_LABEL_WIDTH = 12


def render(
    report: Report, *, width: int, max_rows: int | None, verbose: bool
) -> Iterator[RenderableType]:
    """Everything for the terminal, in order; the last line is the summary.

    Args:
        report: One or more traces.
        width: Columns of the terminal.
        max_rows: Rows of each table, None = all; what is left out is counted.
        verbose: Whether launch counters and all notes are shown.
    """
    ranks = len(report.traces)
    for diagnosis in report.traces:
        result = diagnosis.replay
        yield _header(result)
        yield from _findings_part(diagnosis.findings, diagnosis, width, max_rows, ranks)
        yield from ownership_part(diagnosis, width, max_rows)
        yield from _violation_part(result, width, max_rows)
        yield from _capacity_part(result, width, max_rows)
        yield _coverage(result, verbose=verbose)
        yield ""
    yield from _divergence_part(report, width, max_rows)
    if report.failed:
        yield from failed_part(report)
        yield ""
    for note in report.notes:
        yield Text(f"note: {safe(note)}", overflow="fold")
    yield closing_line(report)


def _divergence_part(report: Report, width: int, max_rows: int | None) -> Iterator[RenderableType]:
    """What ranks of one run did otherwise, and which traces those are."""
    for (a, b), finding in list(zip(report.divergent, report.divergences, strict=True))[:max_rows]:
        paths = [safe(report.traces[k].replay.trace.path) for k in (a, b)]
        yield Text(_line("RANKS", " and ".join(paths)), overflow="fold")
        yield from finding_part(finding, None, width, len(report.traces))
    if max_rows is not None:
        yield from _rest_part(report.divergences[max_rows:])
    if report.divergences:
        yield ""


def _findings_part(
    findings: Sequence[Finding],
    diagnosis: Diagnosis,
    width: int,
    max_rows: int | None,
    ranks: int,
) -> Iterator[RenderableType]:
    """The blocks; of those beyond ``max_rows`` only the frozen line."""
    for finding in findings[:max_rows]:
        yield from finding_part(finding, diagnosis, width, ranks)
    if max_rows is not None:
        yield from _rest_part(findings[max_rows:])


def _rest_part(rest: Sequence[Finding]) -> Iterator[RenderableType]:
    if rest:
        yield ""
        yield _more(len(rest), "findings in full")
        for finding in rest:
            yield finding_summary.summary_line(finding)


def _line(label: str, text: str) -> str:
    return f"{label.ljust(_LABEL_WIDTH)}{text}"


def _header(result: ReplayResult) -> Text:
    trace, capacities = result.trace, result.capacities
    engine = " ".join(filter(None, [trace.engine_name, trace.engine_version]))
    limits = "unknown: capacity checks were not made (give --config or --capacity)"
    if capacities.known:
        numbers = {
            "verify": capacities.verify,
            "write_req": capacities.write_req,
            "write_entry": capacities.write_entry,
        }
        known = [f"{name} {'?' if n is None else n}" for name, n in numbers.items()]
        limits = f"{', '.join(known)} (from {capacities.source})"
    lines = [
        _line("TRACE", safe(trace.path)),
        _line("ENGINE", safe(f"{engine}, rank {trace.rank}")),
        _line(
            "CONTENT",
            f"{count(trace.steps, 'step')}, {count(trace.events, 'event')}, "
            f"{count(trace.requests, 'request')}, tokens {trace.tokens}",
        ),
        _line("RECORDED", safe(", ".join(trace.records))),
        _line("BACKEND", f"{result.backend} on {result.device}"),
        _line("CAPACITIES", safe(limits)),
    ]
    if result.filters:
        lines.append(_line("FILTER", safe("; ".join(result.filters))))
    lines += [_line("", safe(note)) for note in capacities.notes]
    return Text("\n".join(lines), overflow="fold")


def _more(left_out: int, noun: str) -> str:
    return f"... {left_out:,} more {noun} (--max-rows 0 shows all, --format json has each)"


def _capacity_part(
    result: ReplayResult, width: int, max_rows: int | None
) -> Iterator[RenderableType]:
    found = result.capacity_violations
    yield ""
    if not found:
        checked = "none" if result.capacities.known else "not checked"
        yield Text(f"CAPACITY VIOLATIONS: {checked}", style="bold")
        return
    yield Text(f"CAPACITY VIOLATIONS: {len(found):,}", style="bold")
    groups = _fold_capacity(found)
    headers = ("step", "times", "mode", "what", "actual", "capacity", "code", "raise")
    rows = [_capacity_row(group) for group in groups[:max_rows]]
    yield data_table(
        headers, rows, width=width, right=frozenset({"step", "times", "actual", "capacity"})
    )
    if max_rows is not None and len(groups) > max_rows:
        yield _more(len(groups) - max_rows, "rows")
    for message in dict.fromkeys(group[0].violation.message for group in groups[:max_rows]):
        yield Text(f"  {message}", style="dim")


def _fold_capacity(found: Sequence[CapacityFinding]) -> list[list[CapacityFinding]]:
    groups: dict[tuple[object, ...], list[CapacityFinding]] = {}
    for finding in found:
        violation = finding.violation
        key = (violation.code, violation.actual, violation.capacity, finding.forward_mode)
        groups.setdefault(key, []).append(finding)
    return list(groups.values())


def _capacity_row(group: Sequence[CapacityFinding]) -> tuple[str, ...]:
    first = group[0]
    violation, suggestion = first.violation, first.violation.suggestion
    advice = "-"
    if suggestion is not None:
        flags = [suggestion.flag, *suggestion.also]
        advice = " and ".join(f"{flag} {suggestion.value}" for flag in flags)
    return (
        str(first.step),
        str(len(group)),
        first.forward_mode,
        violation.what,
        f"{violation.actual:,}",
        f"{violation.capacity:,}",
        violation.code,
        advice,
    )


_VIOLATION_HEADERS = (
    "step",
    "times",
    "lane",
    "launch",
    "request",
    "slot",
    "position",
    "expected",
    "token",
    "expected token",
    "after slot",
    "reasons",
    "role",
)
_RIGHT = frozenset(
    {"step", "times", "slot", "position", "expected", "token", "expected token", "after slot"}
)


def _violation_part(
    result: ReplayResult, width: int, max_rows: int | None
) -> Iterator[RenderableType]:
    total = len(result.violations)
    yield ""
    if not total:
        checked = "not checked" if result.verdict == Verdict.NOT_CHECKED else "none"
        yield Text(f"MISMATCHED TOKENS: {checked}", style="bold")
        return
    groups = fold_violations(result.violations)
    yield Text(
        f"MISMATCHED TOKENS: {count(total, 'violation')} in {count(len(groups), 'row')} "
        "(step = first seen; times = how often)",
        style="bold",
    )
    rows = [_violation_row(group) for group in groups[:max_rows]]
    yield data_table(_VIOLATION_HEADERS, rows, width=width, right=_RIGHT)
    if max_rows is not None and len(groups) > max_rows:
        yield _more(len(groups) - max_rows, "rows")
    if result.ring_lost:
        yield f"{result.ring_lost:,} further violations did not fit the ring (--ring-capacity)"


def _violation_row(group: FoldedViolation) -> tuple[str, ...]:
    tags = "+".join(dict.fromkeys(tag.rsplit("_", 1)[0] for tag in group.launch_tags))
    return (
        str(group.first_step) if group.count == 1 else f"{group.first_step}-{group.last_step}",
        str(group.count),
        f"{group.worker}/{group.pool_kind}",
        tags,
        "-" if group.req is None else group.req,
        str(group.slot),
        str(group.position),
        str(group.expected_position),
        str(group.stored_token),
        "-" if group.expected_token is None else str(group.expected_token),
        {-1: "head", 0: "unknown"}.get(group.prev_slot, str(group.prev_slot)),
        " ".join(group.fail_reasons),
        group.role,
    )


def _coverage(result: ReplayResult, *, verbose: bool) -> Text:
    coverage = result.coverage
    parts = [
        f"{count(coverage.steps, 'step')} checked",
        f"{count(coverage.entries_verified, 'entry', 'entries')} verified "
        f"({coverage.token_entries:,} with their token)",
        f"{coverage.entries_written:,} written",
    ]
    if coverage.entries_skipped:
        reasons = "; ".join(f"{n:,} {reason}" for reason, n in coverage.skip_reasons.items())
        parts.append(f"{coverage.entries_skipped:,} skipped ({reasons})")
    if coverage.chain_unlinked:
        parts.append(
            f"{count(coverage.chain_unlinked, 'entry', 'entries')} checked without the link to the "
            "slot before"
        )
    if coverage.kv_hashes:
        parts.append(f"{coverage.kv_hashes:,} KV fingerprints")
    if coverage.sweeps:
        parts.append(
            f"{count(coverage.sweeps, 'sweep')} over {coverage.sweep_entries:,} cached entries"
        )
    if coverage.lost_events:
        parts.append(f"{coverage.lost_events:,} events lost in recording")
    lines = ["", _line("COVERAGE", ", ".join(parts))]
    if coverage.stopped_at_step is not None:
        lines.append(
            _line(
                "",
                f"stopped at step {coverage.stopped_at_step} (--mode raise): "
                "what follows was not checked",
            )
        )
    lines += [_line("", safe(note)) for note in coverage.notes]
    if not result.diagnosed:
        lines.append(_line("", "slot ownership and root causes were not checked"))
    if coverage.blind_to:
        lines.append(_line("BLIND TO", ", ".join(coverage.blind_to)))
    if verbose:
        lines.append(_line("SHA256", result.trace.sha256))
        for worker, counters in result.kernel_counters.items():
            lines.append(_line("LAUNCHES", f"{worker}: {' '.join(map(str, counters))}"))
            slots = " ".join(map(str, result.slot_counters[worker]))
            lines.append(_line("SLOTS", f"{worker}: {slots}"))
    return Text("\n".join(lines), overflow="fold")
