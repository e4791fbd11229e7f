"""Shadows and ledger: what they tell, applied, gives what they watched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcanary_cli.record.diffs import RowDiff
from kvcanary_cli.record.ledger import FREE, TREE, Ledger
from kvcanary_cli.record.shadows import HistoryShadow, LutShadow, TableShadow
from kvcanary_cli.record.tokens import TokenCoder

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

ROWS, ROW_LEN, SLOTS = 4, 9, 24
_CHANGE = st.tuples(
    st.integers(0, ROWS - 1), st.integers(0, ROW_LEN - 1), st.integers(0, SLOTS), st.booleans()
)


def _no_change(table: NDArray[Any]) -> NDArray[Any]:
    return table


def _with_gaps(table: NDArray[Any]) -> NDArray[Any]:
    """Memory that the kernels do not take: it is compared on the host."""
    wide = np.zeros((table.shape[0], 2 * table.shape[1]), dtype=table.dtype)
    return wide[:, ::2]


@pytest.mark.parametrize("place", [_no_change, _with_gaps, torch.from_numpy])
@given(st.lists(_CHANGE, max_size=40), st.data())
@settings(max_examples=40, deadline=None)
def test_map_events_rebuild_the_rows_that_were_shown(
    place: Callable[[NDArray[Any]], Any],
    changes: list[tuple[int, int, int, bool]],
    data: st.DataObject,
) -> None:
    table = place(np.zeros((ROWS, ROW_LEN), dtype=np.int32))
    shadow = TableShadow(table)
    shadow._diff = RowDiff(table, capacity=data.draw(st.sampled_from([64, 2, 1])))
    # As a trace has it: nothing is mapped in the beginning.
    told = np.zeros((ROWS, ROW_LEN), dtype=np.int64)
    for row, cell, slot, show in changes:
        table[row, cell] = slot
        if data.draw(st.integers(0, 9)) == 0:
            assert shadow.retell(gap=True) == []
            told[:] = 0
        if not show:
            continue
        rows = data.draw(st.lists(st.integers(0, ROWS - 1), unique=True, min_size=1))
        lengths = [data.draw(st.integers(0, ROW_LEN)) for _ in rows]
        for event in shadow.show(rows, lengths):
            start, slots = event["start"], event["slots"]
            assert (told[event["row"], start : start + len(slots)] != slots).all()
            told[event["row"], start : start + len(slots)] = slots
        for shown, length in zip(rows, lengths, strict=True):
            assert told[shown, :length].tolist() == table[shown, :length].tolist()
        assert shadow.show(rows, lengths) == []


def test_a_run_of_cells_is_one_event_and_a_copy() -> None:
    table = np.zeros((3, 8), dtype=np.int32)
    shadow = TableShadow(table)
    table[1, :4], table[2, 5:7], table[1, 6] = [1, 2, 3, 4], [8, 9], 7
    told = shadow.show([2, 1, 0], [8, 8, 8])
    table[:] = 0
    assert [(e["row"], e["start"], e["slots"].tolist()) for e in told] == [
        (2, 5, [8, 9]),
        (1, 0, [1, 2, 3, 4]),
        (1, 6, [7]),
    ]


def test_rows_are_told_again_behind_a_gap() -> None:
    table = np.arange(1, ROWS * ROW_LEN + 1, dtype=np.int32).reshape(ROWS, ROW_LEN)
    shadow = TableShadow(table)
    first = shadow.show([1], [5])
    assert shadow.show([1], [5]) == []
    assert shadow.retell(gap=True) == []
    again = shadow.show([1], [5])
    assert [e["slots"].tolist() for e in first] == [e["slots"].tolist() for e in again]


@given(st.lists(st.lists(st.integers(0, 5), min_size=4, max_size=4), max_size=8))
def test_lut_events_rebuild_the_table(tables: list[list[int]]) -> None:
    shadow, told = LutShadow(4), np.zeros(4, dtype=np.int64)
    for table in tables:
        for event in shadow.show(np.array([*table, -1])):
            assert (told[event["full"]] != event["swa"]).all()
            told[event["full"]] = event["swa"]
        assert told.tolist() == table
    for gap in (False, True):
        fresh = np.zeros(4, dtype=np.int64)
        for event in shadow.retell(gap=gap):
            fresh[event["full"]] = event["swa"]
        assert np.array_equal(fresh, told)


@given(st.lists(st.integers(0, 9), max_size=9), st.lists(st.integers(0, 9), max_size=9))
def test_histories_tell_every_token_once(prompt: list[int], output: list[int]) -> None:
    shadow, told = HistoryShadow(TokenCoder("raw")), list[int]()
    for length in range(len(output) + 1):
        for event in shadow.show("r", prompt, output[:length]):
            assert event["start"] == len(told)
            told += event["ids"].tolist()
    assert told == prompt + output


@given(
    st.lists(
        st.tuples(st.sampled_from("afo"), st.integers(0, 3), st.integers(0, SLOTS - 4)), max_size=40
    )
)
def test_owners_told_behind_a_gap_are_the_owners(ops: list[tuple[str, int, int]]) -> None:
    ledger = Ledger(SLOTS)
    for op, who, start in ops:
        slots = np.arange(start, start + 3)
        match op:
            case "a":
                ledger.alloc(f"r{who}", slots)
            case "f":
                ledger.free(None, slots, "end")
            case "o":
                ledger.own(f"r{who}", slots)
    told: dict[int, str] = {}
    for event in ledger.retell(gap=True):
        for slot in event["slots"].tolist():
            if event["kind"] == "free":
                assert told.pop(slot) == event["owner"]
            else:
                told[slot] = event["owner"]
    owned = np.flatnonzero(ledger.owner > FREE).tolist()
    assert sorted(told) == owned
    for slot in owned:
        assert (told[slot] == "tree") == (int(ledger.owner[slot]) == TREE)


def test_an_entry_is_withdrawn_with_its_last_slot() -> None:
    ledger = Ledger(SLOTS)
    ledger.alloc("r", np.arange(4))
    (own,) = ledger.own("r", np.arange(4))
    assert (own["from"], own["owner"]) == ("r", "tree")
    assert ledger.entry_of(2) == own["entry"]
    assert [e["kind"] for e in ledger.free("tree", np.arange(3), "evict")] == ["free"]
    last = ledger.free("tree", np.array([3]), "evict")
    assert last[1] == {"kind": "unpublish", "entry": own["entry"]}


def test_a_page_is_given_back_with_its_owned_slots_only() -> None:
    ledger = Ledger(SLOTS)
    ledger.alloc("r", np.array([8, 9, 10]))
    assert ledger.with_pages(np.array([8]), 4).tolist() == [8, 9, 10]
    assert ledger.with_pages(np.array([8]), 1).tolist() == [8]
    # A slot that nobody owns stays in it, or a page given back twice would not show.
    assert ledger.with_pages(np.array([12]), 4).tolist() == [12]
