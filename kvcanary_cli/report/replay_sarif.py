"""A replay's findings as SARIF 2.1.0, for code hosts and viewers that read it (docs/output.md)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from kvcanary_cli import __version__
from kvcanary_cli.attribution.classes import class_pages
from kvcanary_cli.replay.result import Verdict
from kvcanary_cli.report.failed import failed_dict
from kvcanary_cli.report.finding_dict import finding_dict
from kvcanary_cli.report.finding_summary import summary_line
from kvcanary_cli.report.replay_json import capacity_dict
from kvcanary_cli.report.unexplained import unexplained
from kvcanary_cli.report.words import safe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvcanary_cli.attribution.diagnose import Diagnosis
    from kvcanary_cli.attribution.report import Report
    from kvcanary_cli.attribution.result import Finding

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_VIOLATION = "canary_violation"
Cell = dict[str, Any]


def sarif_parts(report: Report, exit_code: int) -> Iterator[str]:
    """One SARIF log with one run; what was not checked is a notification, never silence.

    Args:
        report: What was found.
        exit_code: What the call ends with.
    """
    results = [*_results(report)]
    rules = {result["ruleId"] for result in results}
    run: Cell = {
        "tool": {
            "driver": {
                "name": "kvcanary",
                "version": __version__,
                "rules": [_rule(name) for name in sorted(rules)],
            }
        },
        "invocations": [
            {
                "executionSuccessful": not report.failed
                and not any(map(_is_unchecked, report.traces)),
                "exitCode": exit_code,
                "toolExecutionNotifications": [*_notifications(report)],
            }
        ],
        "artifacts": [
            {
                "location": {"uri": _uri(diagnosis.replay.trace.path)},
                "hashes": {"sha-256": diagnosis.replay.trace.sha256},
            }
            for diagnosis in report.traces
        ],
        "results": results,
        "properties": {"verdict": report.verdict},
    }
    yield json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}) + "\n"


def _results(report: Report) -> Iterator[Cell]:
    for diagnosis in report.traces:
        path = diagnosis.replay.trace.path
        for overflow in diagnosis.replay.capacity_violations:
            cell = capacity_dict(overflow)
            yield _result(cell["code"], cell["message"], [path], None, cell)
        for finding in diagnosis.findings:
            yield _finding(finding, [path])
        text = unexplained(diagnosis)
        if text is not None:
            yield _result(_VIOLATION, text, [path], None, {})
    for pair, finding in zip(report.divergent, report.divergences, strict=True):
        yield _finding(finding, [report.traces[k].replay.trace.path for k in pair])


def _finding(finding: Finding, paths: list[str]) -> Cell:
    text = "\n".join([summary_line(finding), *finding.evidence, f"remedy: {finding.remedy}"])
    return _result(finding.cls, text, paths, finding.victim, finding_dict(finding))


def _result(rule: str, text: str, paths: list[str], victim: str | None, properties: Cell) -> Cell:
    """One result; a trace has no lines, so that the victim is its logical place."""
    places: list[Cell] = [
        {"physicalLocation": {"artifactLocation": {"uri": _uri(p)}}} for p in paths
    ]
    if victim is not None:
        places[0]["logicalLocations"] = [{"name": safe(victim), "kind": "request"}]
    message = {"text": "\n".join(safe(line) for line in text.split("\n"))}
    cell: Cell = {"ruleId": rule, "level": "error", "message": message, "locations": places}
    return cell | ({"properties": properties} if properties else {})


def _uri(path: str) -> str:
    """A path or URL as a URI reference."""
    return quote(path, safe="/:", errors="surrogatepass")


def _rule(name: str) -> Cell:
    page = class_pages().get(name)
    if page is None:
        return {"id": name}
    return {
        "id": name,
        "shortDescription": {"text": page.title},
        "fullDescription": {"text": page.meaning},
        "help": {"text": f"{page.remedy}; stop-gap: {page.stop_gap}"},
    }


def _is_unchecked(diagnosis: Diagnosis) -> bool:
    return diagnosis.verdict == Verdict.NOT_CHECKED


def _notifications(report: Report) -> Iterator[Cell]:
    for failed in report.failed:
        cell = failed_dict(failed)
        yield {"level": "error", "message": {"text": safe(failed.message)}, "properties": cell}
    for diagnosis in report.traces:
        coverage, path = diagnosis.replay.coverage, diagnosis.replay.trace.path
        if _is_unchecked(diagnosis):
            yield {"level": "error", "message": {"text": f"{safe(path)}: nothing was checked"}}
        blind = ", ".join(coverage.blind_to)
        notes = [*coverage.notes, *([f"blind to {blind}"] if blind else [])]
        for note in notes:
            yield {"level": "note", "message": {"text": f"{safe(path)}: {safe(note)}"}}
    for note in report.notes:
        yield {"level": "note", "message": {"text": safe(note)}}
