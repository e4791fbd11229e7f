"""What slots of another tier hold, newest first, in little memory."""

from __future__ import annotations

import tracemalloc

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcanary_cli.attribution.cargo import OtherTiers, Store, nothing_known

_POOLS = st.sampled_from(["host", "disk"])
# Some far apart: such a pool may number its slots as it likes.
_PLACES = st.integers(0, 70) | st.integers(10**12, 10**12 + 3)
_KEPT = 4


def _store(event: int, count: int) -> Store:
    return Store(event, 0, None, None, *nothing_known(count), np.zeros(count, dtype=np.int32))


@given(
    stores=st.lists(
        st.tuples(_POOLS, st.lists(_PLACES, min_size=1, max_size=6, unique=True)), max_size=12
    ),
    asked=st.lists(_PLACES, max_size=6),
)
@settings(max_examples=100, deadline=None)
def test_the_last_contents_of_each_slot_are_kept(
    stores: list[tuple[str, list[int]]], asked: list[int]
) -> None:
    tiers = OtherTiers()
    want: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for event, (pool, slots) in enumerate(stores):
        tiers.store(pool, np.array(slots, dtype=np.int64), _store(event, len(slots)))
        for k, slot in enumerate(slots):
            want.setdefault((pool, slot), []).insert(0, (event, k))
    for pool in ("host", "disk"):
        got = [[(one.event, k) for one, k in held] for held in tiers.held(pool, asked)]
        assert got == [want.get((pool, slot), [])[:_KEPT] for slot in asked]


def test_a_million_slots_of_a_tier_fit_in_200_mb() -> None:
    """Pages of 16 slots, each stored once."""
    tiers, count = OtherTiers(), 20_000
    tracemalloc.start()
    try:
        for first in range(0, count, 16):
            tiers.store("host", np.arange(first, first + 16), _store(first, 16))
        used, _peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used / count < 200
