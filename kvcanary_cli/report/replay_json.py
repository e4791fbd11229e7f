"""A replay's result as JSON and as JSON lines: the contract of docs/output.md, version 1.

Text is produced piece by piece, so that a trace with millions of violations needs no second copy.
It is ASCII: a request id may be any string, half surrogate pairs included, and stdout any encoding.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from kvcanary_cli import __version__
from kvcanary_cli.report.failed import failed_dict
from kvcanary_cli.report.finding_dict import finding_dict, ownership_dict
from kvcanary_cli.report.words import hex64

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvcanary_cli.attribution.diagnose import Diagnosis
    from kvcanary_cli.attribution.report import Report
    from kvcanary_cli.replay.result import CapacityFinding, Coverage, ReplayResult, TraceSummary
    from kvcanary_cli.replay.violations import Violation

SCHEMA_VERSION = 1


def json_parts(report: Report) -> Iterator[str]:
    """One JSON object; several traces stand under ``traces``, what was found carries ``rank``."""
    several = report.is_several
    results = [diagnosis.replay for diagnosis in report.traces]
    head: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "tool": {"name": "kvcanary", "version": __version__},
        "command": "replay",
    }
    if several:
        head["traces"] = [_trace_facts(result) for result in results]
        head["failed"] = [failed_dict(failed) for failed in report.failed]
    else:
        head |= _trace_facts(results[0])
    head["capacity_violations"] = [
        _placed(capacity_dict(finding), diagnosis, several, k)
        for k, diagnosis in enumerate(report.traces)
        for finding in diagnosis.replay.capacity_violations
    ]
    text = json.dumps(head)
    yield text[:-1] + ', "violations": ['
    separator = ""
    for k, diagnosis in enumerate(report.traces):
        for violation in diagnosis.replay.violations:
            cell = _placed(violation_dict(violation), diagnosis, several, k)
            yield separator + json.dumps(cell)
            separator = ", "
    tail: dict[str, Any] = {
        "ownership": [
            _placed(ownership_dict(found), diagnosis, several, k)
            for k, diagnosis in enumerate(report.traces)
            for found in diagnosis.ownership
        ],
        "findings": list(_finding_dicts(report)),
        "coverage": _merged(report),
        "verdict": report.verdict,
    }
    yield "], " + json.dumps(tail)[1:] + "\n"


def jsonl_parts(report: Report) -> Iterator[str]:
    """One object a line: capacity violations, violations, then the ``summary``."""
    several = report.is_several
    results = [diagnosis.replay for diagnosis in report.traces]
    for k, diagnosis in enumerate(report.traces):
        for overflow in diagnosis.replay.capacity_violations:
            cell = {"kind": "capacity_violation"} | capacity_dict(overflow)
            yield json.dumps(_placed(cell, diagnosis, several, k)) + "\n"
        for violation in diagnosis.replay.violations:
            cell = {"kind": "violation"} | violation_dict(violation)
            yield json.dumps(_placed(cell, diagnosis, several, k)) + "\n"
        for found in diagnosis.ownership:
            cell = {"kind": "ownership"} | ownership_dict(found)
            yield json.dumps(_placed(cell, diagnosis, several, k)) + "\n"
    for finding in _finding_dicts(report):
        yield json.dumps({"kind": "finding"} | finding) + "\n"
    for failed in report.failed:
        yield json.dumps({"kind": "failed"} | failed_dict(failed)) + "\n"
    summary: dict[str, Any] = {
        "kind": "summary",
        "schema_version": SCHEMA_VERSION,
        "tool": {"name": "kvcanary", "version": __version__},
        "command": "replay",
        "traces": [_trace_facts(result) for result in results],
        "capacity_violations": sum(len(r.capacity_violations) for r in results),
        "violations": sum(len(r.violations) for r in results),
        "ownership": sum(len(diagnosis.ownership) for diagnosis in report.traces),
        "findings": len(report.findings),
        "failed": len(report.failed),
        "coverage": _merged(report),
        "verdict": report.verdict,
    }
    yield json.dumps(summary) + "\n"


def _placed(
    cell: dict[str, Any], diagnosis: Diagnosis, several: bool, trace: int
) -> dict[str, Any]:
    """``cell`` with its rank and the number of its trace in ``traces``, if there are several."""
    if several:
        cell["rank"] = diagnosis.rank.number
        cell["trace"] = trace
    return cell


def _finding_dicts(report: Report) -> Iterator[dict[str, Any]]:
    """Findings in order; of several inputs each with the numbers of the traces that show it."""
    for k, diagnosis in enumerate(report.traces):
        for finding in diagnosis.findings:
            cell = finding_dict(finding)
            yield cell | {"traces": [k]} if report.is_several else cell
    for pair, finding in zip(report.divergent, report.divergences, strict=True):
        yield finding_dict(finding) | {"traces": list(pair)}


def _trace_facts(result: ReplayResult) -> dict[str, Any]:
    return {
        "trace": trace_dict(result.trace),
        "backend": {"name": result.backend, "device": result.device},
        "capacities": {
            "per_forward_verify_capacity": result.capacities.verify,
            "per_forward_write_req_capacity": result.capacities.write_req,
            "per_forward_write_entry_capacity": result.capacities.write_entry,
            "source": result.capacities.source,
            "notes": list(result.capacities.notes),
        },
        "counters": {
            worker: {
                "kernel_run": list(result.kernel_counters[worker]),
                "slot_run": list(result.slot_counters[worker]),
            }
            for worker in result.kernel_counters
        },
    }


def trace_dict(trace: TraceSummary) -> dict[str, Any]:
    return {
        "path": trace.path,
        "sha256": trace.sha256,
        "engine": {"name": trace.engine_name, "version": trace.engine_version},
        "rank": trace.rank,
        "tokens": trace.tokens,
        "steps": trace.steps,
        "forwards": trace.forwards,
        "events": trace.events,
        "requests": trace.requests,
    }


def capacity_dict(finding: CapacityFinding) -> dict[str, Any]:
    violation = finding.violation
    suggestion = violation.suggestion
    return {
        "code": violation.code,
        "step": finding.step,
        "event": finding.event,
        "forward_mode": finding.forward_mode,
        "worker": finding.worker,
        "what": violation.what,
        "actual": violation.actual,
        "capacity": violation.capacity,
        "message": violation.message,
        "suggestion": None
        if suggestion is None
        else {
            "flag": suggestion.flag,
            "value": suggestion.value,
            "also": list(suggestion.also),
            "why": suggestion.why,
        },
    }


def _hash_or_none(value: int | None) -> str | None:
    return None if value is None else hex64(value)


def violation_dict(violation: Violation) -> dict[str, Any]:
    return {
        "step": violation.step,
        "event": violation.event,
        "forward_mode": violation.forward_mode,
        "worker": violation.worker,
        "pool_kind": violation.pool_kind,
        "launch_tags": list(violation.launch_tags),
        "check": violation.check,
        "slot": violation.slot,
        "position": violation.position,
        "expected_position": violation.expected_position,
        "req": violation.req,
        "row": violation.row,
        "prev_slot": violation.prev_slot,
        "stored_token": violation.stored_token,
        "expected_token": violation.expected_token,
        "stored_chain_hash": hex64(violation.stored_chain_hash),
        "expected_chain_hash": _hash_or_none(violation.expected_chain_hash),
        "stored_kv_hash": _hash_or_none(violation.stored_kv_hash),
        "expected_kv_hash": _hash_or_none(violation.expected_kv_hash),
        "fail_reasons": list(violation.fail_reasons),
        "role": violation.role,
    }


_CHECKS = ("capacities", "canary", "ownership", "findings")


def checks_made(result: ReplayResult) -> dict[str, bool]:
    """Kind of check to whether it was made, in the order in which they are told."""
    coverage = result.coverage
    made = (
        result.capacities.known,
        bool(coverage.forwards or coverage.sweeps),
        result.ownership_checked,
        result.diagnosed,
    )
    return dict(zip(_CHECKS, made, strict=True))


def coverage_dict(coverage: Coverage, result: ReplayResult) -> dict[str, Any]:
    return {
        "records": list(coverage.records),
        "blind_to": list(coverage.blind_to),
        "not_recorded": list(coverage.not_recorded),
        "silent": list(coverage.silent),
        "steps": coverage.steps,
        "forwards": coverage.forwards,
        "entries_verified": coverage.entries_verified,
        "entries_skipped": coverage.entries_skipped,
        "skip_reasons": coverage.skip_reasons,
        "entries_written": coverage.entries_written,
        "token_entries": coverage.token_entries,
        "chain_unlinked": coverage.chain_unlinked,
        "kv_hashes": coverage.kv_hashes,
        "sweeps": coverage.sweeps,
        "sweep_entries": coverage.sweep_entries,
        "lost_events": coverage.lost_events,
        "ring_lost": result.ring_lost,
        "filters": list(result.filters),
        "filtered_out": result.filtered_out,
        "ended_at_event": coverage.ended_at_event,
        "stopped_at_step": coverage.stopped_at_step,
        "checks": checks_made(result),
        "notes": list(coverage.notes),
    }


_SUMMED = (
    "steps",
    "forwards",
    "entries_verified",
    "entries_skipped",
    "entries_written",
    "token_entries",
    "chain_unlinked",
    "kv_hashes",
    "sweeps",
    "sweep_entries",
    "lost_events",
    "ring_lost",
    "filtered_out",
)


def _merged(report: Report) -> dict[str, Any]:
    """Coverage of several traces: counts added, a family or check counts only if all have it."""
    results = [diagnosis.replay for diagnosis in report.traces]
    each = [coverage_dict(result.coverage, result) for result in results]
    if not report.is_several:
        return each[0]
    out: dict[str, Any] = {name: sum(c[name] for c in each) for name in _SUMMED}
    recorded = [set(c["records"]) for c in each] or [set()]
    out["records"] = sorted(set.intersection(*recorded))
    for name in ("blind_to", "not_recorded", "silent"):
        out[name] = sorted({what for c in each for what in c[name]})
    reasons: dict[str, int] = {}
    for cell in each:
        for reason, number in cell["skip_reasons"].items():
            reasons[reason] = reasons.get(reason, 0) + number
    out["skip_reasons"] = reasons
    for name in ("ended_at_event", "stopped_at_step"):
        out[name] = next((c[name] for c in each if c[name] is not None), None)
    out["filters"] = each[0]["filters"] if each else []
    out["checks"] = {
        name: bool(each) and not report.failed and all(c["checks"][name] for c in each)
        for name in _CHECKS
    }
    out["notes"] = [
        f"{result.trace.path}: {note}"
        for result, cell in zip(results, each, strict=True)
        for note in cell["notes"]
    ]
    out["notes"] += report.notes
    return out
