"""The ledger: ownership rules against a plain model, when they fire, and its memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcanary_cli.attribution.ledger import NEVER, Names, Ownership, Writes
from kvcanary_cli.attribution.ownership import OwnershipRules

SLOTS = 6
Act = tuple[str, str, list[int]]


class Model:
    """Owners in a dictionary: None = the free list, absent = not shown yet."""

    def __init__(self) -> None:
        self.owner: dict[int, str | None] = {}
        self.last: dict[int, str | None] = {}
        self.shared: set[int] = set()
        self.broken: list[tuple[str, int, int, str]] = []

    def act(self, event: int, kind: str, who: str, slots: list[int]) -> None:
        for slot in slots:
            rule = self._rule(kind, who, slot)
            if rule is not None:
                self.broken.append((rule, event, slot, who))
        for slot in slots:
            self._apply(kind, who, slot)

    def _rule(self, kind: str, who: str, slot: int) -> str | None:
        if slot not in self.owner:
            return None
        owner = self.owner[slot]
        if kind == "alloc":
            return None if owner is None else "double_alloc"
        if kind == "free":
            if owner is None:
                return "double_free"
            return None if owner == who else "free_by_non_owner"
        if kind == "publish":
            return "publish_of_free" if owner is None else None
        foreign = owner not in (None, who)
        if kind == "write":
            given_back = owner is None and self.last.get(slot) != who
            return "write_by_non_owner" if foreign or given_back else None
        if owner is None:
            return None if self.last.get(slot) == who else "read_of_free"
        if foreign and owner != "tree" and slot not in self.shared:
            return "read_of_foreign"
        return None

    def _apply(self, kind: str, who: str, slot: int) -> None:
        if kind == "alloc":
            self.last[slot], self.owner[slot] = self.owner.get(slot), who
            self.shared.discard(slot)
        elif kind == "free":
            self.last[slot], self.owner[slot] = who, None
            self.shared.discard(slot)
        elif kind == "publish":
            self.shared.add(slot)


def _do(rules: OwnershipRules, event: int, act: Act) -> None:
    kind, who, numbers = act
    slots = np.array(numbers, dtype=np.int64)
    code = rules.names.code(who)
    codes = np.full(len(slots), code, dtype=np.int32)
    if kind == "alloc":
        rules.alloc(who, slots, event)
    elif kind == "free":
        rules.free(who, slots, event, None)
    elif kind == "publish":
        rules.publish(who, slots, event)
    elif kind == "write":
        rules.write(slots, codes, event, event)
    else:
        # As if all had been written just before: only ownership counts here.
        written = np.full(len(slots), event, dtype=np.int64)
        rules.read(slots, codes, written, event, event)


acts = st.lists(
    st.tuples(
        st.sampled_from(["alloc", "free", "publish", "write", "read"]),
        st.sampled_from(["A", "B", "tree"]),
        st.lists(st.integers(1, SLOTS), min_size=1, max_size=3, unique=True),
    ),
    max_size=30,
)


@given(acts)
def test_rules_match_a_plain_model(sequence: list[Act]) -> None:
    rules, model = OwnershipRules(SLOTS + 1, Names()), Model()
    said: set[Any] = set()
    expected = []
    for event, act in enumerate(sequence):
        before = len(model.broken)
        since = {s: rules.state.since[s] for s in act[2]}
        count = len(rules.findings)
        model.act(event, *act)
        _do(rules, event, act)
        for rule, at, slot, who in model.broken[before:]:
            # A rule that stays broken is said once for each tenancy.
            key = (rule, slot, who, since[slot])
            if key not in said:
                said.add(key)
                expected.append((rule, at, slot, who))
        # It fires with the event that breaks it.
        assert all(f.event == event for f in rules.findings[count:])
    found = [(f.what, f.event, slot, f.actor) for f in rules.findings for slot in f.slots]
    assert sorted(found, key=str) == sorted(expected, key=str)
    assert len(rules.roots) == len(rules.findings)


def test_a_slot_freed_twice_is_the_root_of_its_second_alloc() -> None:
    rules = OwnershipRules(SLOTS + 1, Names())
    for event, act in enumerate(
        [
            ("alloc", "A", [3]),
            ("free", "A", [3]),
            ("free", "A", [3]),
            ("alloc", "B", [3]),
            ("alloc", "C", [3]),
        ]
    ):
        _do(rules, event, act)
    assert [(f.what, f.event) for f in rules.findings] == [("double_free", 2), ("double_alloc", 4)]
    assert int(rules.state.bad_event[3]) == 2
    _do(rules, 5, ("alloc", "D", [3]))
    assert int(rules.state.bad_event[3]) == 5


def test_an_unwritten_slot_is_said_once() -> None:
    rules = OwnershipRules(SLOTS + 1, Names())
    slots = np.array([2], dtype=np.int64)
    rules.alloc("A", slots, 1)
    readers = np.array([rules.names.code("A")], dtype=np.int32)
    written = np.full(len(slots), NEVER, dtype=np.int64)
    for event in (2, 3):
        rules.read(slots, readers, written, event, event)
    assert [(f.what, f.event) for f in rules.findings] == [("read_before_write_since_alloc", 2)]


def test_leaks_name_the_request_that_ended() -> None:
    rules = OwnershipRules(SLOTS + 1, Names())
    rules.alloc("A", np.array([1, 2, 3], dtype=np.int64), 0)
    rules.free("A", np.array([2], dtype=np.int64), 1, None)
    used = np.array([4], dtype=np.int64)
    assert rules.leaks({rules.names.code("A"): 5}, used) == 0
    assert [(f.what, f.event, f.slots) for f in rules.findings] == [("leak", 5, (1, 3))]


@pytest.mark.parametrize("used", [[1], [3, 4], [1, 2, 3]])
def test_what_a_transfer_keeps_is_no_leak(used: list[int]) -> None:
    rules = OwnershipRules(SLOTS + 1, Names())
    rules.alloc("A", np.array([1, 2, 3], dtype=np.int64), 0)
    kept = {1, 2, 3} & set(used)
    assert rules.leaks({rules.names.code("A"): 5}, np.array(used, dtype=np.int64)) == len(kept)
    told = [slot for f in rules.findings for slot in f.slots]
    assert set(told) == {1, 2, 3} - kept


def _bytes(*holders: object) -> int:
    """Memory behind all arrays, that behind several once."""
    memory: dict[int, int] = {}
    for holder in holders:
        for array in vars(holder).values():
            if isinstance(array, np.ndarray):
                while isinstance(array.base, np.ndarray):
                    array = array.base
                memory[id(array)] = array.nbytes
    assert len(memory) > 5
    return sum(memory.values())


def test_a_million_slots_fit_in_200_megabytes() -> None:
    assert _bytes(Ownership(1_000_000), Writes(1_000_000)) < 200_000_000
