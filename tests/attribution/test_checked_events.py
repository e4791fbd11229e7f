"""``--steps`` and what needs no forward: an event belongs to the next forward, else to the last."""

from __future__ import annotations

from typing import Any

import pytest

from kvcanary_cli.attribution.diagnose import diagnose_trace
from kvcanary_cli.replay.options import ReplayOptions
from tests.attribution.events import HEAD, decode, life
from tests.replay.helpers import UNCHECKED, MemoryReader

Event = dict[str, Any]
LAST = 4
RANGES = [
    (a, b)
    for a in (None, 1, 2, 3, LAST)
    for b in (1, 2, 3, LAST, None)
    if a is None or a <= (b or 9)
]


def _steps() -> list[list[Event]]:
    """What one request does at each of some steps."""
    first = life("A", [1, 2], [1, 2], row=1, step=1)
    later = [
        decode("A", 7, 9 + step, row=1, position=step, step=step) for step in range(2, LAST + 1)
    ]
    return [first, *later]


def _faulty(before: int, gap: int | None) -> list[Event]:
    """Slots are freed twice before step ``before`` (``LAST`` + 1: behind the last one).

    ``gap``: events were lost in front of that step, so that its request begins anew there.
    """
    events: list[Event] = []
    for step, each in enumerate([*_steps(), []], 1):
        skip = 5 if step == gap else 0
        fault = [{"kind": "free", "owner": "X", "slots": [40]}] * 2 if step == before else []
        if skip and each:
            each = life(f"B{step}", [5, 6], [20, 21], row=2, step=step)
        at = (events[-1]["i"] + 1 if events else 0) + skip
        events += [event | {"i": at + k} for k, event in enumerate([*fault, *each])]
    return events


@pytest.mark.parametrize("steps", RANGES)
@pytest.mark.parametrize("before", range(1, LAST + 2))
@pytest.mark.parametrize("gap", [None, 3, LAST + 1])
def test_steps_ask_for_what_leads_up_to_them(
    steps: tuple[int | None, int | None], before: int, gap: int | None
) -> None:
    options = ReplayOptions(backend="cpu", steps=steps)
    diagnosis = diagnose_trace(MemoryReader(HEAD, _faulty(before, gap)), options, UNCHECKED)
    expected = options.checks_step(min(before, LAST))
    assert [o.what for o in diagnosis.ownership] == ["double_free"] * expected
    assert [f.cls for f in diagnosis.findings] == ["double_alloc"] * expected
    # All that the last step reads was written before the gap, and the one before reads nothing.
    unchecked = gap == 3 and (steps[0] or 0) >= 3 and steps[1] != 3
    assert diagnosis.verdict == ("corrupt" if expected else "not_checked" if unchecked else "clean")
