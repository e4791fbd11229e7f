"""Owners of blocks: whatever the pool does, what is told is what a healthy pool may do."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcanary_cli.attribution.ledger import Names
from kvcanary_cli.attribution.ownership import OwnershipRules
from kvcanary_cli.record.vllm.blocks import BlockLedger

BLOCKS, SIZE = 6, 2

#: What may happen to a block: taken, filled, given up, hit, evicted, or the cache is reset.
_ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["take", "fill", "give", "hit", "evict", "reset"]),
        st.integers(1, BLOCKS - 1),
        st.sampled_from(["A", "B"]),
    ),
    max_size=40,
)


class _Pool:
    """Blocks with references and hashes, as vLLM keeps them, and the ledger beside them."""

    def __init__(self) -> None:
        self.ledger = BlockLedger(BLOCKS, SIZE)
        self.users: dict[int, list[str]] = {k: [] for k in range(1, BLOCKS)}
        self.cached: set[int] = set()
        self.events: list[dict[str, Any]] = []

    def do(self, action: str, block: int, req: str) -> None:
        users, ledger = self.users[block], self.ledger
        if action == "take" and not users:
            if block in self.cached:
                self.do("evict", block, req)
            self.events += ledger.alloc(req, [block])
            users.append(req)
        elif action == "fill" and users == [req] and block not in self.cached:
            self.cached.add(block)
            self.events += ledger.publish(block, req, 0, -1)
        elif action == "hit" and block in self.cached and req not in users:
            users.append(req)
        elif action == "give" and req in users:
            users.remove(req)
            if users:
                mine = [block] if ledger.owner(block) == req else []
                self.events += ledger.to_cache(req, mine)
            else:
                self.events += ledger.give_back(req, [(block, block in self.cached)], "release")
        elif action == "evict" and block in self.cached and not users:
            self.cached.discard(block)
            self.events += ledger.evict(block, in_use=False)
        elif action == "reset" and not any(self.users.values()):
            self.cached.clear()
            self.events += ledger.clear_cache()


def _follow(rules: OwnershipRules, events: list[dict[str, Any]]) -> None:
    for number, event in enumerate(events):
        slots = np.asarray(event.get("slots", []), dtype=np.int64)
        match event["kind"]:
            case "alloc":
                rules.alloc(event["owner"], slots, number)
            case "free":
                rules.free(event["owner"], slots, number, event["reason"])
            case "own":
                rules.own(event["from"], event["owner"], slots, number, visible=False)
            case "publish":
                rules.publish(event.get("req"), slots, number)


def _owners(rules: OwnershipRules) -> list[str | None]:
    return [rules.names.name(int(code)) for code in rules.state.owner[SIZE::SIZE]]


@settings(max_examples=150, deadline=None)
@given(_ACTIONS)
def test_a_healthy_pool_breaks_no_rule_and_ends_with_its_owners(
    actions: list[tuple[str, int, str]],
) -> None:
    pool = _Pool()
    for action in actions:
        pool.do(*action)
    rules = OwnershipRules(BLOCKS * SIZE, Names())
    _follow(rules, pool.events)
    assert not rules.findings
    touched = {int(s) // SIZE for e in pool.events for s in e.get("slots", ())}
    for block in touched:
        owner = _owners(rules)[block - 1]
        assert owner == pool.ledger.owner(block)
        if not pool.users[block]:
            assert owner == ("tree" if block in pool.cached else None)
    visible: set[str] = set()
    for event in pool.events:
        if event["kind"] == "publish":
            visible.add(event["entry"])
        elif event["kind"] == "unpublish":
            visible.remove(event["entry"])
    assert visible == {pool.ledger.entry_of(block) for block in pool.cached}


@settings(max_examples=60, deadline=None)
@given(_ACTIONS, _ACTIONS, st.booleans())
def test_told_again_it_goes_on_as_if_nothing_had_been_lost(
    lost: list[tuple[str, int, str]], kept: list[tuple[str, int, str]], gap: bool
) -> None:
    pool = _Pool()
    for action in lost:
        pool.do(*action)
    before = len(pool.events)
    pool.events += pool.ledger.retell(gap=gap)
    for action in kept:
        pool.do(*action)
    rules = OwnershipRules(BLOCKS * SIZE, Names())
    _follow(rules, pool.events[before:])
    assert not rules.findings
    for block in range(1, BLOCKS):
        owner = _owners(rules)[block - 1]
        assert owner in (pool.ledger.owner(block), None)


def _kinds(events: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(e["kind"], e.get("owner", "")) for e in events]


def test_a_block_that_is_given_back_by_a_stranger_is_told_so() -> None:
    ledger = BlockLedger(BLOCKS, SIZE)
    ledger.alloc("A", [1])
    (event,) = ledger.give_back("B", [(1, True)], "release")
    assert (event["kind"], event["owner"], event["slots"].tolist()) == ("free", "B", [2, 3])


def test_without_an_actor_each_block_is_its_owners() -> None:
    ledger = BlockLedger(BLOCKS, SIZE)
    ledger.alloc("A", [1])
    ledger.alloc("B", [2])
    events = ledger.give_back(None, [(1, False), (2, True), (3, False)], "drain")
    assert _kinds(events) == [("own", "tree"), ("free", "A"), ("free", "unknown")]
    assert {e["reason"] for e in events if e["kind"] == "free"} == {"drain"}


def test_evicted_while_in_use_it_stays_with_its_user() -> None:
    ledger = BlockLedger(BLOCKS, SIZE)
    ledger.alloc("A", [1])
    ledger.publish(1, "A", 0, -1)
    assert _kinds(ledger.evict(1, in_use=True)) == [("unpublish", "")]
    assert ledger.owner(1) == "A"
