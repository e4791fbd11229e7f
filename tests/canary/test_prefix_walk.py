"""The prefix-cache walk and the sweep plan that is made of it."""

from __future__ import annotations

import torch
from canary_rig import ints
from hypothesis import given
from hypothesis import strategies as st

from kvcanary_cli.canary import PrefixNode, SweepEntries, build_sweep_plan, walk_prefix_cache


class Tree:
    def __init__(self, *children: PrefixNode) -> None:
        self.prefix_root = PrefixNode(children=list(children))


def _rows(entries: SweepEntries) -> list[tuple[int, int, int]]:
    return list(zip(entries.slots, entries.positions, entries.prev_slots, strict=True))


def test_depth_first_with_predecessors() -> None:
    tree = Tree(
        PrefixNode(
            slots=[4, 2],
            children=[PrefixNode(slots=[9]), PrefixNode(slots=[7, 8])],
        ),
        PrefixNode(slots=[11]),
    )
    assert _rows(walk_prefix_cache(tree)) == [
        (4, 0, -1),
        (2, 1, 4),
        (9, 2, 2),
        (7, 2, 2),
        (8, 3, 7),
        (11, 0, -1),
    ]


def test_left_out_nodes_still_advance_depth_and_chain() -> None:
    locked = PrefixNode(slots=[4, 2], lock_count=1, children=[PrefixNode(slots=[9])])
    assert _rows(walk_prefix_cache(Tree(locked), unlocked_only=True)) == [(9, 2, 2)]
    # A window walk asks the window's own lock and values.
    swa = PrefixNode(slots=[4], lock_count=1, children=[PrefixNode(slots=[9], has_swa=False)])
    assert _rows(walk_prefix_cache(Tree(swa), unlocked_only=True, swa_resident_only=True)) == [
        (4, 0, -1)
    ]
    swa.swa_lock_count = 1
    assert _rows(walk_prefix_cache(Tree(swa), unlocked_only=True, swa_resident_only=True)) == []


def test_evicted_node_keeps_its_key_length() -> None:
    evicted = PrefixNode(slots=[], key_len=3, children=[PrefixNode(slots=[9], key_len=1)])
    tree = Tree(PrefixNode(slots=[4], key_len=1, children=[evicted]))
    assert _rows(walk_prefix_cache(tree)) == [(4, 0, -1), (9, 4, 4)]


def test_deep_tree_needs_no_recursion() -> None:
    node = PrefixNode(slots=[5000])
    for slot in range(4999, 0, -1):
        node = PrefixNode(slots=[slot], children=[node])
    rows = _rows(walk_prefix_cache(Tree(node)))
    assert rows[-1] == (5000, 4999, 4999)
    assert len(rows) == 5000


@given(st.recursive(st.just([]), lambda inner: st.lists(inner, max_size=3), max_leaves=12))
def test_every_slot_once_with_the_position_of_its_path(shape: list[object]) -> None:
    expected: list[tuple[int, int, int]] = []
    slots = iter(range(1, 1000))

    def grow(children: list[object], path: list[int]) -> list[PrefixNode]:
        nodes = []
        for child in children:
            assert isinstance(child, list)
            own = [next(slots) for _ in range(len(child) % 3 + 1)]
            whole = path + own
            for depth, slot in enumerate(own, len(path)):
                expected.append((slot, depth, whole[depth - 1] if depth else -1))
            nodes.append(PrefixNode(slots=own, children=grow(child, whole)))
        return nodes

    tree = Tree(*grow(shape, []))
    assert _rows(walk_prefix_cache(tree)) == expected


def test_plan_of_nothing_has_one_unused_entry() -> None:
    plan = build_sweep_plan(
        walk_prefix_cache(Tree()), swa_window_size=0, full_to_swa_index_mapping=None
    )
    assert plan.capacity == 1
    assert plan.verify_num_valid.tolist() == [0]
    assert plan.enable.tolist() == [1]


def test_plan_translates_only_with_a_window() -> None:
    entries = SweepEntries(slots=[4, 2], positions=[0, 1], prev_slots=[-1, 4])
    lut = ints([0, 0, 6, 0, 5])
    for window, slots, prev in ((0, [4, 2], [-1, 4]), (8, [5, 6], [-1, 5])):
        plan = build_sweep_plan(entries, swa_window_size=window, full_to_swa_index_mapping=lut)
        assert plan.verify_slot_indices.tolist() == slots
        assert plan.verify_prev_slot_indices.tolist() == prev
        assert plan.verify_expected_positions.tolist() == [0, 1]
        assert plan.verify_slot_indices.dtype is torch.int64
