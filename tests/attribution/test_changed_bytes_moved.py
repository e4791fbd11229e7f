"""Bytes that changed, and copies that moved them: since when they may be wrong, and who is not."""

from __future__ import annotations

from typing import Any

import pytest

from tests.attribution.events import HEAD, decode, index_of, life, numbered
from tests.attribution.helpers import diagnose

Event = dict[str, Any]
HEAD_K = HEAD | {"records": [*HEAD["records"], "kv_hash"]}
SLOTS = [1, 2, 3]


def _prints(phase: str, step: int, slots: list[int], bad: int | None = None) -> Event:
    values = [900 + SLOTS.index(s) if s in SLOTS else 900 + (s - 11) for s in slots]
    values = [666 if s == bad else v for s, v in zip(slots, values, strict=True)]
    return {"kind": "kv_hash", "phase": phase, "step": step, "slots": slots, "hash": values}


def _events(by: str | None, looked: str, moves: int) -> list[Event]:
    """A's slots 1 to 3 are moved to 11 to 13 (and on), and slot 12 is read with other bytes.

    Args:
        by: Whom the copies name.
        looked: When the bytes were compared last: ``written``, ``source`` or ``moved``.
        moves: Copies.
    """
    there = [11, 12, 13]
    events = [
        *life("A", [11, 12, 13], SLOTS, row=1, step=1),
        _prints("after", 1, SLOTS),
        *([_prints("sweep", 1, SLOTS)] if looked == "source" else []),
        {"kind": "alloc", "owner": "A", "slots": there},
    ]
    copy: Event = {"kind": "copy", "via": "d2d"} | ({} if by is None else {"by": by})
    for k in range(moves):
        src, dst = (SLOTS, there) if k % 2 == 0 else (there, SLOTS)
        events.append(copy | {"src": src, "dst": dst})
    events += [_prints("sweep", 1, there)] if looked == "moved" else []
    return numbered(
        [
            *events,
            {"kind": "map", "row": 1, "start": 0, "slots": there},
            *decode("A", 14, 4, row=1, position=3, step=2)[:-1],
            _prints("before", 2, there, bad=12),
            decode("A", 14, 4, row=1, position=3, step=2)[-1],
            {"kind": "kv_hash", "phase": "after", "step": 2, "slots": [4], "hash": [904]},
        ]
    )


@pytest.mark.parametrize("looked", ["written", "source", "moved"])
@pytest.mark.parametrize("moves", [1, 3])
def test_the_window_begins_when_the_bytes_were_known_to_be_right(looked: str, moves: int) -> None:
    """A copy moves what is wrong already: it is no look at the bytes."""
    events = _events(None, looked, moves)
    (finding,) = diagnose(HEAD_K, events).findings
    assert (finding.cls, finding.subtype) == ("payload_mutation", "kv_bytes")
    began = (
        index_of(events, "forward", step=1)
        if looked == "written"
        else index_of(events, "kv_hash", phase="sweep")
    )
    assert finding.cause_window == (began, index_of(events, "forward", step=2))
    assert finding.slots == {12}


@pytest.mark.parametrize("looked", ["written", "source", "moved"])
def test_a_copy_is_to_blame_only_if_the_bytes_were_not_right_behind_it(looked: str) -> None:
    events = _events("A", looked, 1)
    (finding,) = diagnose(HEAD_K, events).findings
    if looked == "moved":
        assert (finding.cls, finding.cause_event) == ("payload_mutation", None)
        assert finding.cause_window is not None
        assert finding.cause_window[0] == index_of(events, "kv_hash", phase="sweep")
        return
    assert (finding.cls, finding.subtype) == ("transfer_mismatch", "bytes_differ")
    assert (finding.cause_event, finding.confidence) == (index_of(events, "copy"), "probable")
    assert finding.culprit.req == "A"
