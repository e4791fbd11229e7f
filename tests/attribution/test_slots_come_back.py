"""A slot that once broke a rule is a slot like any other when it is back: what comes is new."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcanary_cli.errors import NothingCheckedError
from kvcanary_cli.inject.inject import inject_faults, load_run
from kvcanary_cli.inject.kinds import KINDS
from tests.attribution.events import HEAD, decode, life, numbered
from tests.attribution.helpers import CAPTURES, diagnose

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcanary_cli.attribution.result import Finding
    from kvcanary_cli.inject.clean_run import CleanRun

Event = dict[str, Any]


def _alloc(owner: str, slots: list[int]) -> Event:
    return {"kind": "alloc", "owner": owner, "slots": slots}


def _free(owner: str, slots: list[int], reason: str | None = None) -> Event:
    event: Event = {"kind": "free", "owner": owner, "slots": slots}
    return event if reason is None else event | {"reason": reason}


def _own(giver: str, slots: list[int]) -> Event:
    return {"kind": "own", "from": giver, "owner": "tree", "slots": slots, "entry": "old"}


def _finish(req: str) -> Event:
    return {"kind": "finish", "req": req}


# First faults, each up to where the slots are back. Behind the second half the free list holds
# them twice, so that one whole tenancy must pass.


def _freed_by_another(slots: list[int]) -> list[Event]:
    return [_alloc("old0", slots), _free("old1", slots), _finish("old0")]


def _given_away_by_another(slots: list[int]) -> list[Event]:
    tail = [_finish("old0"), _own("old0", slots), _free("tree", slots)]
    return [_alloc("old0", slots), _own("old1", slots), *tail]


def _given_twice(slots: list[int]) -> list[Event]:
    tail = [_finish("old0"), _finish("old1"), _free("old1", slots)]
    return [_alloc("old0", slots), _alloc("old1", slots), *tail]


def _freed_by_both(slots: list[int]) -> list[Event]:
    return [*_freed_by_another(slots), _free("old0", slots)]


def _freed_twice(slots: list[int]) -> list[Event]:
    return [_alloc("old0", slots), _free("old0", slots), _free("old0", slots), _finish("old0")]


def _published_free(slots: list[int]) -> list[Event]:
    tail = [_own("old0", slots), _free("tree", slots)]
    return [_alloc("old0", slots), _free("old0", slots), _finish("old0"), *tail]


ONCE = [_freed_by_another, _given_away_by_another, _given_twice]
TWICE = [_freed_by_both, _freed_twice, _published_free]


def _tenancies(slots: list[int], number: int) -> list[Event]:
    return [
        event
        for k in range(number)
        for event in (_alloc(f"clean{k}", slots), _free(f"clean{k}", slots), _finish(f"clean{k}"))
    ]


def _behind(prelude: list[Event], events: list[Event]) -> list[Event]:
    """``events`` behind a prelude that ends in front of their first ``i``; that keeps its place."""
    first = events[0]["i"] - len(prelude)
    return [{**e, "i": first + k} for k, e in enumerate(prelude)] + events


def _told(findings: list[Finding], first: int) -> list[tuple[Any, ...]]:
    """What is said of the causes from event ``first`` on."""
    return sorted(
        (
            (
                f.cls,
                f.subtype,
                f.cause_event,
                f.cause_window,
                f.corrupting_event,
                f.victim,
                f.culprit.req,
                tuple(sorted(f.slots)),
                f.first_bad_step,
                f.confidence,
            )
            for f in findings
            if (f.cause_event if f.cause_event is not None else first) >= first
        ),
        key=repr,
    )


@functools.cache
def _run(name: str) -> CleanRun:
    run = load_run(str(CAPTURES / f"{name}.jsonl.zst"))
    shift = 1000 - run.events[0]["i"]
    run.events[:] = [event | {"i": event["i"] + shift} for event in run.events]
    return run


firsts: st.SearchStrategy[tuple[Callable[[list[int]], list[Event]], int]] = st.one_of(
    st.tuples(st.sampled_from(ONCE), st.integers(0, 3)),
    st.tuples(st.sampled_from(TWICE), st.integers(1, 3)),
)
ALONE = [name for name, kind in KINDS.items() if not kind.several_ranks]


@pytest.mark.parametrize("kind", ALONE)
@given(
    name=st.just("ngram_clean"),
    first=firsts,
    seed=st.integers(0, 1 << 16),
)
@settings(max_examples=1, deadline=None)
def test_a_later_fault_is_named_as_if_nothing_had_been_before(
    kind: str, name: str, first: Any, seed: int
) -> None:
    run = _run(name)
    try:
        events, _ = inject_faults(run, KINDS[kind], step=None, seed=seed, count=1, name=name)
    except NothingCheckedError:
        return
    slots = sorted({s for e in events if e["kind"] == "alloc" for s in e["slots"]} - {0})
    fault, number = first
    clean = _tenancies(slots, max(number, 1))
    start = events[0]["i"]
    control = diagnose(run.header, _behind(clean, events))
    found = diagnose(run.header, _behind([*fault(slots), *_tenancies(slots, number)], events))
    assert _told(found.findings, start) == _told(control.findings, start)
    early = [f for f in found.findings if f.cause_event is not None and f.cause_event < start]
    assert early
    assert all(f.cls in ("double_alloc", "prefix_index") for f in early)


# A slot in the hands of a clean tenant, or of one that the broken rule left with it: C holds
# [3, 7] since B gave A's slot 3 to the free list.
TAKEN = [
    *life("A", [11, 12, 13], [1, 2, 3], row=1, step=1),
    *life("B", [21, 22], [4, 5], row=2, step=2),
    _free("B", [3]),
    *life("C", [31, 32], [3, 7], row=3, step=3),
]
BROKE = next(k for k, e in enumerate(TAKEN) if e["kind"] == "free")


def _later(*events: Event) -> list[tuple[str, int | None, str | None, str | None]]:
    findings = diagnose(HEAD, numbered([*TAKEN, *events])).findings
    return [
        (f.cls, f.cause_event, f.culprit.req, f.victim) for f in findings if f.cause_event != BROKE
    ]


@pytest.mark.parametrize("writer", ["B", "X"])
def test_who_never_had_the_slot_and_writes_it_is_a_fault_of_its_own(writer: str) -> None:
    row = {"B": 2, "X": 6}[writer]
    stray = decode(writer, 63, 3, row=row, position=2, step=4)
    if writer == "X":
        stray = life("X", [61, 62], [14, 15], row=6, step=4) + decode("X", 63, 3, 6, 2, 5)
    stray = [e for e in stray if not (e["kind"] == "alloc" and e["slots"] == [3])]
    wrote = len(TAKEN) + len(stray) - 1
    told = _later(*stray, *decode("C", 33, 10, row=3, position=2, step=6))
    assert told == [("late_write", wrote, writer, "C")]


def test_who_never_had_the_slot_and_copies_into_it_is_a_fault_of_its_own() -> None:
    copy = {"kind": "copy", "src": [4], "dst": [3], "via": "d2d", "by": "B", "canary": True}
    told = _later(copy, *decode("C", 33, 10, row=3, position=2, step=4))
    assert told == [("transfer_mismatch", len(TAKEN), "B", "C")]


def test_a_row_that_is_led_to_the_slot_is_a_fault_of_its_own() -> None:
    cell = {"kind": "map", "row": 2, "start": 1, "slots": [3]}
    told = _later(cell, *decode("B", 23, 10, row=2, position=2, step=4))
    assert told == [("stale_mapping", len(TAKEN), "B", "B")]


def test_what_a_holder_does_still_follows_from_the_first_fault() -> None:
    assert _later(*decode("A", 14, 6, row=1, position=3, step=4)) == []
    freed = [_finish("A"), _free("A", [1, 2, 3])]
    given = life("D", [41, 42], [3, 8], row=4, step=4)
    assert _later(*freed, *given, *decode("C", 33, 10, row=3, position=2, step=5)) == []
    again = [_free("C", [3]), *life("D", [41, 42], [3, 8], row=4, step=4)]
    early = len(TAKEN)
    told = _later(*again, *decode("C", 33, 10, row=3, position=2, step=5))
    assert told == [("use_after_free", early, "D", "C")]


def test_what_was_read_behind_a_second_fault_is_not_called_unread() -> None:
    events = [
        *TAKEN,
        {"kind": "finish", "req": "C"},
        _free("C", [3, 7]),
        *life("D", [41, 42], [3, 9], row=4, step=4),
        _free("B", [3, 9]),
        *life("F", [51, 52], [3, 9], row=5, step=5),
        *decode("D", 43, 10, row=4, position=2, step=6),
        *decode("A", 14, 6, row=1, position=3, step=7),
    ]
    findings = diagnose(HEAD, numbered(events)).findings
    (first,) = [f for f in findings if f.cause_event == BROKE]
    said = "; ".join(first.evidence)
    assert f"A read it at event {len(events) - 1}" in said
    assert "no damaged content" not in said
