"""Ranks whose allocators hand out other numbers: what differs is what the slots stand for."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcanary_cli.attribution.report import Report
from tests.attribution.events import extend, numbered, rank_head
from tests.attribution.helpers import diagnose
from tests.attribution.small_engine import SmallEngine

if TYPE_CHECKING:
    from kvcanary_cli.attribution.result import Finding

Event = dict[str, Any]


def _divergences(a: list[Event], b: list[Event]) -> list[Finding]:
    traces = [diagnose(rank_head(k), numbered(each)) for k, each in enumerate((a, b))]
    assert not any(trace.findings for trace in traces)
    return list(Report.of(traces).divergences)


def _swapped(events: list[Event], rng: random.Random) -> list[Event]:
    """Allocs and cells of different requests in another order, as another thread would do them."""
    out = list(events)
    for k in range(len(out) - 1):
        one, next_ = out[k], out[k + 1]
        kinds = {one["kind"], next_["kind"]}
        if kinds <= {"alloc", "free"} and "tree" not in (one["owner"], next_["owner"]):
            other = one["owner"] != next_["owner"]
            if other and not set(one["slots"]) & set(next_["slots"]) and rng.random() < 0.5:
                out[k], out[k + 1] = next_, one
    return out


@given(seed=st.integers(0, 1 << 20), numbers=st.integers(0, 1 << 20))
@settings(max_examples=10, deadline=None)
def test_other_slot_numbers_are_no_difference(seed: int, numbers: int) -> None:
    other = _swapped(SmallEngine(seed, numbers).events, random.Random(numbers))
    assert _divergences(SmallEngine(seed, None).events, other) == []


@given(seed=st.integers(0, 1 << 20), numbers=st.integers(0, 1 << 20), which=st.integers(0, 9))
@settings(max_examples=10, deadline=None)
def test_the_cause_is_the_event_whose_content_differs(seed: int, numbers: int, which: int) -> None:
    clean = SmallEngine(seed, None)
    if not clean.hits:
        return
    which %= len(clean.hits)
    (finding,) = _divergences(clean.events, SmallEngine(seed, numbers, which).events)
    assert finding.subtype == "prefix_len"
    assert finding.cause_event == clean.hits[which]
    assert f"on rank 1 (event {clean.hits[which]}) and" in " ".join(finding.evidence)


@pytest.mark.parametrize("numbers", [None, 3])
def test_an_earlier_eviction_is_the_cause_whatever_the_numbers(numbers: int | None) -> None:
    """Only rank 1 gives a cached position back; its request then hits less."""
    shift = 0 if numbers is None else numbers

    def run(kept: int) -> list[Event]:
        cached = [slot + shift for slot in (1, 2, 3)] if kept == 2 else [1, 2, 3]
        hit, rest = cached[:kept], [11 + shift, 12 + shift, 13][: 4 - kept]
        tokens = [11, 12, 13, 14]
        events: list[Event] = [
            {"kind": "history", "req": "A", "start": 0, "ids": tokens},
            {"kind": "alloc", "owner": "A", "slots": cached},
            {"kind": "map", "row": 1, "start": 0, "slots": cached},
            extend(1, "A", 1, 0, tokens[:3], cached),
            {"kind": "own", "from": "A", "owner": "tree", "slots": cached, "entry": "P"},
            {"kind": "finish", "req": "A"},
        ]
        if kept == 2:
            events.append({"kind": "free", "owner": "tree", "slots": cached[2:]})
        return [
            *events,
            {"kind": "history", "req": "D", "start": 0, "ids": tokens},
            {"kind": "match", "req": "D", "entry": "P", "slots": hit},
            {"kind": "alloc", "owner": "D", "slots": rest},
            {"kind": "map", "row": 2, "start": 0, "slots": [*hit, *rest]},
            extend(2, "D", 2, kept, tokens[kept:], rest),
        ]

    (finding,) = _divergences(run(3), run(2))
    assert (finding.cause_event, finding.cause_rank) == (6, 1)
    assert "only rank 1 saw free by tree" in " ".join(finding.evidence)
