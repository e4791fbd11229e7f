"""A copy that lands in a page of somebody else, of the prefix cache, or of nobody."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from kvcanary_cli.inject.clean_run import CleanRun
from kvcanary_cli.inject.inject import load_run
from kvcanary_cli.inject.kinds import KINDS
from kvcanary_cli.inject.planting import build
from tests.attribution.events import HEAD, decode, extend, life, numbered
from tests.attribution.helpers import CAPTURES, diagnose

if TYPE_CHECKING:
    from kvcanary_cli.inject.planting import Planted

Event = dict[str, Any]
_HEAD = HEAD | {"records": [*HEAD["records"], "prefix", "transfer"]}
_KIND = KINDS["copy_to_wrong_pages"]


def _run() -> CleanRun:
    """B loads what A left on the host, while T's slots are the cache's and X decodes on."""
    events = [
        *life("A", [11, 12, 13], [1, 2, 3], row=1, step=1),
        {"kind": "copy", "src": [1, 2, 3], "dst": [1, 2, 3], "via": "d2h", "dst_pool": "host"},
        {"kind": "free", "owner": "A", "slots": [1, 2, 3]},
        *life("X", [51, 52, 53], [1, 2, 3], row=2, step=2),
        *life("T", [61, 62], [12, 13], row=5, step=3),
        {"kind": "own", "from": "T", "owner": "tree", "slots": [12, 13], "entry": "E"},
        {"kind": "history", "req": "B", "start": 0, "ids": [11, 12, 13, 24]},
        {"kind": "alloc", "owner": "B", "slots": [4, 5, 6, 7]},
        {"kind": "map", "row": 3, "start": 0, "slots": [4, 5, 6, 7]},
        {
            "kind": "copy",
            "src": [1, 2, 3],
            "dst": [4, 5, 6],
            "via": "h2d",
            "src_pool": "host",
            "by": "B",
        },
        extend(4, "B", 3, 3, [24], [7]),
        {"kind": "history", "req": "U", "start": 0, "ids": [61, 62, 63]},
        {"kind": "match", "req": "U", "entry": "E", "slots": [12, 13]},
        {"kind": "alloc", "owner": "U", "slots": [14]},
        {"kind": "map", "row": 4, "start": 0, "slots": [12, 13, 14]},
        extend(5, "U", 4, 2, [63], [14]),
        *decode("X", 54, 9, row=2, position=3, step=6),
    ]
    return CleanRun(_HEAD, numbered(events))


def _all(run: CleanRun) -> dict[str, list[Planted]]:
    """Faults by whose the wrong slots are."""
    out: dict[str, list[Planted]] = {}
    for seed in range(60):
        planted = _KIND.plant(run, random.Random(seed))
        assert planted is not None
        (at,) = planted.causes
        assert isinstance(at, int)
        landed = set(planted.edits.changed[at]["dst"]) - set(run.events[at]["dst"])
        owner = run.owner(min(landed), at)
        out.setdefault(owner or "", []).append(planted)
    return out


def test_it_takes_anybodys_slots_but_the_loaders() -> None:
    run = _run()
    assert diagnose(run.header, run.events).verdict == "clean"
    found = _all(run)
    assert set(found) == {"X", "tree", ""}
    for planted in found.values():
        # B misses its page before anybody reads what it was put over.
        assert all(one.victims == {"B"} for one in planted)
        assert {one.step for one in planted} == {4}


@pytest.mark.parametrize("owner", ["X", "tree", ""])
def test_it_is_one_finding_that_names_the_copy(owner: str) -> None:
    run = _run()
    for planted in _all(run)[owner]:
        built = build(run, planted)
        found = diagnose(run.header, [*run.events[: built.first], *built.tail]).findings
        (finding,) = found
        assert (finding.cls, finding.subtype) == (_KIND.cls, "wrong_pages")
        assert (finding.culprit.req, [finding.cause_event]) == ("B", built.causes)
        assert (finding.victim, finding.first_bad_step) == (min(planted.victims), planted.step)
        assert set(finding.blast_radius) == {"B"} | ({"X": {"X"}, "tree": {"U"}}.get(owner, set()))


def test_copies_of_accepted_drafts_are_misdirected_too() -> None:
    """They name nobody: whose they are follows from their source."""
    run = load_run(str(CAPTURES / "ngram_clean.jsonl.zst"))
    for seed in range(6):
        planted = _KIND.plant(run, random.Random(seed))
        assert planted is not None
        built = build(run, planted)
        found = diagnose(run.header, [*run.events[: built.first], *built.tail]).findings
        (finding,) = found
        assert (finding.cls, finding.subtype) == (_KIND.cls, "wrong_pages")
        assert finding.culprit.req in planted.culprits
        assert [finding.cause_event] == built.causes
