"""Shadows and ledger: what they tell, applied, gives what they watched."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvcanary_cli.record.ledger import FREE, TREE, Ledger
from kvcanary_cli.record.shadows import HistoryShadow, LutShadow, TableShadow
from kvcanary_cli.record.tokens import TokenCoder

ROWS, ROW_LEN, SLOTS = 4, 9, 24
_CHANGE = st.tuples(
    st.integers(0, ROWS - 1), st.integers(0, ROW_LEN - 1), st.integers(0, SLOTS), st.booleans()
)


@given(st.lists(_CHANGE, max_size=40), st.data())
def test_map_events_rebuild_the_rows_that_were_shown(
    changes: list[tuple[int, int, int, bool]], data: st.DataObject
) -> None:
    table = np.zeros((ROWS, ROW_LEN), dtype=np.int32)
    shadow = TableShadow(table)
    told = np.full_like(table, -1)
    for row, cell, slot, show in changes:
        table[row, cell] = slot
        if not show:
            continue
        rows = data.draw(st.lists(st.integers(0, ROWS - 1), unique=True, min_size=1))
        lengths = [data.draw(st.integers(0, ROW_LEN)) for _ in rows]
        for event in shadow.show(rows, lengths):
            start, slots = event["start"], event["slots"]
            assert not np.array_equal(told[event["row"], start : start + len(slots)], slots)
            told[event["row"], start : start + len(slots)] = slots
        for shown, length in zip(rows, lengths, strict=True):
            assert np.array_equal(told[shown, :length], table[shown, :length])
        assert shadow.show(rows, lengths) == []


def test_rows_are_told_again_behind_a_gap() -> None:
    table = np.arange(ROWS * ROW_LEN, dtype=np.int32).reshape(ROWS, ROW_LEN)
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
