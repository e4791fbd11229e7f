"""A replay's findings as JUnit XML, for CI servers (docs/output.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree as Xml

from kvcanary_cli.replay.result import Verdict
from kvcanary_cli.report.finding_summary import summary_line
from kvcanary_cli.report.replay_json import checks_made
from kvcanary_cli.report.unexplained import unexplained
from kvcanary_cli.report.words import safe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvcanary_cli.attribution.diagnose import Diagnosis
    from kvcanary_cli.attribution.report import Report
    from kvcanary_cli.attribution.result import Finding


def junit_parts(report: Report) -> Iterator[str]:
    """One suite a trace: a case for each kind of check, and a failed one for each finding.

    A kind of check that was not made is skipped; an input of which nothing was checked is an
    error, so that it is never green.
    """
    suites = [_suite(diagnosis) for diagnosis in report.traces]
    for pair, finding in zip(report.divergent, report.divergences, strict=True):
        names = " and ".join(report.traces[k].replay.trace.path for k in pair)
        suite = Xml.Element("testsuite", name=safe(names))
        _finding(suite, finding)
        suites.append(_counted(suite))
    for failed in report.failed:
        suite = Xml.Element("testsuite", name=safe(failed.path))
        error = Xml.SubElement(_case(suite, "replay", "input"), "error")
        error.set("message", safe(failed.message))
        suites.append(_counted(suite))
    root = Xml.Element("testsuites", name=f"kvcanary replay: {report.verdict}")
    root.extend(suites)
    for name in ("tests", "failures", "errors", "skipped"):
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in suites)))
    Xml.indent(root)
    yield '<?xml version="1.0" encoding="us-ascii"?>\n'
    yield Xml.tostring(root, encoding="us-ascii").decode("ascii") + "\n"


def _suite(diagnosis: Diagnosis) -> Xml.Element:
    result = diagnosis.replay
    suite = Xml.Element("testsuite", name=safe(result.trace.path))
    coverage = result.coverage
    told = unexplained(diagnosis)
    for name, is_made in checks_made(result).items():
        case = _case(suite, "checks", name)
        if name == "canary" and diagnosis.verdict == Verdict.NOT_CHECKED:
            Xml.SubElement(case, "error", message="nothing was checked")
        elif not is_made:
            Xml.SubElement(case, "skipped", message="this trace or these options do not show it")
        elif name == "canary" and told is not None:
            Xml.SubElement(case, "failure", type="canary_violation", message=told)
    for overflow in result.capacity_violations:
        violation = overflow.violation
        case = _case(suite, violation.code, f"step {overflow.step}: {violation.what}")
        failure = Xml.SubElement(case, "failure", type=violation.code)
        failure.set("message", safe(violation.message))
    for finding in diagnosis.findings:
        _finding(suite, finding)
    notes = [*coverage.notes, *(f"blind to {name}" for name in coverage.blind_to)]
    Xml.SubElement(suite, "system-out").text = "\n".join(safe(note) for note in notes)
    return _counted(suite)


def _finding(suite: Xml.Element, finding: Finding) -> None:
    case = _case(suite, finding.cls, f"{finding.id} {finding.subtype}")
    failure = Xml.SubElement(case, "failure", type=finding.cls, message=summary_line(finding))
    lines = [*finding.evidence, f"remedy: {finding.remedy}"]
    failure.text = "\n".join(safe(line) for line in lines)


def _case(suite: Xml.Element, group: str, name: str) -> Xml.Element:
    return Xml.SubElement(suite, "testcase", classname=f"kvcanary.{group}", name=name)


def _counted(suite: Xml.Element) -> Xml.Element:
    suite.set("tests", str(len(suite.findall("testcase"))))
    for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(name, str(len(suite.findall(f"testcase/{tag}"))))
    return suite
