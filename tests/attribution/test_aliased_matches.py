"""Hits on an entry of another namespace, told by the match alone: content may come from a tier."""

from __future__ import annotations

from typing import Any

import pytest

from tests.attribution.events import HEAD, decode, index_of, life, numbered
from tests.attribution.helpers import diagnose

Event = dict[str, Any]
HEAD_N = HEAD | {"records": [*HEAD["records"], "prefix", "namespace"]}


def _stored_and_hit(theirs: str, ours: str | None, *, unpublished: bool, tier: str) -> list[Event]:
    """A's prompt goes to a tier under ``theirs``; D asks there under ``ours`` and loads it."""
    return numbered(
        [
            *life("A", [11, 12, 13], [1, 2, 3], row=1, step=1),
            {"kind": "publish", "entry": "E", "req": "A", "slots": [1, 2, 3], "namespace": theirs},
            {"kind": "copy", "src": [1, 2, 3], "dst": [101, 102, 103], "dst_pool": tier}
            | {"via": "d2h", "key": "E"},
            *([{"kind": "unpublish", "entry": "E"}] if unpublished else []),
            {"kind": "finish", "req": "A"},
            {"kind": "free", "owner": "A", "slots": [1, 2, 3]},
            {"kind": "history", "req": "D", "start": 0, "ids": [11, 12, 13]},
            {"kind": "match", "req": "D", "entry": "E", "slots": [], "tier": tier}
            | ({} if ours is None else {"namespace": ours}),
            {"kind": "alloc", "owner": "D", "slots": [5, 6, 7]},
            {"kind": "copy", "src": [101, 102, 103], "src_pool": tier, "dst": [5, 6, 7]}
            | {"via": "h2d", "by": "D"},
            {"kind": "map", "row": 3, "start": 0, "slots": [5, 6, 7]},
            *decode("D", 14, 8, row=3, position=3, step=3),
        ]
    )


@pytest.mark.parametrize("unpublished", [True, False])
@pytest.mark.parametrize("tier", ["host", "remote"])
@pytest.mark.parametrize(
    ("theirs", "ours", "subtype"),
    [
        ("x", "y", "namespace"),
        ("l@1", "l@2", "adapter_version"),
        ("x", "x", None),
        ("x", None, None),
    ],
)
def test_a_hit_in_a_tier(
    theirs: str, ours: str | None, subtype: str | None, tier: str, unpublished: bool
) -> None:
    events = _stored_and_hit(theirs, ours, unpublished=unpublished, tier=tier)
    found = diagnose(HEAD_N, events).findings
    assert [(f.cls, f.subtype) for f in found] == ([("key_aliasing", subtype)] if subtype else [])
    for finding in found:
        assert (finding.victim, finding.cause_event) == ("D", index_of(events, "match"))


@pytest.mark.parametrize("named", [True, False])
def test_a_hit_on_the_device_is_one_finding(named: bool) -> None:
    """Whether or not the forwards name their namespaces."""
    first, second = ({"namespaces": ["x"]}, {"namespaces": ["y"]}) if named else ({}, {})
    events = life("A", [11, 12], [1, 2], row=1, step=1)
    events[-1] |= first
    step = decode("D", 13, 6, row=3, position=2, step=2)
    step[-1] |= second
    events += [
        {"kind": "publish", "entry": "E", "req": "A", "slots": [1, 2], "namespace": "x"},
        {"kind": "history", "req": "D", "start": 0, "ids": [11, 12]},
        {"kind": "match", "req": "D", "entry": "E", "slots": [1, 2], "namespace": "y"},
        {"kind": "map", "row": 3, "start": 0, "slots": [1, 2]},
        *step,
    ]
    events = numbered(events)
    (finding,) = diagnose(HEAD_N, events).findings
    assert (finding.cls, finding.subtype) == ("key_aliasing", "namespace")
    assert (finding.cause_event, finding.slots) == (index_of(events, "match"), {1, 2})
    assert (finding.victim, finding.first_bad_step) == ("D", 2 if named else None)


def test_an_entry_that_was_published_anew_is_of_its_last_namespace() -> None:
    events = _stored_and_hit("x", "y", unpublished=True, tier="host")
    at = index_of(events, "match")
    anew = {"kind": "publish", "entry": "E", "slots": [9], "namespace": "y"}
    assert not diagnose(HEAD_N, numbered([*events[:at], anew, *events[at:]])).findings
