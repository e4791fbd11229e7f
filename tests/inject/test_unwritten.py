"""An unwritten slot that is published before anybody reads it is a premature publish as well."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kvcanary_cli.inject.clean_run import CleanRun
from kvcanary_cli.inject.kinds import KINDS
from kvcanary_cli.inject.planting import build
from tests.attribution.events import HEAD, decode, extend, index_of, life, numbered
from tests.attribution.helpers import diagnose

Event = dict[str, Any]
_HEAD = HEAD | {"records": [*HEAD["records"], "prefix"]}
_SHOWN: dict[str, Event] = {
    "publish": {"kind": "publish", "entry": "E", "req": "A", "slots": [1, 2, 3]},
    "own": {"kind": "own", "from": "A", "owner": "tree", "slots": [1, 2, 3], "entry": "E"},
}


def _run(how: str, *, read_first: bool) -> tuple[CleanRun, list[Event]]:
    """A's slots go into the index, and B is served from there; A may have gone on before."""
    events = life("A", [11, 12, 13], [1, 2, 3], row=1, step=1)
    events += decode("A", 14, 4, row=1, position=3, step=2) if read_first else []
    events += [
        _SHOWN[how],
        {"kind": "history", "req": "B", "start": 0, "ids": [11, 12, 13, 24]},
        {"kind": "match", "req": "B", "entry": "E", "slots": [1, 2, 3]},
        {"kind": "alloc", "owner": "B", "slots": [5]},
        {"kind": "map", "row": 2, "start": 0, "slots": [1, 2, 3, 5]},
        extend(3, "B", 2, 3, [24], [5]),
    ]
    events = numbered(events)
    assert not diagnose(_HEAD, events).findings
    return CleanRun(_HEAD, events), events


@pytest.mark.parametrize("how", _SHOWN)
def test_it_is_not_planted_as_an_unwritten_read(how: str) -> None:
    run, _ = _run(how, read_first=False)
    for seed in range(10):
        assert KINDS["unwritten_read"].plant(run, random.Random(seed)) is None


@pytest.mark.parametrize("how", _SHOWN)
@pytest.mark.parametrize("slot", [1, 2, 3])
def test_that_is_how_it_is_diagnosed(how: str, slot: int) -> None:
    _, events = _run(how, read_first=False)
    written = events[index_of(events, "forward", step=1)]
    written["out_cache_loc"] = [-1 if s == slot else s for s in written["out_cache_loc"]]
    findings = diagnose(_HEAD, events).findings
    assert ("prefix_index", "premature_publish") in {(f.cls, f.subtype) for f in findings}


@pytest.mark.parametrize("how", _SHOWN)
def test_what_was_read_before_is_planted_and_found(how: str) -> None:
    run, events = _run(how, read_first=True)
    for seed in range(5):
        planted = KINDS["unwritten_read"].plant(run, random.Random(seed))
        assert planted is not None
        built = build(run, planted)
        found = diagnose(_HEAD, [*events[: built.first], *built.tail]).findings
        assert ("unwritten_read", "never_written_since_alloc") in {
            (f.cls, f.subtype) for f in found
        }
