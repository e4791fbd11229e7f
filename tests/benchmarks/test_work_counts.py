"""What a replay does, counted: a decode step's work is its batch's, whatever the context.

Times are measured by ``benchmarks``; here the entries that are handed to the verify kernel are
counted, which no machine can make slower.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from benchmarks import scale_traces
from kvcanary_cli.replay.capacity_limits import NOT_CHECKED
from kvcanary_cli.replay.driver import replay_trace
from kvcanary_cli.replay.known import Known
from kvcanary_cli.replay.options import ReplayOptions, Verify
from kvcanary_cli.trace.reader import open_trace

if TYPE_CHECKING:
    from pathlib import Path

BATCH, STEPS = 4, 30
CONTEXTS = (200, 1600)


def _handed(
    path: Path, monkeypatch: pytest.MonkeyPatch, verify: Verify
) -> tuple[list[tuple[str, int]], int]:
    """Mode and checked entries of each forward with a prefix; entries verified as counted."""
    handed: list[tuple[str, int]] = []
    plan = Known.plan

    def counted(self: Known, forward: Any, *args: Any) -> Any:
        entries = plan(self, forward, *args)
        handed.append((forward.mode.name, len(entries.index)))
        return entries

    monkeypatch.setattr(Known, "plan", counted)
    # One forward at a time: compiled runs of events do the same without asking for a plan.
    options = ReplayOptions(backend="cpu", verify=verify, compiled=False)
    result = replay_trace(open_trace(path), options, NOT_CHECKED)
    assert not result.violations
    return handed, result.coverage.entries_verified


@pytest.mark.parametrize("context", CONTEXTS)
def test_a_decode_step_checks_what_it_added(
    context: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "trace.pt"
    recorded = scale_traces.long_context(path, context=context, steps=STEPS, batch=BATCH)
    handed, verified = _handed(path, monkeypatch, Verify.INCREMENTAL)
    decodes = [entries for mode, entries in handed if mode == "DECODE"]
    assert len(decodes) == STEPS
    # Each looks at the cells that the step before it wrote; the first one at the prompts'.
    assert set(decodes[1:]) == {BATCH}
    # Every cell is checked once in all, though the counters say what the engine would have checked.
    assert sum(entries for _, entries in handed) <= recorded
    assert verified >= BATCH * context * STEPS


def test_the_engines_own_count_grows_with_the_context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the count above is held against: everything, at every step."""
    totals = []
    for verify in (Verify.FULL, Verify.INCREMENTAL):
        for context in CONTEXTS:
            path = tmp_path / f"{context}.pt"
            scale_traces.long_context(path, context=context, steps=STEPS, batch=BATCH)
            totals.append(_handed(path, monkeypatch, verify)[1])
    assert totals[:2] == totals[2:]
    assert totals[1] > 7 * totals[0]
