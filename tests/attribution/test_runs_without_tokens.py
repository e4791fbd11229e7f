"""Without histories a run of another's content fits together; and what is found is seen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kvcanary_cli.trace.reader import open_trace
from tests.attribution.events import HEAD, decode, life, numbered
from tests.attribution.helpers import CAPTURES, SCENARIOS, diagnose, events_of

if TYPE_CHECKING:
    from pathlib import Path

Event = dict[str, Any]
FAMILIES = {
    "alloc": ("alloc", "free", "own"),
    "map": ("map",),
    "history": ("history",),
    "request": ("finish", "retract", "abort", "row_release"),
    "prefix": ("publish", "unpublish", "match"),
    "launch": ("launch",),
    "transfer": ("copy", "transfer_begin", "transfer_end", "transfer_fail", "deferred_write"),
}


def without(family: str, head: Event, events: list[Event]) -> tuple[Event, list[Event]]:
    """The trace as if ``family`` had not been recorded."""
    kept = [e for e in events if e["kind"] not in FAMILIES[family]]
    return head | {"records": [r for r in head["records"] if r != family]}, numbered(kept)


@pytest.mark.parametrize("ends", [None, "finish"])
@pytest.mark.parametrize("lost", [[1], [1, 2], [1, 2, 3]])
@pytest.mark.parametrize("tokens", [True, False])
def test_all_slots_of_the_wrong_writer_are_named(
    lost: list[int], ends: str | None, tokens: bool
) -> None:
    """Of A's first four slots the first ones go to C, which writes them from position 0 on."""
    events = [
        *life("A", [101, 102, 103, 104], [1, 2, 3, 4], row=1, step=1),
        {"kind": "free", "owner": "A", "slots": lost},
        *life("C", [31, 32, 33][: len(lost)], lost, row=3, step=2),
    ]
    if ends is not None:
        events.append({"kind": "free", "owner": "C", "slots": lost, "reason": ends})
    events = numbered([*events, *decode("A", 201, 40, row=1, position=4, step=3)])
    head = HEAD
    if not tokens:
        head, events = without("history", HEAD, events)
    (finding,) = diagnose(head, events).findings
    assert (finding.cls, finding.slots) == ("use_after_free", set(lost))
    assert (finding.seam_slots, finding.positions) == ({len(lost) + 1}, set(range(len(lost))))
    assert finding.violations == 1 + tokens * len(lost)


def test_a_shared_prefix_of_the_same_writer_is_sound() -> None:
    """B reads two slots that C shared with it, and one behind them that C got by a mistake."""
    events = numbered(
        [
            *life("C", [31, 32], [1, 2], row=3, step=1),
            {"kind": "publish", "entry": "e", "req": "C", "slots": [1, 2]},
            {"kind": "match", "req": "B", "entry": "e", "slots": [1, 2]},
            {"kind": "alloc", "owner": "B", "slots": [3, 4]},
            {"kind": "map", "row": 2, "start": 0, "slots": [1, 2, 3, 4]},
            {
                **decode("B", 0, 4, row=2, position=3, step=2)[-1],
                "forward_mode": "EXTEND",
                "input_ids": [33, 34],
                "positions": [2, 3],
                "out_cache_loc": [3, 4],
                "extend_prefix_lens": [2],
                "extend_seq_lens": [2],
            },
            {"kind": "free", "owner": "B", "slots": [3]},
            *decode("C", 35, 3, row=3, position=2, step=3),
            *decode("B", 201, 40, row=2, position=4, step=4),
        ]
    )
    head, events = without("history", HEAD | {"records": [*HEAD["records"], "prefix"]}, events)
    (finding,) = diagnose(head, events).findings
    assert (finding.cls, finding.slots) == ("use_after_free", {3})


TRACES = sorted([*SCENARIOS.glob("*.jsonl"), *CAPTURES.glob("*.jsonl")])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("path", TRACES[::3], ids=lambda p: p.stem)
def test_no_class_is_found_that_the_trace_is_blind_to(path: Path, family: str) -> None:
    if family not in open_trace(path).header.records:
        pytest.skip("not recorded")
    diagnosis = diagnose(*without(family, *events_of(path)))
    found = {finding.cls for finding in diagnosis.findings}
    assert found.isdisjoint(diagnosis.replay.coverage.blind_to)
