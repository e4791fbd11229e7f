"""What follows from one cause is one finding; two causes are two, however close they lie."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcanary_cli.attribution.custody import Custody
from kvcanary_cli.attribution.ledger import Names
from kvcanary_cli.attribution.ownership import OwnershipRules
from tests.attribution.events import HEAD, decode, index_of, life, numbered
from tests.attribution.helpers import diagnose

Event = dict[str, Any]
HEAD_P = HEAD | {"records": [*HEAD["records"], "prefix"]}


def _free(owner: str, *slots: int) -> Event:
    return {"kind": "free", "owner": owner, "slots": list(slots)}


@pytest.mark.parametrize(
    "frees", [[_free("A", 5, 5)], [_free("A", 5), _free("A", 5)], [_free("A", 5)]]
)
def test_a_slot_that_one_alloc_hands_out_twice_comes_back_twice(frees: list[Event]) -> None:
    events = life("A", [1, 2], [5, 5], row=1, step=1)
    events = numbered([*events, *decode("A", 9, 6, row=1, position=2, step=2), *frees])
    diagnosis = diagnose(HEAD, events)
    (finding,) = diagnosis.findings
    assert (finding.cls, finding.subtype, finding.cause_event) == ("double_alloc",) * 2 + (1,)
    assert [o.what for o in diagnosis.ownership][:1] == ["double_alloc"]


@pytest.mark.parametrize("order", sorted(set(itertools.permutations("BCB"))))
def test_either_holders_free_follows_from_the_double_alloc(order: tuple[str, ...]) -> None:
    """Nobody read it: one finding all the same, and the third free is a second fault."""
    events = [
        {"kind": "alloc", "owner": "B", "slots": [3]},
        {"kind": "alloc", "owner": "C", "slots": [3]},
        *(_free(who, 3) for who in order),
    ]
    findings = diagnose(HEAD, numbered(events)).findings
    causes = sorted((f.subtype, f.cause_event) for f in findings)
    second = 2 + [k for k, who in enumerate(order) if who == "B"][1]
    assert causes == [("double_alloc", 1), ("double_free", second)]


def test_a_stranger_on_a_contested_slot_is_a_second_fault() -> None:
    events = [
        {"kind": "alloc", "owner": "B", "slots": [3]},
        {"kind": "alloc", "owner": "C", "slots": [3]},
        _free("Z", 3),
    ]
    findings = diagnose(HEAD, numbered(events)).findings
    assert sorted((f.subtype, f.cause_event) for f in findings) == [
        ("double_alloc", 1),
        ("free_by_non_owner", 2),
    ]


def test_an_early_free_that_its_owner_goes_on_writing_is_one_finding() -> None:
    """B's page is freed; C gets it; B reads it and writes its next token into its rest."""
    page = [8, 9, 10, 11]
    events = [
        {"kind": "alloc", "owner": "B", "slots": page},
        {"kind": "history", "req": "B", "start": 0, "ids": [1, 2, 3, 4]},
        *[e for e in life("B", [1, 2], page[:2], row=1, step=1) if e["kind"] in ("map", "forward")],
        _free("B", *page),
        *life("C", [21, 22, 23, 24], page, row=2, step=2),
    ]
    for k in (2, 3):
        grown = decode("B", 1 + k, page[k], row=1, position=k, step=1 + k)
        events += [e for e in grown if e["kind"] in ("map", "forward")]
    events = numbered([*events, *decode("C", 25, 12, row=2, position=4, step=5)])
    diagnosis = diagnose(HEAD, events)
    (finding,) = diagnosis.findings
    freed = next(e["i"] for e in events if e["kind"] == "free")
    assert (finding.cls, finding.cause_event) == ("use_after_free", freed)
    assert {"write_by_non_owner", "read_of_foreign"} == {o.what for o in diagnosis.ownership}
    assert set(finding.blast_radius) == {"B", "C"}


# Two faults at once. Each works on requests, a row and slots of its own, and has one cause.


def _early_free(n: int, slots: list[int], step: int) -> tuple[list[Event], str]:
    a, b, c, _d = slots
    return [
        *life(f"A{n}", [1, 2], [a, b], row=2 * n, step=step),
        _free(f"A{n}", a, b),
        *life(f"B{n}", [7, 8], [a, b], row=2 * n + 1, step=step + 1),
        *decode(f"A{n}", 9, c, row=2 * n, position=2, step=step + 2),
    ], "use_after_free"


def _given_twice(n: int, slots: list[int], step: int) -> tuple[list[Event], str]:
    events, _ = _early_free(n, slots, step)
    return [e for e in events if e["kind"] != "free"], "double_alloc"


def _stranger(n: int, slots: list[int], step: int) -> tuple[list[Event], str]:
    events, _ = _early_free(n, slots, step)
    return [e | {"owner": "stranger"} if e["kind"] == "free" else e for e in events], "double_alloc"


def _cell(n: int, slots: list[int], step: int) -> tuple[list[Event], str]:
    a, b, c, d = slots
    return [
        *life(f"A{n}", [1, 2], [a, b], row=2 * n, step=step),
        *life(f"B{n}", [7, 8], [c, d], row=2 * n + 1, step=step + 1),
        {"kind": "map", "row": 2 * n, "start": 0, "slots": [c]},
        *decode(f"A{n}", 9, d + 1, row=2 * n, position=2, step=step + 2),
    ], "stale_mapping"


def _token(n: int, slots: list[int], step: int) -> tuple[list[Event], str]:
    a, b, c, _d = slots
    events = [
        *life(f"A{n}", [1, 2], [a, b], row=2 * n, step=step),
        *decode(f"A{n}", 9, c, row=2 * n, position=2, step=step + 1),
    ]
    events[-1]["input_ids"] = [77]
    return events, "wrong_token_fed"


def _unread_double_free(n: int, slots: list[int], step: int) -> tuple[list[Event], str]:
    events = life(f"A{n}", [1, 2], slots[:2], row=2 * n, step=step)
    return [*events, _free(f"A{n}", *slots[:2]), _free(f"A{n}", *slots[:2])], "double_alloc"


def _given_away(n: int, slots: list[int], step: int) -> tuple[list[Event], str]:
    events = life(f"A{n}", [1, 2], slots[:2], row=2 * n, step=step)
    own = {"kind": "own", "from": f"B{n}", "owner": "tree", "slots": slots[:2]}
    return [*events, own], "double_alloc"


FAULTS = [_early_free, _given_twice, _stranger, _cell, _token, _unread_double_free, _given_away]


def _in_order(parts: list[list[Event]], turns: list[int]) -> list[Event]:
    """Parts interleaved; steps are numbered anew, for they must grow."""
    rest, out, step = [list(p) for p in parts], [], 0
    for turn in itertools.chain(turns, itertools.cycle(range(len(parts)))):
        if not any(rest):
            break
        if rest[turn % len(rest)]:
            event = rest[turn % len(rest)].pop(0)
            if event["kind"] == "forward":
                step += 1
                event = event | {"step": step}
            out.append(event)
    return numbered(out)


@given(
    first=st.sampled_from(FAULTS),
    second=st.sampled_from(FAULTS),
    turns=st.lists(st.integers(0, 1), max_size=30),
)
def test_two_independent_faults_are_both_named(first: Any, second: Any, turns: list[int]) -> None:
    one, cls_one = first(1, [10, 11, 12, 13], 1)
    other, cls_other = second(2, [30, 31, 32, 33], 1)
    findings = diagnose(HEAD_P, _in_order([one, other], turns)).findings
    found = sorted((f.cls, min(f.slots) >= 30) for f in findings)
    assert found == sorted([(cls_one, False), (cls_other, True)])


@given(st.sampled_from(FAULTS), st.sampled_from(FAULTS))
def test_two_faults_of_the_same_slots_one_after_the_other(first: Any, second: Any) -> None:
    """The slots come back to the free list in between: each fault is named by its cause."""
    one, cls_one = first(1, [10, 11, 12, 13], 1)
    other, cls_other = second(2, [10, 11, 12, 13], 1)
    holders: dict[int, str] = {}
    for event in one:
        for slot in event["slots"] if event["kind"] in ("alloc", "free", "own") else []:
            who = "tree" if event["kind"] == "own" else event["owner"]
            holders[slot] = "" if event["kind"] == "free" and holders.get(slot) == who else who
    between = [
        _free(who, slot) for slot, who in sorted(holders.items()) if who not in ("", "stranger")
    ]
    events = _in_order([[*one, *between, *other]], [])
    start = len(one) + len(between)
    findings = diagnose(HEAD_P, events).findings
    early = {f.cls for f in findings if (f.cause_event or 0) < start}
    late = {f.cls for f in findings if (f.cause_event or 0) >= start}
    assert early == {cls_one}
    # Slots that the free list holds twice are handed out twice by nobody's further fault.
    assert late == {cls_other} or (
        cls_one == "double_alloc" and late <= {cls_other, "double_alloc"}
    )


acts = st.lists(
    st.tuples(st.sampled_from(["alloc", "free", "own"]), st.sampled_from("ABC")), max_size=14
)


@given(acts)
def test_claims_match_a_plain_count(sequence: list[tuple[str, str]]) -> None:
    """Roots against a model that counts who holds the slot and how often it is listed."""
    rules, one = OwnershipRules(4, Names()), np.array([2], dtype=np.int64)
    rules.alloc("A", one, 0)
    held, listed, owner, root, clean = ["A"], 0, "A", None, False
    for event, (kind, who) in enumerate(sequence, 1):
        right = listed > 0 if kind == "alloc" else who in held
        broken = owner != "" if kind == "alloc" else owner != who
        if kind == "alloc":
            rules.alloc(who, one, event)
            clean = listed > 0 and not held
            listed -= listed > 0
            held.append(who)
            owner = who
        elif kind == "free":
            rules.free(who, one, event, None)
            listed += 1
            owner = ""
        else:
            if owner in ("", "tree"):
                continue
            rules.own(who, "tree", one, event, visible=True)
            owner = "tree"
            held.append("tree")
        if kind != "alloc" and who in held:
            held.remove(who)
        if broken and not right:
            root = event
        clean = clean and (right or kind != "free")
        if kind == "free" and not broken and not held and (listed == 1 or clean):
            # Back where it came from: the next fault is another one.
            root, listed = None, 1
        now = int(rules.state.bad_event[2])
        assert (now if root is not None else None) == root


def test_claims_are_followed_only_where_a_rule_broke() -> None:
    custody = Custody()
    assert not custody.contested(3, 7)
    assert not custody.holds(3, 7)
    custody.watch(3, 7)
    assert custody.contested(3, 8)
    assert not custody.contested(3, 7)
    custody.hand_out(3, 7)
    assert custody.contested(3, 7)


@pytest.mark.parametrize("fed", [33, 99])
def test_who_loses_a_slot_to_a_stranger_suffers_from_that(fed: int) -> None:
    """Whether the stranger was fed the right token there or not."""
    events = numbered(
        [
            *life("A", [11, 12, 13], [1, 2, 3], row=1, step=1),
            *life("B", [31, 32], [5, 6], row=2, step=2),
            {"kind": "history", "req": "B", "start": 2, "ids": [33]},
            {"kind": "map", "row": 2, "start": 2, "slots": [3]},
            decode("B", fed, 3, row=2, position=2, step=3)[-1],
            *decode("A", 14, 4, row=1, position=3, step=4),
        ]
    )
    found = {f.victim: f for f in diagnose(HEAD, events).findings}
    at = index_of(events, "forward", step=3)
    assert (found["A"].cls, found["A"].subtype) == ("late_write", "write_by_non_owner")
    assert (found["A"].cause_event, found["A"].culprit.req) == (at, "B")
    assert list(found["A"].blast_radius) == ["A"]
    assert ("B" in found) == (fed == 99)
    if fed == 99:
        assert (found["B"].cls, list(found["B"].blast_radius)) == ("wrong_token_fed", ["B"])
