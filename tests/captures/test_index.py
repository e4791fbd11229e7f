"""The prefix forest rebuilt from sweeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcanary_cli.errors import InputError
from tests.tools.capture_index import PrefixIndex, leaf_paths, path_tokens

if TYPE_CHECKING:
    from collections.abc import Iterable

Sweep = tuple[list[int], list[int], list[int]]


def _sweep(tokens: Iterable[tuple[int, int, int]]) -> Sweep:
    rows = list(tokens)
    return [r[0] for r in rows], [r[1] for r in rows], [r[2] for r in rows]


@st.composite
def forests(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """Tokens (slot, position, slot before) of a forest in which each slot stands once, shuffled."""
    parents = draw(st.lists(st.integers(-1, 30), max_size=30))
    slots = draw(
        st.lists(st.integers(1, 999), min_size=len(parents), max_size=len(parents), unique=True)
    )
    depth: list[int] = []
    tokens = []
    for k, wanted in enumerate(parents):
        parent = wanted if wanted < k else -1
        depth.append(depth[parent] + 1 if parent >= 0 else 0)
        tokens.append((slots[k], depth[k], slots[parent] if parent >= 0 else -1))
    return list(draw(st.permutations(tokens)))


@given(forests())
def test_paths_name_exactly_the_tokens_of_the_sweep(tokens: list[tuple[int, int, int]]) -> None:
    paths = leaf_paths(*_sweep(tokens))
    assert path_tokens(paths) == set(tokens)
    assert all(a[: len(b)] != b for a in paths for b in paths if a is not b)


@given(st.lists(forests(), max_size=4))
def test_index_follows_the_sweeps(sweeps: list[list[tuple[int, int, int]]]) -> None:
    index = PrefixIndex()
    shown: dict[str, tuple[int, ...]] = {}
    names: dict[tuple[int, ...], str] = {}
    for tokens in sweeps:
        for event in index.sweep(*_sweep(tokens)):
            if event["kind"] == "unpublish":
                del shown[event["entry"]]
            else:
                assert event["entry"] not in shown
                shown[event["entry"]] = path = tuple(event["slots"])
                assert names.setdefault(path, event["entry"]) == event["entry"]
        assert path_tokens(shown.values()) == set(tokens)
        assert index.sweep(*_sweep(tokens)) == []


def test_branches_share_their_trunk() -> None:
    sweep = _sweep([(1, 0, -1), (2, 1, 1), (3, 2, 2), (4, 2, 2), (9, 0, -1)])
    assert leaf_paths(*sweep) == [(1, 2, 3), (1, 2, 4), (9,)]


def test_a_slot_that_a_corrupt_tree_holds_twice_is_told_apart_by_position() -> None:
    sweep = _sweep([(1, 0, -1), (2, 1, 1), (5, 0, -1), (6, 1, 5), (2, 2, 6), (7, 2, 2)])
    assert leaf_paths(*sweep) == [(1, 2, 7), (5, 6, 2)]


def test_eviction_withdraws_every_entry_that_names_the_slot() -> None:
    index = PrefixIndex()
    index.sweep(*_sweep([(1, 0, -1), (2, 1, 1), (3, 1, 1), (9, 0, -1)]))
    assert index.evict([4]) == []
    assert index.evict([2]) == [{"kind": "unpublish", "entry": "path-0000"}]
    assert [e["entry"] for e in index.evict([1, 9])] == ["path-0001", "path-0002"]
    assert index.sweep(*_sweep([(1, 0, -1), (3, 1, 1)])) == [
        {"kind": "publish", "entry": "path-0001", "slots": [1, 3]}
    ]


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([(2, 1, 1)], "no token at slot 1, position 0"),
        ([(1, 0, -1), (2, 1, 1), (3, 0, -1), (2, 1, 3)], "two predecessors, 1 and 3"),
        ([(1, 1, -1)], "-1 belongs to position 0"),
        ([(1, 0, -1), (2, 0, 1)], "-1 belongs to position 0"),
    ],
)
def test_links_that_are_no_forest_are_refused(
    tokens: list[tuple[int, int, int]], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        leaf_paths(*_sweep(tokens))


def test_empty_sweep_withdraws_everything() -> None:
    index = PrefixIndex()
    index.sweep(*_sweep([(1, 0, -1)]))
    events: list[dict[str, Any]] = index.sweep([], [], [])
    assert events == [{"kind": "unpublish", "entry": "path-0000"}]
