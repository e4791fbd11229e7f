"""Padding rows, idle and empty batches, tokens that are not written, and slot 0."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.replay.helpers import Event, header, numbered, replay, replay_with_state, violations

MODES = ("EXTEND", "DECODE", "TARGET_VERIFY", "DRAFT_EXTEND_V2", "MIXED")
PROMPTS = {"A": [11, 12, 13, 14, 15, 16, 17, 18], "B": [21, 22, 23, 24, 25, 26, 27, 28]}
SLOTS = {"A": [1, 2, 3, 4, 5, 6, 7, 8], "B": [9, 10, 11, 12, 13, 14, 15, 16]}
ROWS = {"A": 1, "B": 2}


def _row(req: str | None, mode: str, prefix: int, count: int, padding_slot: int = 0) -> Event:
    """One batch row that writes ``count`` tokens behind ``prefix``."""
    if mode == "DECODE":
        count = 1
    if req is None:
        tokens, slots, positions = [0] * count, [padding_slot] * count, [0] * count
        seq_len = count if mode != "TARGET_VERIFY" else 0
        prefix = 0
    else:
        tokens = PROMPTS[req][prefix : prefix + count]
        slots = SLOTS[req][prefix : prefix + count]
        positions = list(range(prefix, prefix + count))
        seq_len = prefix if mode == "TARGET_VERIFY" else prefix + count
    return {
        "req": req,
        "row": ROWS.get(req or "", 0),
        "seq_len": seq_len,
        "prefix": prefix,
        "tokens": tokens,
        "slots": slots,
        "positions": positions,
    }


def _forward(step: int, mode: str, rows: list[Event], **extra: Any) -> Event:
    def flat(name: str) -> list[int]:
        return list(itertools.chain.from_iterable(row[name] for row in rows))

    event: Event = {
        "kind": "forward",
        "step": step,
        "forward_mode": mode,
        "reqs": [row["req"] for row in rows],
        "req_pool_indices": [row["row"] for row in rows],
        "seq_lens": [row["seq_len"] for row in rows],
        "input_ids": flat("tokens"),
        "positions": flat("positions"),
        "out_cache_loc": flat("slots"),
    }
    if mode in ("EXTEND", "MIXED"):
        event["extend_prefix_lens"] = [row["prefix"] for row in rows]
    if mode in ("EXTEND", "MIXED", "DRAFT_EXTEND_V2"):
        event["extend_seq_lens"] = [len(row["tokens"]) for row in rows]
    if mode == "TARGET_VERIFY":
        event["draft_token_num"] = len(rows[0]["tokens"])
    return event | extra


def _setup() -> list[Event]:
    return [
        event
        for req in ("A", "B")
        for event in (
            {"kind": "history", "req": req, "start": 0, "ids": PROMPTS[req]},
            {"kind": "alloc", "owner": req, "slots": SLOTS[req]},
            {"kind": "map", "row": ROWS[req], "start": 0, "slots": SLOTS[req]},
        )
    ]


def _trace(order: list[str | None], mode: str, padding_slot: int = 0, **extra: Any) -> list[Event]:
    """Three steps; the middle one has its rows in ``order``, padding rows among them."""
    first = [_row(req, "EXTEND", 0, 3) for req in ("A", "B")]
    middle = [_row(req, mode, 3, 2, padding_slot) for req in order]
    written = 1 if mode == "DECODE" else 2
    last = [_row(req, "DECODE", 3 + written, 1) for req in ("A", "B")]
    return numbered(
        [
            *_setup(),
            _forward(1, "EXTEND", first),
            _forward(2, mode, middle, **extra),
            _forward(3, "DECODE", last),
        ]
    )


ORDERS: list[list[str | None]] = [
    ["A", "B", None, None],
    [None, "A", "B"],
    ["A", None, "B"],
    [None, "A", None, "B", None],
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("order", ORDERS, ids=lambda o: "".join(r or "-" for r in o))
def test_padding_rows_change_nothing_wherever_they_stand(
    order: list[str | None], mode: str
) -> None:
    plain, expected = replay_with_state(header(), _trace(["A", "B"], mode))
    padded, result = replay_with_state(header(), _trace(order, mode))

    assert not list(expected.violations)
    assert not list(result.violations)
    assert result.slot_counters == expected.slot_counters
    assert (
        result.coverage.entries_verified
        == expected.coverage.entries_verified
        == 15 + (3 if mode != "DECODE" else 1) * 0 + (expected.coverage.entries_verified - 15)
    )
    for (key, mine), (_key, other) in zip(
        padded.workers["target"].lanes[0].buffers().items(),
        plain.workers["target"].lanes[0].buffers().items(),
        strict=True,
    ):
        assert mine.equal(other), key


@pytest.mark.parametrize("order", ORDERS, ids=lambda o: "".join(r or "-" for r in o))
@pytest.mark.parametrize("backend", ["cpu", "reference", "triton"])
def test_a_fault_beside_padding_is_reported_with_its_own_request(
    order: list[str | None], backend: str
) -> None:
    events = _trace(order, "EXTEND")
    forward = events[-2]
    at = forward["input_ids"].index(24)
    forward["input_ids"][at] = 99
    found = violations(header(), events, backend=backend)

    assert [(v.step, v.check, v.req, v.row, v.slot, v.position) for v in found] == [
        (2, "input_assert", "B", 2, 12, 3),
        (3, "verify", "B", 2, 12, 3),
    ]
    assert (found[0].stored_token, found[0].expected_token) == (99, 24)


def test_padding_rows_carry_landed_slots_and_trees_with_them() -> None:
    """Everything flat is moved along: with the tree, the first node of B hangs at its prefix."""
    order = [None, "A", "B"]
    landed = {"pool": "full", "slots": [0, 0, 20, 21, 22, 23]}
    events = _trace(order, "TARGET_VERIFY", landed=landed, tree={"parent": [-1, 0, -1, 0, -1, 0]})
    moved = {4: 20, 5: 21, 12: 22, 13: 23}
    for event in events[-1:]:
        event["row_as_read"] = {
            str(ROWS[req]): [moved.get(slot, slot) for slot in SLOTS[req][:5]] for req in ("A", "B")
        }
    found = violations(header(), events)
    assert not found
    wrong = _trace(order, "TARGET_VERIFY", landed=landed, tree={"parent": [-1, 0, -1, 0, -1, -1]})
    wrong[-1]["row_as_read"] = events[-1]["row_as_read"]
    positions = [(v.check, v.req, v.slot, v.expected_position) for v in violations(header(), wrong)]
    assert positions == [("chain_position", "B", 23, 3)]


def test_a_padding_row_never_writes_a_canary_row() -> None:
    """Its slot may be live: bytes change there, the canary row does not."""
    run, result = replay_with_state(header(), _trace([None, "A", "B"], "DECODE", padding_slot=9))
    assert not list(result.violations)
    row = run.workers["target"].lanes[0].buffers()["k", "head"].numpy()[9]
    assert row[0] == 21


@pytest.mark.parametrize("order", [["A", "B", None], [None, "A", "B"]])
def test_bytes_that_a_padding_row_overwrites_are_seen(order: list[str | None]) -> None:
    head = header(records=["forward", "map", "alloc", "history", "kv_hash"])
    events = _trace(order, "DECODE", padding_slot=9)
    at = len(events) - 2
    hashes = {slot: 1000 + slot for slot in range(1, 17)}
    written = [1, 2, 3, 9, 10, 11]
    events[at:at] = [_kv("after", 1, written, hashes)]
    at += 2
    overwritten = hashes | {9: 77}
    events[at:at] = [
        _kv("after", 2, [4, 12, 9], overwritten),
        _kv("before", 3, [1, 2, 3, 9, 10, 11], overwritten),
    ]
    found = violations(head, numbered(events))
    assert {(v.slot, v.req, v.fail_reasons) for v in found} == {(9, "B", ("verify_real_kv_hash",))}
    assert min(v.step for v in found) == 2
    assert {v.launch_tags for v in found} == {("TAIL_K_FULL",)}
    assert found[0].stored_kv_hash == 1009
    assert found[0].expected_kv_hash == 77


def _kv(phase: str, step: int, slots: list[int], hashes: dict[int, int]) -> Event:
    return {
        "kind": "kv_hash",
        "phase": phase,
        "step": step,
        "slots": slots,
        "hash": [hashes[slot] for slot in slots],
    }


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize(
    "idle",
    [
        {"reqs": [], "req_pool_indices": [], "seq_lens": []},
        {"reqs": [None, None], "req_pool_indices": [0, 0], "seq_lens": [1, 1]},
        {"reqs": ["A"], "req_pool_indices": [1], "seq_lens": [5]},
    ],
    ids=["empty", "padding", "named"],
)
def test_an_idle_batch_without_tokens_does_nothing(idle: Event, backend: str) -> None:
    events = _trace(["A", "B"], "DECODE")
    event = {"kind": "forward", "step": 2, "forward_mode": "IDLE", "draft_step": 7}
    event |= idle | {"input_ids": [], "positions": [], "out_cache_loc": []}
    with_idle = numbered([*events[:-1], event, events[-1]])
    plain, result = (
        replay(header(), events, backend=backend),
        replay(header(), with_idle, backend=backend),
    )
    assert not list(result.violations)
    assert result.slot_counters == plain.slot_counters
    assert result.coverage.forwards == plain.coverage.forwards + 1


@pytest.mark.parametrize("mode", ["IDLE", "DECODE", "EXTEND"])
def test_a_trace_of_empty_batches_alone(mode: str) -> None:
    event = {"kind": "forward", "step": 1, "forward_mode": mode, "reqs": []}
    event |= {"req_pool_indices": [], "seq_lens": []}
    event |= {"input_ids": [], "positions": [], "out_cache_loc": []}
    if mode == "EXTEND":
        event |= {"extend_prefix_lens": [], "extend_seq_lens": []}
    result = replay(header(), numbered([event]))
    assert not list(result.violations)
    assert result.coverage.entries_written == 0


def test_a_token_that_is_not_written_does_not_break_its_chain() -> None:
    """out_cache_loc -1: no row, no count; the next token links to the one before."""
    events = _trace(["A", "B"], "EXTEND")
    events[-2]["out_cache_loc"][0] = -1
    result = replay(header(), events)
    # Position 3 of A was never written: reading it in step 3 shows an empty row, and position 4
    # follows position 2, which both the link and the position assert show.
    cells = [(v.step, v.check, v.slot, v.fail_reasons) for v in result.violations]
    assert (2, "chain_position", 5, ("write_position",)) in cells
    assert {slot for _, _, slot, _ in cells} == {4, 5}
    assert result.slot_counters["target"][0] == 6 + 6 + 3 + 10 + 2


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_slot_0_is_written_and_never_verified(backend: str) -> None:
    events = _trace(["A", "B"], "DECODE")
    events[-2]["out_cache_loc"][0] = 0
    events[-1]["row_as_read"] = {"1": [1, 2, 3, 0]}
    run, result = replay_with_state(header(), events, backend=backend)
    assert not list(result.violations)
    head = run.workers["target"].lanes[0].buffers()["k", "head"].numpy()[0]
    assert head[0] == 14
    assert head[8] == 3
