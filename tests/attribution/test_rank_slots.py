"""Ranks whose allocators hand out other numbers: what differs is what the slots stand for."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcanary_cli.attribution.report import Report
from tests.attribution.events import decode, extend, numbered, rank_head
from tests.attribution.helpers import diagnose

if TYPE_CHECKING:
    from kvcanary_cli.attribution.result import Finding

Event = dict[str, Any]

SLOTS = 30


class _Rank:
    """Runs requests over one prefix cache; what they do follows from ``seed`` alone.

    Args:
        seed: Of what the requests do.
        numbers: Seed of the order in which slots are handed out, None = ascending.
        shorter: Which of the hits is a position shorter on this rank, None = none.
    """

    def __init__(self, seed: int, numbers: int | None, shorter: int | None = None) -> None:
        self._do = random.Random(seed)
        self._allocator = None if numbers is None else random.Random(numbers)
        self._shorter = shorter
        self._free = list(range(1, SLOTS))
        self._cached: dict[str, tuple[list[int], list[int]]] = {}
        self._live: dict[str, tuple[int, list[int], list[int]]] = {}
        self._mine: dict[str, list[int]] = {}
        self.hits: list[int] = []
        self.events: list[Event] = []
        self._step = 0
        for number in range(8):
            self._begin(f"r{number}", 1 + number)
            for _ in range(self._do.randrange(3)):
                self._decode(self._do.choice(list(self._live)))
            if len(self._live) > 2:
                self._end(next(iter(self._live)))
            if len(self._cached) > 2:
                self._evict()

    def _alloc(self, owner: str, count: int) -> list[int]:
        if self._allocator is not None:
            self._allocator.shuffle(self._free)
        slots, self._free = self._free[:count], self._free[count:]
        self.events.append({"kind": "alloc", "owner": owner, "slots": slots})
        return slots

    def _begin(self, req: str, row: int) -> None:
        cached = self._do.choice([None, *self._cached])
        known, hit = self._cached[cached] if cached else ([], [])
        tokens = [*known, *(100 + self._do.randrange(900) for _ in range(2))]
        self.events.append({"kind": "history", "req": req, "start": 0, "ids": tokens})
        if hit:
            self.hits.append(len(self.events))
            hit = hit[:-1] if len(self.hits) - 1 == self._shorter else hit
            self.events.append({"kind": "match", "req": req, "entry": cached, "slots": hit})
        new = self._alloc(req, len(tokens) - len(hit))
        self.events.append({"kind": "map", "row": row, "start": 0, "slots": [*hit, *new]})
        self._step += 1
        self.events.append(extend(self._step, req, row, len(hit), tokens[len(hit) :], new))
        self._live[req] = row, list(tokens), [*hit, *new]
        self._mine[req] = list(new)

    def _decode(self, req: str) -> None:
        row, tokens, slots = self._live[req]
        self._step += 1
        token = 1000 + self._step
        (slot,) = self._alloc(req, 1)
        self.events.pop()
        self.events += decode(req, token, slot, row, len(tokens), self._step)
        tokens.append(token)
        slots.append(slot)
        self._mine[req].append(slot)

    def _end(self, req: str) -> None:
        row, tokens, slots = self._live.pop(req)
        mine = self._mine.pop(req)
        if slots == mine:
            entry = f"P-{req}"
            self.events.append(
                {"kind": "own", "from": req, "owner": "tree", "slots": slots[:3], "entry": entry}
            )
            self._cached[entry] = tokens[:3], slots[:3]
            mine = mine[3:]
        if mine:
            self.events.append({"kind": "free", "owner": req, "slots": sorted(mine)})
            self._free += mine
        self.events.append({"kind": "finish", "req": req})
        self.events.append({"kind": "row_release", "row": row, "req": req})

    def _evict(self) -> None:
        used = {slot for _row, _tokens, slots in self._live.values() for slot in slots}
        for entry, (_tokens, slots) in list(self._cached.items()):
            if not used & set(slots):
                del self._cached[entry]
                self.events.append({"kind": "free", "owner": "tree", "slots": sorted(slots)})
                self._free += slots
                return


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
    other = _swapped(_Rank(seed, numbers).events, random.Random(numbers))
    assert _divergences(_Rank(seed, None).events, other) == []


@given(seed=st.integers(0, 1 << 20), numbers=st.integers(0, 1 << 20), which=st.integers(0, 9))
@settings(max_examples=10, deadline=None)
def test_the_cause_is_the_event_whose_content_differs(seed: int, numbers: int, which: int) -> None:
    clean = _Rank(seed, None)
    if not clean.hits:
        return
    which %= len(clean.hits)
    (finding,) = _divergences(clean.events, _Rank(seed, numbers, which).events)
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
