"""Draft trees and acceptance, derived from depths, tokens and what was committed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcanary_cli.errors import InputError
from tests.tools.capture_speculation import Speculation, accepted_nodes, nearest_parents


def _verify(seq_len: int, depths: list[int], ids: list[int], slots: list[int]) -> dict[str, Any]:
    return {
        "step": 0,
        "forward_mode_name": "TARGET_VERIFY",
        "batch_size": 1,
        "rids": ["A"],
        "seq_lens": [seq_len],
        "positions": [seq_len + depth for depth in depths],
        "input_ids": ids,
        "out_cache_loc": slots,
        "draft_token_num": len(depths),
        "req_to_token_rows": [[*range(101, 101 + seq_len), *slots]],
    }


@pytest.mark.parametrize(
    ("depths", "parents"),
    [
        ([0, 1, 2, 3], [-1, 0, 1, 2]),
        ([0, 1, 1, 1], [-1, 0, 0, 0]),
        ([0, 1, 1, 2], [-1, 0, 0, 2]),
        ([0, 1, 2, 1], [-1, 0, 1, 0]),
    ],
)
def test_parent_is_the_nearest_earlier_node_one_level_up(
    depths: list[int], parents: list[int]
) -> None:
    assert nearest_parents(depths) == parents


def test_accepted_nodes_go_back_where_the_first_choice_leads_nowhere() -> None:
    # Both children of the root spell 7; only the second has a 9 behind it.
    assert accepted_nodes([0, 1, 2, 1, 2], [5, 7, 8, 7, 9], [5, 7, 9]) == [0, 1, 4]
    assert accepted_nodes([0, 1, 1], [5, 7, 8], [5, 9]) is None
    assert accepted_nodes([0, 2, 1, 1], [5, 9, 7, 7], [5, 7, 9]) is None


@given(st.data())
def test_accepted_nodes_spell_what_was_committed(data: st.DataObject) -> None:
    parents = [-1]
    for node in range(1, data.draw(st.integers(1, 8))):
        parents.append(data.draw(st.integers(0, node - 1)))
    depths: list[int] = []
    for parent in parents:
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
    tokens = data.draw(st.lists(st.integers(0, 2), min_size=len(parents), max_size=len(parents)))
    node, path = data.draw(st.integers(0, len(parents) - 1)), []
    while node >= 0:
        path.append(node)
        node = parents[node]
    committed = [tokens[node] for node in reversed(path)]
    found = accepted_nodes(depths, tokens, committed)
    assert found is not None
    assert [tokens[node] for node in found] == committed
    assert [depths[node] for node in found] == list(range(len(committed)))
    assert found == sorted(found)


def test_accepted_kv_moves_to_the_place_that_the_row_names() -> None:
    steps = [
        _verify(2, [0, 1, 1, 2], [52, 93, 21, 52], [11, 12, 13, 14]),
        _verify(5, [0, 1, 1, 1], [60, 0, 0, 0], [14, 15, 16, 17]),
    ]
    speculation = Speculation(steps, {"A": [1, 2, 52, 21, 52, 60, 61]})
    assert speculation.used
    assert speculation.parents(0) == [-1, 0, 0, 2]
    assert speculation.outcome(0) == [
        {"kind": "copy", "src": [13, 14], "dst": [12, 13], "via": "d2d", "canary": True},
        {
            "kind": "accept",
            "req": "A",
            "nodes": [0, 2, 3],
            "tokens": [52, 21, 52],
            "committed_len": 5,
        },
    ]
    # Its last forward: the output token behind it never gets KV.
    assert speculation.outcome(1) == [
        {"kind": "accept", "req": "A", "nodes": [0], "tokens": [60], "committed_len": 6}
    ]


def test_edges_follow_the_accepted_path_where_depth_alone_says_otherwise() -> None:
    steps = [_verify(0, [0, 1, 1, 2], [5, 7, 8, 9], [1, 2, 3, 4])]
    speculation = Speculation(steps, {"A": [5, 7, 9, 6]})
    assert speculation.parents(0) == [-1, 0, 0, 1]
    assert speculation.outcome(0)[-1]["nodes"] == [0, 1, 3]


def test_tokens_that_no_path_spells_are_refused() -> None:
    steps = [_verify(0, [0, 1], [5, 7], [1, 2])]
    with pytest.raises(InputError, match=r"request A: no path .* committed tokens \[5, 8\]"):
        Speculation(steps, {"A": [5, 8, 6]})
