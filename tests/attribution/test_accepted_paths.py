"""Accepts whose length or whose compacting copy does not follow from the accepted nodes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.attribution.events import HEAD, decode, index_of, life, numbered
from tests.attribution.helpers import diagnose

Event = dict[str, Any]
_HEAD = HEAD | {"records": [*HEAD["records"], "spec"]}


def _verified(tokens: list[int], parent: list[int]) -> list[Event]:
    """A prompt of two, and four draft nodes in slots 3 to 6 behind it."""
    depth: list[int] = []
    for up in parent:
        depth.append(0 if up < 0 else depth[up] + 1)
    return [
        *life("A", [11, 12], [1, 2], row=1, step=1),
        {"kind": "alloc", "owner": "A", "slots": [3, 4, 5, 6]},
        {"kind": "map", "row": 1, "start": 2, "slots": [3, 4, 5, 6]},
        {
            "kind": "forward",
            "step": 2,
            "forward_mode": "TARGET_VERIFY",
            "reqs": ["A"],
            "req_pool_indices": [1],
            "seq_lens": [2],
            "input_ids": tokens,
            "positions": [2 + d for d in depth],
            "out_cache_loc": [3, 4, 5, 6],
            "draft_token_num": 4,
            "tree": {"parent": parent},
        },
    ]


@pytest.mark.parametrize("accepted", [1, 2, 3])
@pytest.mark.parametrize("too_long", [0, 1])
def test_a_committed_length_that_its_nodes_do_not_reach(accepted: int, too_long: int) -> None:
    tokens = [21, 22, 23, 24]
    tokens[accepted:] = [90 + k for k in range(4 - accepted)]
    true = [21, 22, 23, 24][:accepted]
    end = 2 + accepted
    events = [
        *_verified(tokens, [-1, 0, 1, 2]),
        {"kind": "history", "req": "A", "start": 2, "ids": [*true, 30]},
        {"kind": "accept", "req": "A", "nodes": list(range(accepted)), "tokens": [*true, 30]}
        | {"committed_len": end + too_long},
        *decode("A", 31, 7, row=1, position=end + too_long, step=3),
    ]
    if not too_long:
        # The last token is fed as the next one: its cell is set anew.
        events[-4] = events[-4] | {"start": end, "ids": [30]}
        events[-1] = events[-1] | {"input_ids": [30]}
    found = diagnose(_HEAD, numbered(events)).findings
    if not too_long:
        assert found == ()
        return
    (finding,) = found
    assert (finding.cls, finding.subtype) == ("spec_commit", "committed_len_too_high")
    assert finding.slots == {3 + accepted}
    assert f"its committed_len is {end + 1}; its nodes end at {end}" in finding.evidence


@pytest.mark.parametrize("took", [4, 5])
def test_a_compacting_copy_that_takes_a_rejected_node(took: int) -> None:
    """Nodes 0, 2 and 3 are accepted; node 1 is a rejected sibling of node 2."""
    events = numbered(
        [
            *_verified([21, 88, 22, 23], [-1, 0, 0, 2]),
            {"kind": "accept", "req": "A", "nodes": [0, 2, 3], "tokens": [21, 22, 23, 30]}
            | {"committed_len": 5},
            {"kind": "history", "req": "A", "start": 2, "ids": [21, 22, 23, 30]},
            {"kind": "copy", "src": [took, 6], "dst": [4, 5], "via": "d2d", "by": "A"},
            *decode("A", 30, 7, row=1, position=5, step=3),
        ]
    )
    found = diagnose(_HEAD, events).findings
    if took == 5:
        assert found == ()
        return
    (finding,) = found
    assert (finding.cls, finding.subtype) == ("spec_commit", "rejected_node_moved")
    assert (finding.cause_event, finding.slots) == (index_of(events, "copy"), {4})
    assert [r.cls for r in finding.ruled_out] == ["transfer_mismatch"]


@pytest.mark.parametrize("nodes", [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3]])
@pytest.mark.parametrize("parent", [[-1, 0, 1, 2], [-1, 0, 1, 1]])
def test_bytes_that_changed_in_an_accepted_node_are_no_fault_of_the_accept(
    nodes: list[int], parent: list[int]
) -> None:
    """The row is that of the node that belongs there: the accept put nothing wrong into place."""
    if parent[3] == 1 and 3 in nodes:
        nodes = nodes[:3]
    tokens, end = [21, 22, 23, 24], 2 + len(nodes)
    every = [1, 2, *(3 + node for node in nodes)]
    prints = {"kind": "kv_hash", "step": 2, "phase": "after", "slots": [3, 4, 5, 6]}
    accepted = [tokens[node] for node in nodes]
    for flipped in every[2:]:
        values = [100 + slot + (5000 if slot == flipped else 0) for slot in every]
        seen = {"kind": "kv_hash", "step": 3, "phase": "before", "slots": every, "hash": values}
        last = decode("A", 30, 7, row=1, position=end, step=3)
        events = [
            *_verified(tokens, parent),
            prints | {"hash": [103, 104, 105, 106]},
            {"kind": "accept", "req": "A", "nodes": nodes, "tokens": [*accepted, 30]}
            | {"committed_len": end},
            {"kind": "history", "req": "A", "start": 2, "ids": accepted},
            *last[:-1],
            seen,
            last[-1],
        ]
        head = _HEAD | {"records": [*_HEAD["records"], "kv_hash"]}
        (finding,) = diagnose(head, numbered(events)).findings
        assert (finding.cls, finding.subtype) == ("payload_mutation", "kv_bytes")
        assert (finding.slots, finding.culprit.req) == ({flipped}, None)
