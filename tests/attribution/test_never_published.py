"""A match that serves a request's own slots, which nobody published: the index is at fault."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.attribution.events import HEAD, extend, index_of, life, numbered
from tests.attribution.helpers import diagnose

if TYPE_CHECKING:
    from kvcanary_cli.attribution.result import Finding

Event = dict[str, Any]
_HEAD = HEAD | {"records": [*HEAD["records"], "prefix"]}


def _hit(entry: str, read: bool, *, publish: bool, freed: bool) -> list[Event]:
    shown: Event = {"kind": "publish", "entry": entry, "req": "Z", "slots": [20, 21]}
    events = life("Z", [11, 12], [20, 21], row=5, step=1)
    events += [shown] if publish else []
    if freed:
        events += [{"kind": "free", "owner": "Z", "slots": [20, 21]}]
        events += [{"kind": "alloc", "owner": "Y", "slots": [20, 21]}]
    events += [
        {"kind": "history", "req": "A", "start": 0, "ids": [11, 12, 13]},
        {"kind": "match", "req": "A", "entry": entry, "slots": [20, 21]},
    ]
    if read:
        events += [
            {"kind": "alloc", "owner": "A", "slots": [5]},
            {"kind": "map", "row": 1, "start": 0, "slots": [20, 21, 5]},
            extend(2, "A", 1, 2, [13], [5]),
        ]
    return numbered(events)


def _found(events: list[Event]) -> list[Finding]:
    return diagnose(_HEAD, events).findings


@pytest.mark.parametrize("read", [False, True])
@pytest.mark.parametrize("entry", ["E", "F"])
def test_the_owner_of_the_slots_did_nothing(entry: str, read: bool) -> None:
    events = _hit(entry, read, publish=False, freed=False)
    (finding,) = _found(events)
    assert (finding.cls, finding.subtype) == ("prefix_index", "never_published")
    assert finding.culprit.req is None
    assert finding.culprit.event == finding.cause_event == index_of(events, "match")
    assert any(line.startswith("nobody had published the slots") for line in finding.evidence)
    assert (finding.victim, finding.slots) == ("A", {20, 21})


@pytest.mark.parametrize("read", [False, True])
def test_published_slots_are_a_sound_hit(read: bool) -> None:
    assert not _found(_hit("E", read, publish=True, freed=False))


def test_a_free_in_front_of_the_match_stays_a_phantom_hit() -> None:
    (finding,) = _found(_hit("E", False, publish=True, freed=True))
    assert (finding.cls, finding.subtype) == ("prefix_index", "phantom_hit")
    assert finding.culprit.req == "Y"
