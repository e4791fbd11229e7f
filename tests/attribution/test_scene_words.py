"""What a scene says of slots that no violation of their own shows."""

from __future__ import annotations

from typing import Any

import pytest

from tests.attribution.events import HEAD, decode, extend, life, numbered
from tests.attribution.helpers import diagnose

Event = dict[str, Any]


@pytest.mark.parametrize("off", [1, 2, -1])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_positions_that_were_meant_are_told_for_every_token(off: int, count: int) -> None:
    ids = list(range(101, 105 + count))
    slots = list(range(1, 5 + count))
    wrong = extend(2, "A", 1, 4, ids[4:], slots[4:])
    events = [
        {"kind": "history", "req": "A", "start": 0, "ids": ids},
        {"kind": "alloc", "owner": "A", "slots": slots},
        {"kind": "map", "row": 1, "start": 0, "slots": slots},
        extend(1, "A", 1, 0, ids[:4], slots[:4]),
        wrong | {"positions": [p + off for p in wrong["positions"]]},
    ]
    (finding,) = diagnose(HEAD, numbered(events)).findings
    assert (finding.cls, finding.positions) == ("position_misalign", set(range(4, 4 + count)))
    assert finding.facts is not None
    told = [(e.position, e.found_position, e.found_token) for e in finding.facts.entries]
    assert told == [(p, p + off, ids[p]) for p in range(4, 4 + count)]
    assert {(e.writer.req, e.writer.event) for e in finding.facts.entries} == {("A", 4)}


@pytest.mark.parametrize("known", [True, False])
def test_tokens_that_were_compared_and_equal_are_told(known: bool) -> None:
    head = HEAD | {"records": [*HEAD["records"], "prefix", "namespace"]}
    if not known:
        head["records"] = [r for r in head["records"] if r != "history"]
    own: Event = {"kind": "own", "from": "A", "owner": "tree", "slots": [1, 2, 3], "entry": "E"}
    events: list[Event] = [
        *life("A", [11, 12, 13], [1, 2, 3], row=1, step=1),
        own,
        {"kind": "history", "req": "B", "start": 0, "ids": [11, 12, 13, 14]},
        {"kind": "match", "req": "B", "entry": "E", "slots": [1, 2, 3]},
        {"kind": "alloc", "owner": "B", "slots": [4]},
        {"kind": "map", "row": 2, "start": 0, "slots": [1, 2, 3, 4]},
        extend(2, "B", 2, 3, [14], [4]),
    ]
    events[3] = events[3] | {"namespaces": ["one"]}
    events[-1] = events[-1] | {"namespaces": ["two"]}
    if not known:
        events = [e for e in events if e["kind"] != "history"]
    (finding,) = diagnose(head, numbered(events)).findings
    assert finding.cls == "key_aliasing"
    assert finding.facts is not None
    wanted = [11, 12, 13] if known else [None] * 3
    assert [e.expected_token for e in finding.facts.entries] == wanted


def test_without_a_reader_no_slot_is_another_ones() -> None:
    """A copy hit B's slots, and nobody read them since."""
    events = numbered(
        [
            *life("A", [11, 12, 13], [11, 12, 13], row=1, step=1),
            *life("B", [21, 22], [1, 2], row=2, step=2),
            {"kind": "copy", "src": [12, 13], "dst": [1, 2], "via": "d2d", "by": "A"},
            *decode("A", 14, 14, row=1, position=3, step=3),
        ]
    )
    (finding,) = diagnose(HEAD, events).findings
    assert finding.facts is not None
    assert finding.facts.access != "read"
    assert [o.slot for o in finding.facts.owners if o.damaged] == [1, 2]
    assert not any(o.foreign for o in finding.facts.owners)
