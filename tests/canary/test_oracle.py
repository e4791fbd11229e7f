"""The token oracle: vectors, expansion to tokens, and the input assert that it feeds."""

from __future__ import annotations

import pytest
import torch
from canary_rig import decode, extend, ints, make_rig

from kvcanary_cli.abi.constants import ForwardMode
from kvcanary_cli.canary import (
    CanaryConfig,
    ForwardBatch,
    TokenOracle,
    TokenOracleManager,
    request_id_hash,
)


@pytest.mark.parametrize(
    ("request_id", "position", "vocab", "token"),
    [
        (0, 0, 32000, 0),
        (1, 0, 32000, 2789),
        (123456789, 10, 151936, 48390),
        (-1, 3, 1000, 391),
    ],
)
def test_vectors(request_id: int, position: int, vocab: int, token: int) -> None:
    oracle = TokenOracle(vocab_size=vocab)
    assert oracle.tokens(ints([request_id]), ints([position])).tolist() == [token]
    assert oracle.sample(ints([request_id]), ints([position - 1])).tolist() == [token]


def test_request_id_vector() -> None:
    assert request_id_hash("req-1") == 830714397525821188


def test_rooms_come_first_and_padding_is_zero() -> None:
    oracle = TokenOracle(vocab_size=32000)
    manager = TokenOracleManager(oracle)
    batch = decode([1, 2, 0], [0, 0, 0], [1, 1, 1], [4, 5, 0])
    batch.req_ids, batch.bootstrap_rooms = ("req-1", "x", None), (-1, 1, -1)
    tokens, positions = manager.expected_inputs(batch)
    first = oracle.tokens(ints([request_id_hash("req-1")]), ints([0])).tolist()
    assert tokens.tolist() == [*first, 2789, 0]
    assert positions.tolist() == [0, 0, 0]


def test_extend_modes_expect_what_they_were_given() -> None:
    manager = TokenOracleManager(TokenOracle(vocab_size=32000))
    tokens, _ = manager.expected_inputs(extend([1], [0], [[5, 7]], [[4, 2]]))
    assert tokens.tolist() == [5, 7]
    verify = ForwardBatch(
        forward_mode=ForwardMode.TARGET_VERIFY,
        req_pool_indices=ints([1, 2]),
        seq_lens=ints([3, 3]),
        input_ids=ints([1, 2, 3, 4]),
        positions=ints([3, 4, 3, 4]),
        out_cache_loc=ints([5, 6, 7, 8]),
        draft_token_num=2,
    )
    assert manager.expected_inputs(verify)[0].tolist() == [1, 2, 3, 4]
    verify.draft_token_num = 3
    with pytest.raises(RuntimeError, match=r"sum\(lens\)=6 != num_tokens=4"):
        manager.expected_inputs(verify)
    verify.forward_mode, verify.num_tokens_per_req = ForwardMode.DRAFT_EXTEND_V2, 2
    verify.req_ids = ("a", "b")
    ids = [request_id_hash(r) for r in ("a", "a", "b", "b")]
    expected = manager.oracle.tokens(ints(ids), verify.positions)
    assert torch.equal(manager.expected_inputs(verify)[0], expected)


def test_swapped_tokens_are_found_in_the_next_decode() -> None:
    oracle = TokenOracle(vocab_size=32000)
    rig = make_rig(
        config=CanaryConfig(enable_write_input_assert=True), oracle=TokenOracleManager(oracle)
    )
    ids = ints([request_id_hash("a"), request_id_hash("b")])
    rig.map(1, [4, 5])
    rig.map(2, [6, 7])
    rig.manager.run(extend([1, 2], [0, 0], [[1], [2]], [[4], [6]], req_ids=("a", "b")))
    good = oracle.sample(ids, ints([0, 0])).tolist()
    batch = decode([1, 2], [1, 1], good[::-1], [5, 7], req_ids=("a", "b"))
    rig.manager.run(batch)
    head = [row for row in rig.ring if row[0] == 0]
    assert [(row[1], row[3], row[4], row[7]) for row in head] == [
        (5, good[1], good[0], 8),
        (7, good[0], good[1], 8),
    ]


def test_vocabulary_must_be_positive() -> None:
    with pytest.raises(ValueError, match="vocab_size must be positive, got 0"):
        TokenOracle(vocab_size=0)
