"""A prefix under one version of an adapter, hit under the next: names that leave versions out."""

from __future__ import annotations

from typing import Any

import pytest

from tests.attribution.events import extend, rank_head
from tests.attribution.helpers import diagnose

Event = dict[str, Any]


def _run(reloaded: str | None, names: tuple[str, str]) -> list[Event]:
    events: list[Event] = [
        {"kind": "adapter", "name": "l", "version": 1},
        {"kind": "history", "req": "A", "start": 0, "ids": [11, 12]},
        {"kind": "alloc", "owner": "A", "slots": [1, 2]},
        {"kind": "map", "row": 1, "start": 0, "slots": [1, 2]},
        extend(1, "A", 1, 0, [11, 12], [1, 2]) | {"namespaces": [names[0]]},
        {"kind": "own", "from": "A", "owner": "tree", "slots": [1, 2], "entry": "P1"},
        {"kind": "finish", "req": "A"},
        *([{"kind": "adapter", "name": reloaded, "version": 2}] if reloaded else []),
        {"kind": "history", "req": "D", "start": 0, "ids": [11, 12, 13]},
        {"kind": "match", "req": "D", "entry": "P1", "slots": [1, 2]},
        {"kind": "alloc", "owner": "D", "slots": [6]},
        {"kind": "map", "row": 3, "start": 0, "slots": [1, 2, 6]},
        extend(2, "D", 3, 2, [13], [6]) | {"namespaces": [names[1]]},
    ]
    return [{**event, "i": i} for i, event in enumerate(events)]


def _head() -> Event:
    base = rank_head(0)
    return base | {"records": [*base["records"], "namespace"]}


@pytest.mark.parametrize("names", [("l", "l"), ("l@1", "l@2")])
def test_a_hit_across_a_reload_is_named(names: tuple[str, str]) -> None:
    (finding,) = diagnose(_head(), _run("l", names)).findings
    assert (finding.cls, finding.subtype) == ("key_aliasing", "adapter_version")
    assert finding.evidence == ["written under l@1, read under l@2"]
    assert (finding.victim, finding.culprit.req) == ("D", "A")


@pytest.mark.parametrize(
    ("reloaded", "names"), [(None, ("l", "l")), ("other", ("l", "l")), ("l", ("l@1", "l@1"))]
)
def test_what_was_not_reloaded_may_be_hit(reloaded: str | None, names: tuple[str, str]) -> None:
    assert diagnose(_head(), _run(reloaded, names)).findings == ()
