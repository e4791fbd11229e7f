"""Slots of the SWA pool have numbers of their own: that one is also a full slot's means nothing."""

from __future__ import annotations

from typing import Any

import pytest

from tests.attribution.events import HEAD, decode, life, numbered
from tests.attribution.helpers import diagnose

Event = dict[str, Any]
SWA = HEAD | {
    "pool": HEAD["pool"] | {"swa_slots": 64, "swa_window": 8},
    "records": [*HEAD["records"], "lut"],
}


def _lut(full: list[int], swa: list[int]) -> Event:
    return {"kind": "lut", "full": full, "swa": swa}


def _both(one: Event, other: Event) -> Event:
    """A forward of two requests: a prompt and a decode."""
    lists = ("reqs", "req_pool_indices", "seq_lens", "input_ids", "positions", "out_cache_loc")
    decoded = {"extend_prefix_lens": other["positions"], "extend_seq_lens": [1]}
    joined = {name: one[name] + other[name] for name in lists}
    joined |= {name: one[name] + values for name, values in decoded.items()}
    return one | {"forward_mode": "MIXED"} | joined


@pytest.mark.parametrize("shift", range(8))
def test_a_slot_given_twice_is_read_and_overwritten_by_one_forward(shift: int) -> None:
    """The full lane still has what it reads; the SWA lane fails, and may name any slot."""
    prompt = life("B", [21, 22], [2, 7], row=2, step=2)
    step = decode("A", 14, 5, row=1, position=3, step=2)
    last = decode("A", 15, 6, row=1, position=4, step=3)
    events = [
        _lut([8], [1 + shift]),
        *life("Z", [91], [8], row=3, step=0),
        {"kind": "finish", "req": "Z"},
        {"kind": "free", "owner": "Z", "slots": [8]},
        _lut([1, 2, 3], [31 + shift, 40 + shift, 50 + shift]),
        *life("A", [11, 12, 13], [1, 2, 3], row=1, step=1),
        *prompt[:-1],
        _lut([2, 7], [1 + shift, 9 + shift]),
        *step[:-1],
        _lut([5], [20 + shift]),
        _both(prompt[-1], step[-1]),
        *last[:-1],
        _lut([6], [21 + shift]),
        last[-1],
    ]
    told = [
        (f.cls, f.subtype, f.pool_kind, f.first_bad_step, f.victim, f.culprit.req)
        for f in diagnose(SWA, numbered(events)).findings
    ]
    assert told == [("double_alloc", "double_alloc", "SWA", 2, "A", "B")]
