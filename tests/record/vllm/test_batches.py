"""Batches: their mode, the order of what depends on each other, and the table they read."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcanary_cli.record.tokens import TokenCoder
from kvcanary_cli.record.vllm.batches import Batch
from kvcanary_cli.record.vllm.tables import BlockTableShadow

SIZE = 4


def batch(*rows: tuple[int, int], drafts: tuple[int, ...] = (), prompt: int = 8) -> Batch:
    """A batch whose row b reads ``rows[b][0]`` positions and writes ``rows[b][1]``.

    Row b has the blocks 10 * (b + 1) and up.
    """
    count = len(rows)
    prefix = np.array([read for read, _ in rows], dtype=np.int64)
    counts = np.array([written for _, written in rows], dtype=np.int64)
    positions = [np.arange(read, read + written) for read, written in rows]
    blocks = [
        10 * (b + 1) + np.arange(-(-(read + written) // SIZE))
        for b, (read, written) in enumerate(rows)
    ]
    slots = [blocks[b][at // SIZE] * SIZE + at % SIZE for b, at in enumerate(positions)]
    return Batch(
        reqs=[f"r{b}" for b in range(count)],
        counts=counts,
        prefix=prefix,
        blocks=blocks,
        block_size=SIZE,
        input_ids=np.arange(int(counts.sum())),
        positions=np.concatenate(positions),
        slots=np.concatenate(slots),
        drafts=np.array(drafts or [0] * count, dtype=np.int64),
        prompts=np.full(count, prompt, dtype=np.int64),
    )


@pytest.mark.parametrize(
    ("made", "mode"),
    [
        (batch((8, 1), (12, 1)), "DECODE"),
        (batch((0, 8), (4, 4)), "EXTEND"),
        (batch((0, 8), (9, 1)), "MIXED"),
        (batch((9, 3), (12, 3), drafts=(2, 2)), "TARGET_VERIFY"),
        (batch((9, 3), (12, 2), drafts=(2, 1)), "MIXED"),
        (batch((9, 3), (12, 1), drafts=(2, 0)), "MIXED"),
        # A prompt's last tokens with drafts behind them.
        (batch((4, 6), (2, 8), drafts=(2, 2)), "EXTEND"),
    ],
)
def test_mode(made: Batch, mode: str) -> None:
    assert made.mode == mode
    event = made.event(3, [1, 2], TokenCoder("raw"), None)
    lengths = event["seq_lens"].tolist()
    grown = (made.prefix + made.counts).tolist()
    assert lengths == (made.prefix.tolist() if mode == "TARGET_VERIFY" else grown)
    assert ("extend_seq_lens" in event) == (mode in ("EXTEND", "MIXED"))
    assert event.get("draft_token_num") == (3 if mode == "TARGET_VERIFY" else None)


def test_slots_that_are_read() -> None:
    made = batch((5, 1), (0, 4))
    assert made.prefix_slots().tolist() == [40, 41, 42, 43, 44]


def test_who_reads_what_another_row_writes_comes_behind_it() -> None:
    made = batch((4, 4), (0, 8), (4, 1), (8, 1))
    # Row 0 was served from a block of row 1, row 2 from one of row 0.
    hits = {"r0": {int(made.slots[4])}, "r2": {int(made.slots[0])}, "r3": {999}}
    parts = made.in_order(hits)
    assert [part.reqs for part in parts] == [["r1", "r3"], ["r0"], ["r2"]]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 6)), min_size=1, max_size=5),
    st.data(),
)
def test_parts_hold_every_token_once_and_writers_come_first(
    rows: list[tuple[int, int]], data: st.DataObject
) -> None:
    made = batch(*rows)
    starts = made.starts
    hits: dict[str, set[int]] = {}
    # The engine scheduled its rows in this order: each may read of those before.
    order = data.draw(st.permutations(range(len(rows))))
    for at, b in enumerate(order[1:], 1):
        others = data.draw(st.sets(st.sampled_from(order[:at]), max_size=2))
        hits[f"r{b}"] = {int(made.slots[starts[other]]) for other in others}
    parts = made.in_order(hits)
    assert sorted(req for part in parts for req in part.reqs) == sorted(made.reqs)
    assert sorted(np.concatenate([p.slots for p in parts]).tolist()) == sorted(made.slots.tolist())
    seen: set[int] = set()
    every = set(made.slots.tolist())
    for part in parts:
        for req in part.reqs:
            assert (hits.get(req, set()) & every) <= seen
        seen |= set(part.slots.tolist())
        assert part.starts[-1] == len(part.slots) == len(part.positions)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 2), st.lists(st.integers(0, 3), max_size=4), st.booleans()),
        max_size=12,
    )
)
def test_the_table_told_is_the_table_shown(shown: list[tuple[int, list[int], bool]]) -> None:
    shadow = BlockTableShadow(3, 4, SIZE)
    told = np.full((3, 4 * SIZE), -1, dtype=np.int64)
    for row, blocks, forget in shown:
        if forget:
            shadow.forget(row)
        events = shadow.show(row, np.array(blocks, dtype=np.int64))
        for event in events:
            assert event["row"] == row
            told[row, event["start"] : event["start"] + len(event["slots"])] = event["slots"]
        expected = [block * SIZE + k for block in blocks for k in range(SIZE)]
        assert told[row, : len(expected)].tolist() == expected
        if forget and blocks:
            assert sum(len(event["slots"]) for event in events) == len(expected)
        assert not shadow.show(row, np.array(blocks, dtype=np.int64))
