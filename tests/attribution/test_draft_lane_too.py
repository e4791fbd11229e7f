"""What the target's lane and the draft's show of one cause event is one finding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.attribution.events import HEAD, extend, index_of, numbered
from tests.attribution.helpers import diagnose

if TYPE_CHECKING:
    from collections.abc import Callable

Event = dict[str, Any]


def _request(req: str, first: int, n: int) -> list[Event]:
    """Its history and slots; a draft's token is the one behind, so one more token is known."""
    return [
        {"kind": "history", "req": req, "start": 0, "ids": list(range(first, first + n + 1))},
        {"kind": "alloc", "owner": req, "slots": list(range(first, first + n))},
    ]


def _map(row: int, start: int, *slots: int) -> Event:
    return {"kind": "map", "row": row, "start": start, "slots": list(slots)}


def _both(step: int, req: str, row: int, prefix: int, tokens: list[int], slots: list[int]) -> Any:
    """The forwards of the target and of the draft."""
    draft = extend(step, req, row, prefix, [token + 1 for token in tokens], slots)
    return [extend(step, req, row, prefix, tokens, slots), draft | {"worker": "draft"}]


def _write(step: int, req: str, row: int, first: int, begin: int, end: int) -> list[Event]:
    at = list(range(first + begin, first + end))
    return [_map(row, begin, *at), *_both(step, req, row, begin, at, at)]


def _stale_cell() -> list[Event]:
    return [_map(1, 1, 13), *_write(3, "A", 1, 11, 4, 6)]


def _swapped_cells() -> list[Event]:
    return [_map(1, 1, 13), _map(1, 2, 12), *_write(3, "A", 1, 11, 4, 6)]


def _early_free() -> list[Event]:
    return [
        {"kind": "free", "owner": "A", "slots": [12]},
        {"kind": "alloc", "owner": "C", "slots": [12]},
        {"kind": "history", "req": "C", "start": 0, "ids": [51, 52]},
        _map(3, 0, 12),
        *_both(3, "C", 3, 0, [51], [12]),
        *_write(4, "A", 1, 11, 4, 6),
    ]


def _twice() -> list[Event]:
    return [
        {"kind": "alloc", "owner": "C", "slots": [12]},
        {"kind": "history", "req": "C", "start": 0, "ids": [51, 52]},
        _map(3, 0, 12),
        *_both(3, "C", 3, 0, [51], [12]),
        *_write(4, "A", 1, 11, 4, 6),
    ]


@pytest.mark.parametrize(
    ("fault", "cls", "cause", "slots"),
    [
        (_stale_cell, "stale_mapping", ("map", {"start": 1, "slots": [13]}), {13}),
        (_swapped_cells, "stale_mapping", ("map", {"start": 1, "slots": [13]}), {12, 13}),
        (_early_free, "use_after_free", ("free", {"owner": "A"}), {12}),
        (_twice, "double_alloc", ("alloc", {"owner": "C"}), {12}),
    ],
)
@pytest.mark.parametrize("target_first", [True, False])
def test_both_lanes_show_one_finding(
    fault: Callable[[], list[Event]],
    cls: str,
    cause: tuple[str, dict[str, Any]],
    slots: set[int],
    target_first: bool,
) -> None:
    events = [*_request("A", 11, 6), *_write(1, "A", 1, 11, 0, 4), *fault()]
    if not target_first:
        for k in range(len(events) - 1):
            if events[k + 1].get("worker") == "draft":
                events[k], events[k + 1] = events[k + 1], events[k]
    events = numbered(events)
    (finding,) = diagnose(HEAD, events).findings
    assert (finding.cls, finding.victim, finding.slots) == (cls, "A", slots)
    assert finding.cause_event == index_of(events, cause[0], **cause[1])
    first = "target" if target_first else "draft"
    assert finding.worker == first
    other = "draft" if target_first else "target"
    step = finding.first_bad_step
    assert f"the {other} lane shows it, too, from step {step} on" in finding.evidence


def test_what_each_lane_was_fed_wrongly_stays_two_findings() -> None:
    events = [*_request("A", 11, 6), *_write(1, "A", 1, 11, 0, 4)]
    events[-1] = events[-1] | {"input_ids": [12, 13, 77, 15]}
    events[-2] = events[-2] | {"input_ids": [11, 12, 77, 14]}
    found = diagnose(HEAD, numbered([*events, *_write(2, "A", 1, 11, 4, 6)])).findings
    assert [(f.cls, f.worker) for f in found] == [
        ("wrong_token_fed", "target"),
        ("wrong_token_fed", "draft"),
    ]
