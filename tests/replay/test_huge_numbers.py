"""Numbers that are far out of range, anywhere in a trace: an answer or one clear error."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest

from kvcanary_cli.trace.errors import TraceError
from tests.attribution.helpers import CAPTURES, SCENARIOS, diagnose_path, events_of
from tests.trace.helpers import write_jsonl

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Event = dict[str, Any]
Spot = tuple[str | int, ...]
VALUES = [(1 << 31) - 1, 1 << 31, 1 << 62, (1 << 63) - 1, -2, -(1 << 31) - 1, -(1 << 63)]
_CAPTURED = 400


def _spots(event: Event) -> Iterator[Spot]:
    """Where whole numbers stand in an event: fields, and the first of each list."""
    for name, value in event.items():
        if name == "i" or isinstance(value, bool):
            continue
        if isinstance(value, int):
            yield (name,)
        elif isinstance(value, list) and value and isinstance(value[0], int):
            yield name, 0
        elif isinstance(value, dict):
            yield from ((name, *rest) for rest in _spots(value))


def _fields() -> dict[str, tuple[Event, list[Event], int, Spot]]:
    """Every field of every kind once: a trace, the event's place in it, the spot."""
    out: dict[str, tuple[Event, list[Event], int, Spot]] = {}
    traces = [events_of(path) for path in sorted(SCENARIOS.glob("*.jsonl"))]
    for name in ("ngram_clean", "swa_canary_clean"):
        head, events = events_of(CAPTURES / f"{name}.jsonl.zst")
        traces.append((head, events[:_CAPTURED]))
    for head, events in traces:
        for place, event in enumerate(events):
            for spot in _spots(event):
                name = ".".join([event["kind"], *map(str, spot)])
                out.setdefault(name, (head, events, place, spot))
    return out


FIELDS = _fields()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("field", sorted(FIELDS))
def test_it_is_an_answer_or_one_error(field: str, tmp_path: Path) -> None:
    head, events, place, spot = FIELDS[field]
    for value in VALUES:
        changed = copy.deepcopy(events)
        at: Any = changed[place]
        for key in spot[:-1]:
            at = at[key]
        at[spot[-1]] = value
        path = write_jsonl(tmp_path / "t.jsonl", head, changed)
        try:
            said = diagnose_path(path).verdict
        except TraceError as error:
            said = error.message
        assert said in ("clean", "corrupt", "not_checked") or str(path) in said


@pytest.mark.parametrize("step", [-1, 1 << 31])
def test_a_step_that_no_ledger_can_keep_is_refused(step: int, tmp_path: Path) -> None:
    head, events, place, _ = FIELDS["forward.step"]
    changed = copy.deepcopy(events)
    changed[place]["step"] = step
    path = write_jsonl(tmp_path / "t.jsonl", head, changed)
    with pytest.raises(TraceError, match=r"'step'.* is .*, expected a step from 0 to 2147483647"):
        diagnose_path(path)
