"""What a replay holds for known is so: every known cell verifies, and the counts of them agree."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcanary_cli.replay.chains import slot_hash
from tests.replay.documents import disturbed
from tests.replay.helpers import replay_with_state
from tests.replay.simulator import Settings, simulate
from tests.replay.test_compiled import SLOW, engine_settings

if TYPE_CHECKING:
    from kvcanary_cli.replay.driver import Replay


def assert_known_cells_verify(run: Replay) -> int:
    """Check all that is known of the one lane; how many cells that is."""
    (known,) = run.pool.known
    lane = run.workers["target"].lanes[0]
    histories, table = run.pool.histories, run.pool.table
    assert histories is not None
    refs = np.zeros(lane.num_slots, dtype=np.int64)
    for row, checked in enumerate(known.checked.tolist()):
        slots = table[row, :checked].astype(np.int64)
        np.add.at(refs, slots[slots > 0], 1)
        expected = np.full(checked, -1, dtype=np.int64)
        told = min(checked, int(known.limits[row]))
        expected[:told] = histories.pool[row, :told]
        assert int((expected != -1).sum()) == known.tokens_known[row], row
        if known.again[row]:
            continue
        prevs = np.concatenate([[-1], slots[:-1]])[:checked]
        for buffer in lane.buffers().values():
            cells = buffer.numpy().view(np.int64)
            rows = cells[slots]
            np.testing.assert_array_equal(rows[:, 1], np.arange(checked))
            np.testing.assert_array_equal(rows[:, 2], slot_hash(cells[prevs], prevs))
            assert (rows[:, 0] == expected)[expected != -1].all(), row
    np.testing.assert_array_equal(refs, known.refs)
    return int(known.checked.sum())


@pytest.mark.parametrize("compiled", [False, True])
@given(engine_settings(), st.integers(0, 1 << 32), st.integers(0, 25), st.integers(1, 250))
@settings(max_examples=15, suppress_health_check=SLOW)
def test_known_cells_verify(
    compiled: bool, engine: Settings, seed: int, count: int, stop: int
) -> None:
    """Also where the trace ends somewhere, so that all kinds of state are met."""
    head, events = simulate(engine)
    events = disturbed(random.Random(seed), head, events, count)[:stop]
    run, _ = replay_with_state(head, events, compiled=compiled)
    if run.pool.known:
        assert_known_cells_verify(run)


def test_compiled_events_know_what_they_wrote() -> None:
    """The next decode step has nothing to look at: all that it reads was followed as it came."""
    head, events = simulate(Settings(seed=7, steps=80, share=False))
    steps = [k for k, event in enumerate(events) if event.get("forward_mode") == "DECODE"]
    last = next(k for k in reversed(steps) if k + 1 < len(events))
    run, _ = replay_with_state(head, events[: last + 2], compiled=True)
    (known,) = run.pool.known
    rows = [row for row in events[last]["req_pool_indices"] if row]
    lens = events[last]["seq_lens"][: len(rows)]
    assert known.checked[rows].tolist() == lens
    assert assert_known_cells_verify(run) >= sum(lens)
