"""The text report of ``check-capacities``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from kvcanary_cli.report.capacities_words import STATUS_WORDS, number, setting, size
from kvcanary_cli.report.tables import data_table
from kvcanary_cli.report.words import count, safe
from kvcanary_cli.serving.check_result import Status, Verdict
from kvcanary_cli.serving.values import CAPACITY_INPUTS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from kvcanary_cli.serving.check_result import Check, CheckReport
    from kvcanary_cli.serving.values import CapacityPart

_RIGHT = frozenset({"limit", "demand", "margin", "value", "here", "there"})
_MEMORY = "memory"


def summary_line(report: CheckReport) -> str:
    """One line: the verdict and what decided it."""
    checks = [check for check in report.checks if check.status is not Status.UNKNOWN]
    if report.verdict is Verdict.NOT_CHECKED:
        missing = ", ".join(unknown.name for unknown in report.unknown)
        return f"not checked: the capacities are unknown ({missing or 'no inputs'})"
    if report.failing:
        codes = ", ".join(dict.fromkeys(_label(check) for check in report.failing))
        verb = "fails" if len(report.failing) == 1 else "fail"
        return f"{len(report.failing)} of {count(len(report.checks), 'check')} {verb}: {codes}"
    unknown = len(report.checks) - len(checks)
    tail = f", {unknown} unknown" if unknown else ""
    return f"ok: {count(len(checks), 'check')} passed{tail}"


def _label(check: Check) -> str:
    return f"{check.code} {check.name}".strip()


def render(report: CheckReport, *, width: int, verbose: bool) -> Iterator[RenderableType]:
    """The report, part by part.

    Args:
        report: What was found.
        width: Columns of the terminal.
        verbose: Whether every resolved value is shown.
    """
    yield Text(safe(f"sources: {', '.join(report.sources)}"))
    yield Text(safe(f"server: sglang {_version(report)}"))
    yield ""
    yield from _values(report, width, verbose)
    yield from _capacities(report, width)
    yield from _checks(report, width)
    yield from _messages(report)
    yield from _fixes(report)
    yield _memory(report)
    yield from _differences(report, width)
    yield from _unknown(report)
    yield from _remarks(report)
    yield ""
    yield Text(summary_line(report), style="bold")


def _version(report: CheckReport) -> str:
    """The version whose rules apply, where it stands, and what was assumed."""
    resolution = report.resolution
    if resolution.version_basis != "given":
        return f"{resolution.version} ({resolution.version_basis})"
    found = resolution.given.get("sglang_version")
    shown = resolution.stated_version or resolution.version
    return shown if found is None else f"{shown} ({found.source})"


def _values(report: CheckReport, width: int, verbose: bool) -> Iterator[RenderableType]:
    values = report.resolution.values
    names = list(values) if verbose else [name for name in CAPACITY_INPUTS if name in values]
    rows = [(name, number(values[name].value), values[name].source) for name in names]
    if rows:
        yield data_table(("resolved", "value", "source"), rows, width=width, right=_RIGHT)
        yield ""


def _capacities(report: CheckReport, width: int) -> Iterator[RenderableType]:
    rows = []
    for part in report.parts:
        value = number(part.value) if part.value is not None else "unknown"
        source = _formula(part) if part.source == "formula" else part.source
        rows.append((part.name, value, source))
    yield data_table(("capacity", "value", "formula"), rows, width=width, right=_RIGHT)
    yield ""


def _formula(part: CapacityPart) -> str:
    """The formula in the short names of this report."""
    text = part.formula
    if part.name.endswith("write_entry_capacity"):
        text = text.replace("max(cuda_graph_max_bs, req_to_token_pool_size)", "write_req")
    return text.replace("speculative_num_draft_tokens", "draft_tokens")


def _checks(report: CheckReport, width: int) -> Iterator[RenderableType]:
    rows = []
    for check in report.checks:
        shown = size if check.name == _MEMORY else number
        blank = check.limit is None
        rows.append(
            (
                check.code or "-",
                check.name,
                "-" if blank else shown(check.limit),
                "-" if check.demand is None else shown(check.demand),
                "-" if check.margin is None else shown(check.margin),
                STATUS_WORDS[check.status],
                check.demand_source or "-",
                check.cause,
            )
        )
    headers = ("code", "check", "limit", "demand", "margin", "verdict", "demand from", "cause")
    yield data_table(headers, rows, width=width, right=_RIGHT)


def _messages(report: CheckReport) -> Iterator[RenderableType]:
    lines = [c for c in report.checks if c.message and c.status is not Status.OK]
    if not lines:
        return
    yield ""
    yield Text("the server would say:")
    for check in lines:
        certain = "" if check.status is Status.FAILS else " (perhaps)"
        yield Text(safe(f"  {check.code or check.name}{certain}: {check.message}"))


def _fixes(report: CheckReport) -> Iterator[RenderableType]:
    helped: dict[str, list[str]] = {}
    fixed: set[tuple[str, str]] = set()
    for check in report.failing:
        for fix in check.fixes:
            flags = " ".join(setting(change.flag, change.after) for change in fix.changes)
            cost = "" if fix.cost_bytes is None else f", costs {size(fix.cost_bytes)}"
            helped.setdefault(f"{flags} ({fix.why}{cost})", []).append(check.code or check.name)
            fixed.add((check.code, check.message))
    lines = [f"  {', '.join(codes)}: {what}" for what, codes in helped.items()]
    lines += [f"  {line}" for line in report.advice]
    for refusal in report.refusals:
        if (refusal.code, refusal.message) not in fixed:
            lines.append(f"  {refusal.code or 'server'} refused: {refusal.fix}")
    if lines:
        yield ""
        yield Text("what helps:")
        for line in dict.fromkeys(lines):
            yield Text(safe(line))


def _memory(report: CheckReport) -> Text:
    memory = report.memory
    parts = [
        f"workspace {size(memory.workspace)} a forward",
        f"canary buffers {size(memory.buffers)}",
        f"ring {size(memory.ring)}",
    ]
    if memory.expected_tokens:
        parts.append(f"expected tokens {size(memory.expected_tokens)}")
    total = "" if memory.total is None else f"; {size(memory.total)} in all"
    return Text(f"\nmemory per rank: {', '.join(parts)}{total}")


def _differences(report: CheckReport, width: int) -> Iterator[RenderableType]:
    if report.differences is None:
        return
    yield ""
    if not report.differences:
        yield Text(safe(f"no difference to {report.against}"))
        return
    yield Text(safe(f"differences to {report.against}:"))
    rows = [
        (d.name, number(d.here), d.here_source, number(d.there), d.there_source, d.effect)
        for d in report.differences
    ]
    headers = ("value", "here", "from", "there", "there from", "effect")
    yield data_table(headers, rows, width=width, right=frozenset({"here", "there"}))


def _unknown(report: CheckReport) -> Iterator[RenderableType]:
    if not report.unknown:
        return
    yield ""
    yield Text("unknown:")
    for unknown in report.unknown:
        yield Text(safe(f"  {unknown.name}: {unknown.why}; give {unknown.give}"))


def _remarks(report: CheckReport) -> Iterator[RenderableType]:
    lines = [
        remark.text if remark.place is None else f"{remark.place}: {remark.text}"
        for remark in report.resolution.remarks
    ]
    if report.resolution.value("kv_canary") == "none":
        lines.append("the canary is off (--kv-canary none); the checks hold for a start with it on")
    for name, found in report.violations_logged.items():
        lines.append(f"{name}: {count(found, 'canary violation')} logged (kvcanary explain --log)")
    if lines:
        yield ""
        yield Text("remarks:")
        for line in dict.fromkeys(lines):
            yield Text(safe(f"  {line}"))
