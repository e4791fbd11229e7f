"""The JSON of ``check-capacities`` and ``suggest-flags`` (docs/output.md)."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from kvcanary_cli import __version__
from kvcanary_cli.serving.check_result import Status

if TYPE_CHECKING:
    from kvcanary_cli.serving.check_result import Change, Check, CheckReport, Fix
    from kvcanary_cli.serving.suggest import Outcome

SCHEMA_VERSION = 1
_OK = {Status.OK: True, Status.FAILS: False, Status.UNKNOWN: None}


def check_json(report: CheckReport) -> str:
    """The report of ``check-capacities`` as one JSON object."""
    return _dump({**_head("check-capacities"), **report_object(report)})


def suggest_json(outcome: Outcome, budget_bytes: int | None) -> str:
    """The outcome of ``suggest-flags`` as one JSON object."""
    return _dump(
        {
            **_head("suggest-flags"),
            **report_object(outcome.before),
            "budget_bytes": budget_bytes,
            "suggestions": [
                {
                    **_fix(one.fix),
                    "verified": True,
                    "within_budget": one.within_budget,
                    "verdict_after": one.report.verdict.value,
                    "capacities_after": {part.name: part.value for part in one.report.parts},
                }
                for one in (*outcome.suggestions, *outcome.rejected)
            ],
            "unfixable": [_check(check) for check in outcome.unfixable],
            "advice": list(outcome.advice),
            "needed": not outcome.passes_already,
        }
    )


def _head(command: str) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "tool": {"name": "kvcanary", "version": __version__},
        "command": command,
    }


def _dump(value: dict[str, Any]) -> str:
    return json.dumps(_plain(value), indent=2, ensure_ascii=False) + "\n"


def _plain(value: Any) -> Any:
    """Values that JSON can hold: no NaN, no tuples, no foreign types."""
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, str | int | float):
        return value
    return str(value)


def report_object(report: CheckReport) -> dict[str, Any]:
    """A report as an object without a head."""
    resolution = report.resolution
    version = resolution.given.get("sglang_version")
    out: dict[str, Any] = {
        "sources": list(report.sources),
        "server_version": {
            "rules": resolution.version,
            "stated": resolution.stated_version,
            "basis": resolution.version_basis,
            "source": "" if version is None else version.source,
        },
        "resolved": {
            name: {"value": found.value, "source": found.source}
            for name, found in resolution.values.items()
        },
        "capacities": {
            part.name: {
                "value": part.value,
                "formula": part.formula,
                "from": list(part.inputs),
                "source": part.source,
            }
            for part in report.parts
        },
        "workspace_bytes": report.memory.workspace,
        "canary_buffer_bytes": report.memory.buffers,
        "ring_bytes": report.memory.ring,
        "expected_token_bytes": report.memory.expected_tokens,
        "available_bytes": report.memory.available,
        "demands": [
            {
                "quantity": demand.quantity,
                "value": demand.value,
                "source": demand.source,
                "observed": demand.observed,
            }
            for demand in report.demands
        ],
        "checks": [_check(check) for check in report.checks],
        "unknown": [
            {"name": unknown.name, "why": unknown.why, "give": unknown.give}
            for unknown in report.unknown
        ],
        "refusals": [
            {
                "code": refusal.code,
                "message": refusal.message,
                "source": refusal.source,
                "fix": refusal.fix,
                "certain": refusal.certain,
                "when": refusal.when,
            }
            for refusal in report.refusals
        ],
        "remarks": [remark.text for remark in resolution.remarks],
        "notices": list(report.notices),
        "advice": list(report.advice),
        "violations_logged": report.violations_logged,
        "verdict": report.verdict.value,
    }
    if report.differences is not None:
        out["against"] = report.against
        out["differences"] = [
            {
                "name": d.name,
                "here": d.here,
                "here_source": d.here_source,
                "there": d.there,
                "there_source": d.there_source,
                "effect": d.effect,
            }
            for d in report.differences
        ]
    return out


def _check(check: Check) -> dict[str, Any]:
    return {
        "code": check.code,
        "name": check.name,
        "limit": check.limit,
        "demand": check.demand,
        "demand_source": check.demand_source,
        "margin": check.margin,
        "ok": _OK[check.status],
        "cause": check.cause,
        "message": check.message,
        "fixes": [entry for fix in check.fixes for entry in _flat_fix(fix)],
    }


def _flat_fix(fix: Fix) -> list[dict[str, Any]]:
    """One entry a fix, named by its first flag; further flags stand under ``also``."""
    first, *rest = fix.changes
    return [
        {
            **_change(first),
            "cost_bytes": fix.cost_bytes,
            "why": fix.why,
            "effects": list(fix.effects),
            "also": [_change(change) for change in rest],
        }
    ]


def _change(change: Change) -> dict[str, Any]:
    return {"flag": change.flag, "from": change.before, "to": change.after}


def _fix(fix: Fix) -> dict[str, Any]:
    return {
        "changes": [_change(change) for change in fix.changes],
        "cost_bytes": fix.cost_bytes,
        "why": fix.why,
        "effects": list(fix.effects),
    }
