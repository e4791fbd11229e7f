"""Any valid trace replays: a verdict or a clear refusal, never another exception."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvcanary_cli.errors import InputError
from kvcanary_cli.replay.options import Mode
from kvcanary_cli.report.log_lines import ring_rows
from tests.replay.helpers import replay
from tests.trace.strategies import traces

Event = dict[str, Any]
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]


@given(traces(max_events=16), st.sampled_from([None, 0, 1]), st.booleans(), st.booleans())
@settings(max_examples=150, suppress_health_check=SLOW)
def test_any_valid_trace_replays(
    trace: tuple[Event, list[Event]], sweep: int | None, strict: bool, v_half: bool
) -> None:
    head, events = trace
    results = []
    for backend in ("cpu", "reference"):
        try:
            results.append(
                replay(
                    head,
                    events,
                    backend=backend,
                    sweep_interval=sweep,
                    strict_upstream=strict,
                    v_half=v_half,
                )
            )
        except InputError as error:
            results.append(str(error))
    one, other = results
    if isinstance(one, str) or isinstance(other, str):
        assert one == other
        return
    assert list(one.violations) == list(other.violations)
    assert one.coverage == other.coverage
    assert one.coverage.entries_verified >= 0
    rows = [row for violation in one.violations for row in ring_rows(violation)]
    assert len(rows) >= len(one.violations)
    assert all(row.fail_bits for row in rows)


@given(traces(max_events=16))
@settings(max_examples=40, suppress_health_check=SLOW)
def test_any_valid_trace_replays_in_raise_mode(trace: tuple[Event, list[Event]]) -> None:
    head, events = trace
    try:
        whole = list(replay(head, events).violations)
        stopped = list(replay(head, events, mode=Mode.RAISE).violations)
    except InputError:
        return
    assert stopped == whole[: len(stopped)]
    assert bool(stopped) == bool(whole)
