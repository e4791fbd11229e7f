"""An engine whose memory names what its pool does not have: the trace ends there, readable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcanary_cli.record.ledger import UNKNOWN, Ledger
from tests.record.helpers import ROW_LEN, ROWS, SLOTS, Toy, events, parts, replay, steps

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

BEFORE = 3


def _cell(toy: Toy, slot: int) -> list[dict[str, Any]]:
    toy.table[1, 1] = slot
    return toy.shadow.show([1], [BEFORE])


def _alloc(toy: Toy, slot: int) -> list[dict[str, Any]]:
    return toy.ledger.alloc("r0", np.array([9, slot]))


def _free(toy: Toy, slot: int) -> list[dict[str, Any]]:
    return toy.ledger.free(None, np.array([slot]), "end")


def _own(toy: Toy, slot: int) -> list[dict[str, Any]]:
    return toy.ledger.own("r0", np.array([1, slot]))


def _forward(**fields: Any) -> Callable[[Toy, int], list[dict[str, Any]]]:
    def make(toy: Toy, value: int) -> list[dict[str, Any]]:
        event = {"kind": "forward", "step": toy.steps, "forward_mode": "DECODE", "reqs": ["r0"]}
        event |= {"req_pool_indices": [1], "seq_lens": [BEFORE + 1], "input_ids": [7]}
        event |= {"positions": [BEFORE], "out_cache_loc": [4]}
        return [event | {name: [value] for name in fields}]

    return make


@pytest.mark.parametrize(
    ("tell", "value", "said"),
    [
        (_cell, SLOTS + 1, "'map' field 'slots'"),
        (_cell, -7, "'map' field 'slots'"),
        (_alloc, 1 << 40, "'alloc' field 'slots'"),
        (_free, -3, "'free' field 'slots'"),
        (_free, SLOTS + 1, "'free' field 'slots'"),
        (_own, SLOTS + 5, "'own' field 'slots'"),
        (_forward(positions=1), ROW_LEN, "'forward' field 'positions'"),
        (_forward(out_cache_loc=1), SLOTS + 1, "'forward' field 'out_cache_loc'"),
        (_forward(req_pool_indices=1), ROWS, "'forward' field 'req_pool_indices'"),
        (_forward(seq_lens=1), -1, "'forward' field 'seq_lens'"),
    ],
)
def test_the_trace_ends_right_before_it_and_says_what_it_was(
    tell: Callable[[Toy, int], list[dict[str, Any]]], value: int, said: str, tmp_path: Path
) -> None:
    toy = Toy(tmp_path)
    for _ in range(BEFORE):
        toy.step()
    toy.session.emit_all(tell(toy, value))
    toy.session.commit(step=True)
    toy.session.emit({"kind": "finish", "req": "r0"})
    toy.session.commit()
    toy.session.close()
    (trace,) = parts(tmp_path)
    found = events(trace)
    assert steps(trace) == list(range(BEFORE))
    assert [event["i"] for event in found] == list(range(len(found)))
    assert found[-1]["kind"] == "recording_ended"
    assert "the engine's state does not fit its pool" in found[-1]["reason"]
    assert said in found[-1]["reason"]
    assert str(value) in found[-1]["reason"]
    notes = replay(trace).replay.coverage.notes
    assert any(said in note for note in notes)
    assert not any("lost" in note for note in notes)


@given(
    st.lists(
        st.tuples(st.sampled_from("afopw"), st.lists(st.integers(-5, 20), min_size=1)), max_size=12
    )
)
@settings(max_examples=50, deadline=None)
def test_the_ledger_takes_any_number_for_a_slot(calls: list[tuple[str, list[int]]]) -> None:
    ledger, model = Ledger(12), dict[int, str]()
    for call, numbers in calls:
        slots = np.array(numbers, dtype=np.int64)
        inside = {slot for slot in numbers if 0 <= slot < 12}
        match call:
            case "a":
                ledger.alloc("r", slots)
                model |= dict.fromkeys(inside, "r")
            case "f":
                told = ledger.free(None, slots, "end")
                freed = [slot for event in told for slot in event.get("slots", ())]
                assert sorted(freed) == sorted(numbers)
                model |= dict.fromkeys(inside, "free")
            case "o":
                ledger.own("r", slots)
                model |= dict.fromkeys(inside, "tree")
            case "p":
                assert set(numbers) <= set(ledger.with_pages(slots, 4).tolist())
            case "w":
                ledger.entry_of(numbers[0])
    unknown = ledger.owners(np.arange(-3, 15)) == UNKNOWN
    for slot, is_unknown in zip(range(-3, 15), unknown.tolist(), strict=True):
        assert is_unknown == (slot not in model)
