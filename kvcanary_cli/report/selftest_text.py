"""The detection matrix of ``selftest`` as text and JSON, and the list of faults."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rich.text import Text

from kvcanary_cli import __version__
from kvcanary_cli.inject.kinds import KINDS
from kvcanary_cli.report.tables import data_table
from kvcanary_cli.report.words import safe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from kvcanary_cli.selftest.matrix import KindLine, Matrix

_COUNTS = (
    ("detected", "detected"),
    ("step_right", "first step"),
    ("cls_right", "class"),
    ("subtype_right", "sub-type"),
    ("culprit_right", "culprit"),
)
_SHOWN_MISSES = 12


def kinds_table(*, width: int) -> RenderableType:
    """All kinds of faults: class, needed records, meaning."""
    rows = [
        [kind.name, kind.cls, ", ".join(sorted(kind.needs)), kind.meaning]
        for kind in KINDS.values()
    ]
    return data_table(["fault", "class", "needs", "meaning"], rows, width=width, right=frozenset())


def render_matrix(matrix: Matrix, *, width: int) -> Iterator[RenderableType]:
    """The matrix, what was missed, and what could not be planted."""
    headers = ["fault", "class", "runs", *(title for _name, title in _COUNTS)]
    planted = [line for line in matrix.lines if line.runs]
    rows = [_row(line) for line in planted]
    rows.append(
        [
            "total",
            "",
            str(matrix.runs),
            *(_share(matrix.total(name), matrix.runs) for name, _title in _COUNTS),
        ]
    )
    yield data_table(headers, rows, width=width, right=frozenset(headers[2:]))
    yield Text("")
    left_out = [line for line in matrix.lines if not line.runs]
    for line in left_out:
        yield Text(safe(f"not planted: {line.kind.name} ({line.why_none})"))
    for line in planted:
        if line.runs + len(line.lost) < matrix.seeds:
            yield Text(safe(_few(line)))
    for fault in matrix.lost:
        yield Text(safe(f"not judged: {fault.kind}, seed {fault.seed}: {fault.why}"))
    missed = [o for line in planted for o in line.outcomes if not o.detected]
    for outcome in missed[:_SHOWN_MISSES]:
        yield Text(safe(f"missed: {outcome.kind}, seed {outcome.seed}: {outcome.truth}"))
    if len(missed) > _SHOWN_MISSES:
        yield Text(f"... and {len(missed) - _SHOWN_MISSES} more missed")
    yield Text(safe(summary_line(matrix)))


def _few(line: KindLine) -> str:
    found = line.runs + len(line.lost)
    return f"few occasions: {line.kind.name}: {found} different faults in {line.draws} draws"


def _row(line: KindLine) -> list[str]:
    counts = [_share(line.count(name), line.runs) for name, _title in _COUNTS]
    return [line.kind.name, line.kind.cls, str(line.runs), *counts]


def _share(part: int, whole: int) -> str:
    if part == whole:
        return "100%"
    # Rounded down: 100% means all.
    return f"{int(1000 * part / whole) / 10}%" if whole else "-"


def summary_line(matrix: Matrix) -> str:
    return (
        f"SUMMARY: selftest {matrix.trace}: {matrix.runs} faults, "
        f"{matrix.total('detected')} detected, {matrix.total('cls_right')} classes right, "
        f"{matrix.false_alarms} false alarms on the clean trace"
        + (f", {len(matrix.lost)} not judged" if matrix.lost else "")
    )


def matrix_json(matrix: Matrix) -> Iterator[str]:
    """One JSON object (docs/selftest.md)."""
    value: dict[str, Any] = {
        "schema_version": 1,
        "tool": {"name": "kvcanary", "version": __version__},
        "command": "selftest",
        "trace": matrix.trace,
        "seeds": matrix.seeds,
        "false_alarms": matrix.false_alarms,
        "kinds": [_line_dict(line) for line in matrix.lines],
        "runs": matrix.runs,
        "verdict": _verdict(matrix),
    }
    value |= {name: matrix.total(name) for name, _title in _COUNTS}
    yield json.dumps(value, indent=1) + "\n"


def _verdict(matrix: Matrix) -> str:
    if matrix.lost:
        return "incomplete"
    return "missed" if matrix.missed else "all_detected"


def _line_dict(line: KindLine) -> dict[str, Any]:
    out: dict[str, Any] = {
        "fault": line.kind.name,
        "class": line.kind.cls,
        "draws": line.draws,
        "runs": line.runs,
        **{name: line.count(name) for name, _title in _COUNTS},
    }
    if line.why_none is not None:
        out["not_planted"] = line.why_none
    if line.lost:
        out["not_judged"] = [{"seed": fault.seed, "why": fault.why} for fault in line.lost]
    out["wrong"] = [
        {"seed": o.seed, "said": o.said, "truth": o.truth}
        for o in line.outcomes
        if not (o.detected and o.cls_right)
    ]
    return out
