"""Copies that bring another request's content than that of the one that they are for."""

from __future__ import annotations

from typing import Any

import pytest

from tests.attribution.events import HEAD, decode, decode_step, index_of, life, numbered
from tests.attribution.helpers import diagnose

Event = dict[str, Any]
SPEC = HEAD | {"records": [*HEAD["records"], "spec"]}


@pytest.mark.parametrize(("req", "subtype"), [("A", "misaligned_blocks"), ("B", "wrong_content")])
def test_a_transfer_that_brings_anothers_prompt_is_not_misaligned(req: str, subtype: str) -> None:
    """Its second chunk is the first one again, or that of another request."""
    begin = {"kind": "transfer_begin", "id": "T", "req": "A", "slots": [1, 2, 3, 4], "via": "rdma"}
    copy = {"kind": "copy", "id": "T", "via": "rdma", "by": "A", "canary": True}
    events = numbered(
        [
            {"kind": "history", "req": "A", "start": 0, "ids": [11, 12, 13, 14]},
            {"kind": "history", "req": "B", "start": 0, "ids": [21, 22, 23, 24]},
            {"kind": "alloc", "owner": "A", "slots": [1, 2, 3, 4]},
            {"kind": "map", "row": 1, "start": 0, "slots": [1, 2, 3, 4]},
            begin,
            copy | {"src": {"req": "A", "pos": [0, 1]}, "dst": [1, 2]},
            copy | {"src": {"req": req, "pos": [0, 1]}, "dst": [3, 4]},
            {"kind": "transfer_end", "id": "T"},
            *decode("A", 15, 5, row=1, position=4, step=1),
        ]
    )
    (finding,) = diagnose(HEAD, events).findings
    assert (finding.cls, finding.subtype) == ("transfer_mismatch", subtype)
    assert finding.cause_event == index_of(events, "copy", dst=[3, 4])
    assert (finding.victim, finding.positions) == ("A", {2, 3})
    assert any("of B, not of A" in text for text in finding.evidence) == (req == "B")


def _verified(source: int) -> list[Event]:
    """A and B verify two nodes each; B's second is accepted, and copied from ``source``."""
    verify: Event = {
        "kind": "forward",
        "step": 3,
        "forward_mode": "TARGET_VERIFY",
        "reqs": ["A", "B"],
        "req_pool_indices": [1, 2],
        "seq_lens": [2, 2],
        "input_ids": [13, 14, 90, 23],
        "positions": [2, 3, 2, 2],
        "out_cache_loc": [5, 6, 7, 8],
        "draft_token_num": 2,
        "tree": {"parent": [-1, 0, -1, -1]},
    }
    return numbered(
        [
            *life("A", [11, 12], [1, 2], row=1, step=1),
            *life("B", [21, 22], [3, 4], row=2, step=2),
            {"kind": "history", "req": "A", "start": 2, "ids": [13]},
            {"kind": "history", "req": "B", "start": 2, "ids": [23]},
            {"kind": "alloc", "owner": "A", "slots": [5, 6]},
            {"kind": "map", "row": 1, "start": 2, "slots": [5, 6]},
            {"kind": "alloc", "owner": "B", "slots": [7, 8]},
            {"kind": "map", "row": 2, "start": 2, "slots": [7, 8]},
            verify,
            {"kind": "accept", "req": "A", "nodes": [0, 1], "tokens": [13, 14], "committed_len": 4},
            {"kind": "accept", "req": "B", "nodes": [1], "tokens": [23], "committed_len": 3},
            {"kind": "history", "req": "A", "start": 3, "ids": [14, 15]},
            {"kind": "history", "req": "B", "start": 3, "ids": [24]},
            {"kind": "copy", "src": [source], "dst": [7], "via": "d2d", "by": "B"},
            {"kind": "free", "owner": "B", "slots": [8]},
            {"kind": "alloc", "owner": "B", "slots": [9]},
            {"kind": "map", "row": 2, "start": 3, "slots": [9]},
            decode_step(4, "B", 2, 24, 3, 9),
        ]
    )


@pytest.mark.parametrize("source", [5, 6])
def test_a_copy_of_anothers_accepted_node_moves_no_rejected_one(source: int) -> None:
    assert not diagnose(SPEC, _verified(8)).findings
    events = _verified(source)
    (finding,) = diagnose(SPEC, events).findings
    assert (finding.cls, finding.subtype) == ("transfer_mismatch", "wrong_content")
    assert (finding.cause_event, finding.victim) == (index_of(events, "copy"), "B")
    assert any("of A, not of B" in text for text in finding.evidence)
