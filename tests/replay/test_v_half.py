"""The V half: its own launches, its own fingerprints."""

from __future__ import annotations

from typing import Any

from kvcanary_cli.abi.constants import FailReason
from kvcanary_cli.report.log_lines import ring_rows
from tests.replay.helpers import Event, header, numbered, replay_with_state, violations

KV = int(FailReason.VERIFY_REAL_KV_HASH_MISMATCH)
TOKEN = int(FailReason.VERIFY_TOKEN_MISMATCH)


def _kv(phase: str, step: int, half: str, hashes: dict[int, int]) -> Event:
    event: Event = {"kind": "kv_hash", "phase": phase, "step": step, "half": half}
    return event | {"slots": list(hashes), "hash": list(hashes.values())}


def _trace(later_k: int, later_v: int, token: int = 11) -> tuple[Event, list[Event]]:
    first: Event = {"kind": "forward", "step": 1, "forward_mode": "EXTEND", "reqs": ["A"]}
    first |= {"req_pool_indices": [1], "seq_lens": [2], "input_ids": [token, 12]}
    first |= {"positions": [0, 1], "out_cache_loc": [4, 5]}
    first |= {"extend_prefix_lens": [0], "extend_seq_lens": [2]}
    second: Event = {"kind": "forward", "step": 2, "forward_mode": "DECODE", "reqs": ["A"]}
    second |= {"req_pool_indices": [1], "seq_lens": [3], "input_ids": [13]}
    second |= {"positions": [2], "out_cache_loc": [6]}
    events: list[Any] = [
        {"kind": "history", "req": "A", "start": 0, "ids": [11, 12, 13]},
        {"kind": "map", "row": 1, "start": 0, "slots": [4, 5, 6]},
        first,
        _kv("after", 1, "k", {4: 40, 5: 50}),
        _kv("after", 1, "v", {4: 41, 5: 51}),
        _kv("before", 2, "k", {4: later_k, 5: 50}),
        _kv("before", 2, "v", {4: later_v, 5: 51}),
        second,
    ]
    return header(records=["forward", "map", "history", "kv_hash"]), numbered(events)


def test_clean_halves_are_clean_and_both_launched() -> None:
    run, result = replay_with_state(*_trace(40, 41), v_half=True)
    assert not list(result.violations)
    assert result.kernel_counters["target"] == (4, 4, 4, 4, 0, 0, 0, 0, 0, 0, 0, 0)
    buffers = run.workers["target"].lanes[0].buffers()
    assert buffers["v", "head"].equal(buffers["k", "head"])
    assert not buffers["v", "tail"].equal(buffers["k", "tail"])


def test_each_half_is_blamed_for_its_own_bytes() -> None:
    (k_only,) = violations(*_trace(77, 41), v_half=True)
    assert k_only.launch_tags == k_only.kv_tags == ("TAIL_K_FULL",)
    assert (k_only.stored_kv_hash, k_only.expected_kv_hash) == (40, 77)
    (v_only,) = violations(*_trace(40, 78), v_half=True)
    assert v_only.launch_tags == v_only.kv_tags == ("TAIL_V_FULL",)
    assert (v_only.stored_kv_hash, v_only.expected_kv_hash) == (41, 78)


def test_a_launch_says_only_what_it_saw_itself() -> None:
    found = violations(*_trace(40, 78, token=99), v_half=True)
    (wrong,) = [v for v in found if v.check == "verify"]
    assert wrong.launch_tags == ("HEAD_K_FULL", "HEAD_V_FULL", "TAIL_K_FULL", "TAIL_V_FULL")
    assert wrong.kv_tags == ("TAIL_V_FULL",)
    assert (wrong.stored_kv_hash, wrong.expected_kv_hash) == (41, 78)
    assert [row.fail_bits for row in ring_rows(wrong)] == [TOKEN, TOKEN, TOKEN, TOKEN | KV]


def test_without_the_v_half_its_fingerprints_are_not_looked_at() -> None:
    assert not violations(*_trace(40, 78))
