"""An entry that covers slots nobody wrote: published too early, or for more than was written."""

from __future__ import annotations

from typing import Any

import pytest

from tests.attribution.events import extend, rank_head
from tests.attribution.helpers import diagnose

Event = dict[str, Any]


@pytest.mark.parametrize(("ends", "subtype"), [(True, "over_cover"), (False, "premature_publish")])
def test_whether_the_publisher_had_ended_tells_which(ends: bool, subtype: str) -> None:
    events: list[Event] = [
        {"kind": "history", "req": "A", "start": 0, "ids": [11, 12, 13, 14, 16]},
        {"kind": "alloc", "owner": "A", "slots": [1, 2, 3, 4]},
        {"kind": "map", "row": 1, "start": 0, "slots": [1, 2, 3, 4]},
        extend(1, "A", 1, 0, [11, 12, 13], [1, 2, 3]),
        {"kind": "own", "from": "A", "owner": "tree", "slots": [1, 2, 3, 4], "entry": "P1"},
        *([{"kind": "finish", "req": "A"}] if ends else []),
        {"kind": "history", "req": "D", "start": 0, "ids": [11, 12, 13, 14, 15]},
        {"kind": "match", "req": "D", "entry": "P1", "slots": [1, 2, 3, 4]},
        {"kind": "alloc", "owner": "D", "slots": [8]},
        {"kind": "map", "row": 3, "start": 0, "slots": [1, 2, 3, 4, 8]},
        extend(2, "D", 3, 4, [15], [8]),
    ]
    events = [{**event, "i": i} for i, event in enumerate(events)]
    finding = diagnose(rank_head(0), events).findings[0]
    assert (finding.cls, finding.subtype) == ("prefix_index", subtype)
    assert (finding.cause_event, finding.victim, finding.slots) == (4, "D", {4})
    assert any("ended" in line for line in finding.evidence) == ends
