"""Padding rows that hit slots of running requests: the truth says when the damage is read first."""

from __future__ import annotations

import random
from typing import Any

from kvcanary_cli.inject.clean_run import CleanRun
from kvcanary_cli.inject.kinds import KINDS
from kvcanary_cli.inject.planting import build
from tests.attribution.events import HEAD, decode, life, numbered
from tests.attribution.helpers import diagnose

Event = dict[str, Any]
_HEAD = HEAD | {"records": [*HEAD["records"], "graph"]}


def _run() -> CleanRun:
    """A and B decode by turns, and A twice in a row: some slots are read where they are hit."""
    events = [
        *life("A", [11, 12, 13], [1, 2, 3], row=1, step=1),
        *life("B", [21, 22], [4, 5], row=2, step=2),
        *decode("A", 14, 6, row=1, position=3, step=3),
        *decode("B", 23, 7, row=2, position=2, step=4),
        *decode("A", 15, 8, row=1, position=4, step=5),
        *decode("A", 16, 9, row=1, position=5, step=6),
    ]
    return CleanRun(_HEAD, numbered(events))


def test_the_first_bad_step_is_that_of_the_first_read() -> None:
    run, seen = _run(), set()
    for seed in range(24):
        planted = KINDS["stale_padding_slot"].plant(run, random.Random(seed))
        assert planted is not None
        built = build(run, planted)
        found = diagnose(_HEAD, [*run.events[: built.first], *built.tail]).findings
        (finding,) = found
        assert finding.cls == "pad_or_dummy_write"
        assert finding.first_bad_step == planted.step
        assert {finding.victim} == planted.victims
        (cause,) = planted.causes
        assert isinstance(cause, int)
        seen.add(run.step(cause) == planted.step)
    assert seen == {True, False}
